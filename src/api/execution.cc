// SPDX-License-Identifier: Apache-2.0
// Where and with what a call runs: tegula_device and tegula_execution.
#include "src/api/api.hpp"
#include "src/api/check.hpp"
#include "src/plan/plan.hpp"

namespace tegula::api {

namespace {

Status check_cpu_device(const tegula_device& device) {
  if (device.isa < TEGULA_ISA_AUTO || device.isa > TEGULA_ISA_AMX_MODEL) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "device.isa: %" PRId32 " is not within 0 (auto) and %d (amx_model)", device.isa,
                TEGULA_ISA_AMX_MODEL);
  }
  if (device.num_workers < 1) {
    return fail(TEGULA_INVALID_ARGUMENT, "device.num_workers: %" PRId32 " is less than 1",
                device.num_workers);
  }
  return {};
}

// What the caller left to the driver is asked of it.
Status resolve_cuda_device(tegula_device& device) {
  device.isa = TEGULA_ISA_AUTO;
  device.num_workers = 1;
  if (device.compute_capability == 0) return describe_cuda(device);
  // 10 * major + minor, and no major has more than one digit more than today's.
  if (device.compute_capability < 10 || device.compute_capability > 999) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "device.compute_capability: %" PRId32 " is not 10 * major + minor (90: sm_90)",
                device.compute_capability);
  }
  if (device.num_sms < 1) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "device.num_sms: %" PRId32 " is less than 1 beside compute_capability %" PRId32,
                device.num_sms, device.compute_capability);
  }
  return {};
}

Status check_executor(const tegula_executor& given, const tegula_device* device) {
  tegula_executor executor;
  TEGULA_RETURN_IF_ERROR(read_struct("execution.executor", &given, executor));
  if (executor.parallel_for == nullptr) {
    return fail(TEGULA_INVALID_ARGUMENT, "execution.executor: parallel_for is NULL");
  }
  if (executor.num_workers < 1) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "execution.executor: num_workers %" PRId32 " is less than 1", executor.num_workers);
  }
  if (device != nullptr && device->kind == TEGULA_CPU &&
      executor.num_workers > device->num_workers) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "execution.executor: num_workers %" PRId32 " is more than the plan's %" PRId32,
                executor.num_workers, device->num_workers);
  }
  return {};
}

}  // namespace

Status resolve_device(const tegula_device* given, tegula_device& device) {
  if (given == nullptr) {
    device = tegula_device{};
    device.struct_size = sizeof device;
    return describe_cpu(device);
  }
  TEGULA_RETURN_IF_ERROR(read_struct("device", given, device));
  if (device.kind != TEGULA_CPU && device.kind != TEGULA_CUDA) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "device.kind: %" PRId32 " is not TEGULA_CPU (1) or TEGULA_CUDA (2)", device.kind);
  }
  if (device.index < 0)
    return fail(TEGULA_INVALID_ARGUMENT, "device.index: %" PRId32 " is less than 0", device.index);
  if (device.tuning != nullptr) {
    return fail(TEGULA_UNSUPPORTED,
                "device.tuning: is not NULL; calibrated tables are not supported by version %d.%d",
                TEGULA_VERSION_MAJOR, TEGULA_VERSION_MINOR);
  }
  return device.kind == TEGULA_CPU ? check_cpu_device(device) : resolve_cuda_device(device);
}

Status resolve_execution(const tegula_execution* given, const tegula_device* device,
                         Execution& execution) {
  execution = Execution{};
  if (given == nullptr) return {};
  tegula_execution known;
  TEGULA_RETURN_IF_ERROR(read_struct("execution", given, known));
  if (known.executor != nullptr) {
    TEGULA_RETURN_IF_ERROR(check_executor(*known.executor, device));
  }
  if (known.workspace == nullptr && known.workspace_size != 0) {
    return fail(TEGULA_INVALID_ARGUMENT, "execution.workspace: is NULL, but workspace_size is %zu",
                known.workspace_size);
  }
  // What every allocator gives; scratch holds pointers.
  constexpr uintptr_t kAlignment = 16;
  if (const uintptr_t past = reinterpret_cast<uintptr_t>(known.workspace) % kAlignment; past != 0) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "execution.workspace: the address is %zu past a multiple of %zu bytes",
                static_cast<size_t>(past), static_cast<size_t>(kAlignment));
  }
  execution.executor = known.executor;
  execution.stream = known.stream;
  execution.workspace = known.workspace;
  execution.workspace_size = known.workspace_size;
  execution.error_word = known.error_word;
  return {};
}

Status check_cuda_execution(const Execution& execution, const tegula_device& device) {
  TEGULA_RETURN_IF_ERROR(check_cuda_stream(execution.stream, device));
  if (execution.workspace != nullptr) {
    TEGULA_RETURN_IF_ERROR(check_cuda_address("execution.workspace", execution.workspace, device));
  }
  if (execution.error_word == nullptr) return {};
  if (const uintptr_t past = reinterpret_cast<uintptr_t>(execution.error_word) % sizeof(int32_t);
      past != 0) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "execution.error_word: the address is %zu past a multiple of %zu bytes",
                static_cast<size_t>(past), sizeof(int32_t));
  }
  return check_cuda_address("execution.error_word", execution.error_word, device);
}

}  // namespace tegula::api
