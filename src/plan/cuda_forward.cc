// SPDX-License-Identifier: Apache-2.0
// The CUDA back end's implementation of forward, and what is asked of the driver about a call
// before it runs.
#include <cinttypes>
#include <vector>

#include "src/cuda/driver/driver.hpp"
#include "src/cuda/ops/forward.hpp"
#include "src/plan/implementations.hpp"

namespace tegula {
namespace {

constexpr int32_t kHopper = 90;

// What a plan knows of the GPU: nothing is asked of a driver, so that a plan is the same on a
// machine without one.
cuda::DeviceInfo planned_device(const tegula_device& device) {
  cuda::DeviceInfo info;
  info.index = device.index;
  info.compute_capability = device.compute_capability;
  info.num_sms = device.num_sms;
  return info;
}

void refuse_cuda(const tegula_problem& problem, const tegula_device& device, Refusal& why) {
  if (device.kind != TEGULA_CUDA) return refuse(why, "the device is not a GPU");
  if (device.compute_capability != kHopper) {
    return refuse(why, "sm_%" PRId32 " is not served: sm_90 (H100, H200) is",
                  device.compute_capability);
  }
  cuda::refuse_forward(problem, planned_device(device), why);
}

void configure_cuda(Plan& plan) {
  plan.cuda = cuda::plan_forward(plan.problem);
  plan.tile_m = cuda::spec_of(plan.cuda).tile_m;
  plan.tile_n = cuda::spec_of(plan.cuda).tile_n;
  plan.num_splits = 1;
  plan.scratch_bytes = plan.cuda.scratch_bytes;
}

void explain_cuda(const Plan& plan, Explanation& out) {
  out.line("gpu             cuda:%" PRId32 ", sm_%" PRId32 ", %" PRId32 " SMs", plan.device.index,
           plan.device.compute_capability, plan.device.num_sms);
  out.line("tiles           tile_m %" PRId64 " rows, tile_n %" PRId64 " keys", plan.tile_m,
           plan.tile_n);
  out.line("kernel          %s", cuda::name_of(cuda::spec_of(plan.cuda)).c_str());
  out.line("loads           %s", plan.cuda.plain
                                     ? "by threads: q, k or v is below what bulk tensor copies move"
                                     : "bulk tensor copies (TMA)");
  out.line("scratch         %zu bytes", plan.scratch_bytes);
}

// The GPU that is there is one that the plan was made for.
Status check_planned_device(const tegula_device& planned) {
  const cuda::DeviceInfo* found = nullptr;
  TEGULA_RETURN_IF_ERROR(cuda::device_info(planned.index, found));
  if (found->compute_capability == planned.compute_capability) return {};
  return fail(TEGULA_INVALID_ARGUMENT,
              "device: the plan is for sm_%" PRId32 ", but cuda:%" PRId32 " (%s) is sm_%d",
              planned.compute_capability, planned.index, found->name, found->compute_capability);
}

Status prepare_cuda(std::span<const Plan* const> plans) {
  // The plans of one call are for one device.
  const int index = plans.front()->device.index;
  std::vector<const cuda::ForwardPlan*> missing;
  for (const Plan* plan : plans) {
    if (plan->prepared.load(std::memory_order_acquire)) continue;
    TEGULA_RETURN_IF_ERROR(check_planned_device(plan->device));
    missing.push_back(&plan->cuda);
  }
  if (missing.empty()) return {};
  TEGULA_RETURN_IF_ERROR(cuda::prepare_forward(missing, index));
  for (const Plan* plan : plans) plan->prepared.store(true, std::memory_order_release);
  return {};
}

// What a captured stream cannot do: `need` is missing.
Status refuse_capture(void* stream, const char* need) {
  const cuda::Driver* driver = nullptr;
  TEGULA_RETURN_IF_ERROR(cuda::find_driver(driver));
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  TEGULA_RETURN_IF_ERROR(
      cuda::check(driver->cuStreamIsCapturing(static_cast<cuda::CUstream>(stream), &status),
                  "execution.stream: asking for its capture"));
  if (status == cuda::CU_STREAM_CAPTURE_STATUS_NONE) return {};
  return fail(TEGULA_INVALID_ARGUMENT, "execution.stream: is being captured, but %s", need);
}

// With scratch from the process-wide pool, which the stream gives back when it has passed the call.
Status forward_with_pool(const Plan& plan, const ForwardCall& call, const Execution& execution) {
  TEGULA_RETURN_IF_ERROR(
      refuse_capture(execution.stream, "execution.workspace is NULL and the plan needs scratch"));
  const auto stream = static_cast<cuda::CUstream>(execution.stream);
  cuda::CUdeviceptr scratch = 0;
  TEGULA_RETURN_IF_ERROR(
      cuda::allocate_scratch(plan.device.index, plan.scratch_bytes, stream, scratch));
  Execution with_scratch = execution;
  with_scratch.workspace = reinterpret_cast<void*>(scratch);
  with_scratch.workspace_size = plan.scratch_bytes;
  const Status status = cuda::forward(plan.cuda, call, with_scratch, plan.device.index);
  if (!status.ok()) {
    static_cast<void>(cuda::free_scratch(scratch, stream));  // the first failure's text stays
    return status;
  }
  return cuda::free_scratch(scratch, stream);
}

Status forward_cuda(const Plan& plan, const ForwardCall& call, const Execution& execution) {
  cuda::ContextGuard context;
  TEGULA_RETURN_IF_ERROR(context.enter(plan.device.index));
  if (!plan.prepared.load(std::memory_order_acquire)) {
    TEGULA_RETURN_IF_ERROR(
        refuse_capture(execution.stream, "the plan is not prepared (tegula_prepare)"));
    const Plan* const self = &plan;
    TEGULA_RETURN_IF_ERROR(prepare_cuda({&self, 1}));
  }
  if (execution.workspace == nullptr && plan.scratch_bytes > 0) {
    return forward_with_pool(plan, call, execution);
  }
  return cuda::forward(plan.cuda, call, execution, plan.device.index);
}

}  // namespace

constexpr Implementation kCudaForwardSm90 = {"cuda_forward_sm90", refuse_cuda,  configure_cuda,
                                             prepare_cuda,        explain_cuda, forward_cuda};

Status describe_cuda(tegula_device& device) {
  const cuda::DeviceInfo* found = nullptr;
  TEGULA_RETURN_IF_ERROR(cuda::device_info(device.index, found));
  device.compute_capability = found->compute_capability;
  device.num_sms = found->num_sms;
  return {};
}

Status check_cuda_address(const char* name, const void* address, const tegula_device& device) {
  const cuda::Driver* driver = nullptr;
  TEGULA_RETURN_IF_ERROR(cuda::find_driver(driver));
  // Memory that the driver does not know reads as type 0, and is no error.
  unsigned type = 0;
  int ordinal = -1;
  unsigned managed = 0;
  cuda::CUpointer_attribute wanted[] = {cuda::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        cuda::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        cuda::CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* values[] = {&type, &ordinal, &managed};
  TEGULA_RETURN_IF_ERROR(cuda::check(
      driver->cuPointerGetAttributes(3, wanted, values, reinterpret_cast<uintptr_t>(address)),
      name));
  if ((managed & 1) != 0) return {};  // every GPU reads it
  if (type != cuda::CU_MEMORYTYPE_DEVICE) {
    return fail(
        TEGULA_WRONG_TYPE, "%s: the address %p is %s, not memory of cuda:%" PRId32, name, address,
        type == cuda::CU_MEMORYTYPE_HOST ? "pinned memory of the host" : "memory of the host",
        device.index);
  }
  if (ordinal != device.index) {
    return fail(TEGULA_WRONG_TYPE, "%s: the address %p is memory of cuda:%d, not of cuda:%" PRId32,
                name, address, ordinal, device.index);
  }
  return {};
}

Status check_cuda_stream(void* stream, const tegula_device& device) {
  // NULL, and the driver's names of the default streams (CU_STREAM_LEGACY, CU_STREAM_PER_THREAD).
  if (reinterpret_cast<uintptr_t>(stream) <= 2) return {};
  const cuda::Driver* driver = nullptr;
  TEGULA_RETURN_IF_ERROR(cuda::find_driver(driver));
  cuda::CUcontext of_stream = nullptr, of_device = nullptr;
  TEGULA_RETURN_IF_ERROR(cuda::check(
      driver->cuStreamGetCtx(static_cast<cuda::CUstream>(stream), &of_stream), "execution.stream"));
  cuda::ContextGuard context;
  TEGULA_RETURN_IF_ERROR(context.enter(device.index));
  TEGULA_RETURN_IF_ERROR(cuda::check(driver->cuCtxGetCurrent(&of_device), "the current context"));
  if (of_stream == of_device) return {};
  cuda::CUdevice owner = -1;
  if (driver->cuCtxPushCurrent_v2(of_stream) == cuda::CUDA_SUCCESS) {
    static_cast<void>(driver->cuCtxGetDevice(&owner));
    cuda::CUcontext popped = nullptr;
    static_cast<void>(driver->cuCtxPopCurrent_v2(&popped));
  }
  const cuda::DeviceInfo* info = nullptr;
  TEGULA_RETURN_IF_ERROR(cuda::device_info(device.index, info));
  if (owner == info->device) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "execution.stream: belongs to a context of cuda:%" PRId32
                " that is not its primary one, which the runtime API uses",
                device.index);
  }
  return fail(TEGULA_INVALID_ARGUMENT, "execution.stream: belongs to cuda:%d, not to cuda:%" PRId32,
              owner, device.index);
}

}  // namespace tegula
