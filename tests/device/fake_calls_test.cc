// SPDX-License-Identifier: Apache-2.0
// Calls on GPUs that are not there: what is checked before a kernel runs, and that the caller's
// context stays what it was. ctest gives these tests a fake driver with two GPUs.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <tegula/tegula.h>

#include "tests/cases/forward_device.hpp"
#include "tests/device/fake/fake_gpu.hpp"

namespace tegula::cases {
namespace {

Case some_case() {
  Case item;
  item.id = "some";
  item.q_dtype = item.kv_dtype = item.o_dtype = TEGULA_BF16;
  item.num_heads_q = 4;
  item.num_heads_kv = 2;
  item.seqlens_q = {5, 3};
  item.seqlens_k = {9, 7};
  item.ragged_q = true;
  item.layout_k = LayoutK::kRagged;
  item.seqused_k = true;
  item.slack_k = 2;
  item.sink = true;
  return item;
}

struct PlanDeleter {
  void operator()(tegula_plan* plan) const { tegula_plan_destroy(plan); }
};
using PlanPointer = std::unique_ptr<tegula_plan, PlanDeleter>;

PlanPointer plan_of(const ForwardData& data, const tegula_forward_args& args,
                    const tegula_device& device) {
  tegula_problem problem;
  EXPECT_EQ(data.problem(args, &problem), TEGULA_OK) << tegula_last_error();
  tegula_plan* plan = nullptr;
  EXPECT_EQ(tegula_plan_create(&problem, &device, &plan), TEGULA_OK) << tegula_last_error();
  return PlanPointer(plan);
}

class FakeGpu : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(fake::control().current_depth(), depth_) << "a context was left behind";
  }

  int depth_ = fake::control().current_depth();
  Gpu gpu_{0};
};

TEST_F(FakeGpu, DescribesItself) {
  tegula_device device;
  ASSERT_EQ(tegula_cuda_device_init(&device, 1), TEGULA_OK) << tegula_last_error();
  EXPECT_EQ(device.struct_size, sizeof device);
  EXPECT_EQ(device.kind, TEGULA_CUDA);
  EXPECT_EQ(device.index, 1);
  EXPECT_EQ(device.compute_capability, 90);
  EXPECT_EQ(device.num_sms, 132);
  EXPECT_NE(tegula_cuda_device_init(&device, 2), TEGULA_OK);
  EXPECT_NE(std::string(tegula_last_error()).find("2"), std::string::npos) << tegula_last_error();
  EXPECT_EQ(tegula_cuda_device_init(&device, -1), TEGULA_INVALID_ARGUMENT);
  EXPECT_STREQ(tegula_last_error(), "device.index: -1 is less than 0");
}

TEST_F(FakeGpu, Capabilities) {
  const auto value_of = [](const tegula_device* device, const char* name) {
    int64_t value = -1;
    EXPECT_EQ(tegula_capability(device, name, &value), TEGULA_OK) << tegula_last_error();
    return value;
  };
  EXPECT_EQ(value_of(nullptr, "cuda"), 1);
  EXPECT_EQ(value_of(nullptr, "cuda.devices"), 2);
  EXPECT_EQ(value_of(&gpu_.device(), "forward"), 1);
  EXPECT_EQ(value_of(&gpu_.device(), "append_kv"), 0);
  EXPECT_EQ(value_of(&gpu_.device(), "combine"), 0);
  EXPECT_EQ(value_of(&gpu_.device(), "head_dim.max"), 256);
  EXPECT_EQ(value_of(&gpu_.device(), "num_splits.max"), 1);
  EXPECT_EQ(value_of(nullptr, "head_dim.max"), 512) << "the CPU's";
}

// What a test may spoil.
struct Call {
  ForwardData data{some_case(), Placement::kAligned, kPoison};
  Gpu& gpu;
  DeviceForward device;
  tegula_forward_args args;
  tegula_execution execution;
  PlanPointer plan;
  std::vector<std::unique_ptr<tegula_tensor>> tensors;
  std::vector<std::unique_ptr<tegula_index>> indices;

  explicit Call(Gpu& on) : gpu(on), device(on, data, Placement::kAligned, true) {
    args = device.args();
    tegula_execution_init(&execution);
    plan = plan_of(data, args, gpu.device());
  }
  // A copy of one of args' tensors, to be changed.
  tegula_tensor& change(const tegula_tensor*& slot) {
    tensors.push_back(std::make_unique<tegula_tensor>(*slot));
    slot = tensors.back().get();
    return *tensors.back();
  }
  tegula_index& change(const tegula_index*& slot) {
    indices.push_back(std::make_unique<tegula_index>(*slot));
    slot = indices.back().get();
    return *indices.back();
  }
};

struct BadCall {
  const char* name;
  void (*spoil)(Call&);
  tegula_status status;
  const char* text;  // what the message holds
};

void PrintTo(const BadCall& bad, std::ostream* out) {
  *out << bad.name;
}

// On the second GPU.
void* memory_of_other(std::size_t bytes) {
  static Gpu* const other = new Gpu(1);
  static std::vector<DeviceBlock>* const blocks = new std::vector<DeviceBlock>;
  blocks->emplace_back(*other, bytes, Placement::kAligned);
  return blocks->back().data();
}

cuda::CUstream stream_of_other() {
  static Gpu* const other = new Gpu(1);
  static GpuStream* const stream = new GpuStream(*other);
  return stream->get();
}

// Of the first GPU, in a context that is not its primary one.
cuda::CUstream stream_of_second_context() {
  const cuda::Driver* driver = nullptr;
  EXPECT_TRUE(cuda::find_driver(driver).ok());
  void* const library = dlopen(driver->path.c_str(), RTLD_NOW | RTLD_LOCAL);
  using Create = cuda::CUresult (*)(cuda::CUcontext*, unsigned, cuda::CUdevice);
  const auto create = reinterpret_cast<Create>(dlsym(library, "cuCtxCreate_v2"));
  cuda::CUcontext context = nullptr, popped = nullptr;
  cuda::CUstream stream = nullptr;
  EXPECT_EQ(create(&context, 0, 0), cuda::CUDA_SUCCESS);
  EXPECT_EQ(driver->cuStreamCreate(&stream, 0), cuda::CUDA_SUCCESS);
  EXPECT_EQ(driver->cuCtxPopCurrent_v2(&popped), cuda::CUDA_SUCCESS);
  return stream;
}

alignas(64) unsigned char host_memory[1 << 20];

// A host copy with one value changed.
void spoil_copy(Call& call, const tegula_index*& slot, std::size_t entry, int32_t value) {
  static std::vector<std::unique_ptr<std::vector<int32_t>>>* const kept =
      new std::vector<std::unique_ptr<std::vector<int32_t>>>;
  tegula_index& index = call.change(slot);
  const auto* from = static_cast<const int32_t*>(index.host);
  kept->push_back(std::make_unique<std::vector<int32_t>>(from, from + index.tensor.shape[0]));
  (*kept->back())[entry] = value;
  index.host = kept->back()->data();
}

constexpr tegula_status kValue = TEGULA_INVALID_ARGUMENT, kType = TEGULA_WRONG_TYPE;

const BadCall kBadCalls[] = {
    {"q_on_host", [](Call& c) { c.change(c.args.q).data = host_memory; }, kType,
     " is memory of the host, not memory of cuda:0"},
    {"o_pinned", [](Call& c) { c.change(c.args.o).data = fake::control().pinned_host(1 << 16); },
     kType, " is pinned memory of the host, not memory of cuda:0"},
    {"k_on_other_gpu", [](Call& c) { c.change(c.args.k).data = memory_of_other(1 << 16); }, kType,
     " is memory of cuda:1, not of cuda:0"},
    {"k_says_other_gpu", [](Call& c) { c.change(c.args.k).device_index = 1; }, kType,
     "k: device cuda:1 differs from q: device cuda:0"},
    {"lse_says_cpu", [](Call& c) { c.change(c.args.lse).device_kind = TEGULA_CPU; }, kType,
     "lse: device cpu differs from q: device cuda:0"},
    {"sink_on_host", [](Call& c) { c.change(c.args.sink).data = host_memory; }, kType,
     "sink: the address"},
    {"offsets_say_cpu",
     [](Call& c) { c.change(c.args.cu_seqlens_q).tensor.device_kind = TEGULA_CPU; }, kType,
     "cu_seqlens_q: device cpu differs from q: device cuda:0"},
    {"offsets_on_host", [](Call& c) { c.change(c.args.cu_seqlens_q).tensor.data = host_memory; },
     kType, "cu_seqlens_q: the address"},
    {"stream_of_other_gpu", [](Call& c) { c.execution.stream = stream_of_other(); }, kValue,
     "execution.stream: belongs to cuda:1, not to cuda:0"},
    {"stream_of_second_context", [](Call& c) { c.execution.stream = stream_of_second_context(); },
     kValue, "execution.stream: belongs to a context of cuda:0 that is not its primary one"},
    {"workspace_on_host",
     [](Call& c) {
       c.execution.workspace = host_memory;
       c.execution.workspace_size = sizeof host_memory;
     },
     kType, "execution.workspace: the address"},
    {"error_word_on_host",
     [](Call& c) { c.execution.error_word = reinterpret_cast<int32_t*>(host_memory); }, kType,
     "execution.error_word: the address"},
    {"error_word_misaligned",
     [](Call& c) {
       c.execution.error_word =
           reinterpret_cast<int32_t*>(reinterpret_cast<uintptr_t>(c.device.error_word()) + 2);
     },
     kValue, "execution.error_word: the address is 2 past a multiple of 4 bytes"},
    {"q_less_aligned_than_planned", [](Call& c) { c.change(c.args.q).byte_offset += 2; }, kValue,
     "q: the address is 2 past a multiple of 16 bytes"},
    {"k_stride_below_the_plan", [](Call& c) { c.change(c.args.k).strides[0] += 1; }, kValue,
     "below the class of the plan's problem"},
    {"offsets_decrease", [](Call& c) { spoil_copy(c, c.args.cu_seqlens_q, 2, 1); }, kValue,
     "cu_seqlens_q: entry 2 is 1, less than 5 before it"},
    {"offsets_decrease_alone",
     [](Call& c) {
       spoil_copy(c, c.args.cu_seqlens_q, 2, 1);
       c.change(c.args.seqused_k).host = nullptr;
     },
     kValue, "cu_seqlens_q: entry 2 is 1, less than 5 before it"},
    {"length_beyond_its_slot", [](Call& c) { spoil_copy(c, c.args.seqused_k, 1, 99); }, kValue,
     "99 of sequence 1"},
    {"length_beyond_the_hint",
     [](Call& c) {
       tegula_problem problem;
       ASSERT_EQ(c.data.problem(c.args, &problem), TEGULA_OK);
       problem.max_seqlen_q = 4;
       tegula_plan* plan = nullptr;
       ASSERT_EQ(tegula_plan_create(&problem, &c.gpu.device(), &plan), TEGULA_OK);
       c.plan.reset(plan);
     },
     kValue, "max_seqlen_q: 4 is less than 5, the length of sequence 0"},
};

class FakeGpuBad : public FakeGpu, public ::testing::WithParamInterface<BadCall> {};

TEST_P(FakeGpuBad, CallIsRefused) {
  Call call(gpu_);
  GetParam().spoil(call);
  const long long launches = fake::control().num_calls("cuLaunchKernelEx");
  EXPECT_EQ(tegula_forward(call.plan.get(), &call.args, &call.execution), GetParam().status);
  EXPECT_NE(std::string(tegula_last_error()).find(GetParam().text), std::string::npos)
      << tegula_last_error();
  EXPECT_EQ(fake::control().num_calls("cuLaunchKernelEx"), launches);
  call.device.download_outputs();
  EXPECT_EQ(call.data.untouched(), "");
}

INSTANTIATE_TEST_SUITE_P(Calls, FakeGpuBad, ::testing::ValuesIn(kBadCalls),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_F(FakeGpu, CpuTensorsAndAPlanForAGpu) {
  const ForwardData data(some_case(), Placement::kAligned, kPoison);
  Call call(gpu_);
  EXPECT_EQ(tegula_forward(call.plan.get(), &data.args(), nullptr), TEGULA_WRONG_TYPE);
  EXPECT_STREQ(tegula_last_error(), "q: device cpu differs from the call's cuda:0");
  EXPECT_EQ(data.untouched(), "");
}

TEST_F(FakeGpu, CaptureOfAnUnpreparedPlanIsRefused) {
  Call call(gpu_);
  call.execution.stream = call.device.stream().get();
  cuda::CUgraph graph = nullptr;
  check_gpu(gpu_.driver().cuStreamBeginCapture_v2(call.device.stream().get(),
                                                  cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
            "cuStreamBeginCapture");
  EXPECT_EQ(tegula_forward(call.plan.get(), &call.args, &call.execution), TEGULA_INVALID_ARGUMENT);
  EXPECT_STREQ(
      tegula_last_error(),
      "execution.stream: is being captured, but the plan is not prepared (tegula_prepare)");
  check_gpu(gpu_.driver().cuStreamEndCapture(call.device.stream().get(), &graph), "end of capture");
  check_gpu(gpu_.driver().cuGraphDestroy(graph), "cuGraphDestroy");
}

TEST_F(FakeGpu, APlanForAnotherArchitectureIsRefusedWhenPrepared) {
  // Planned without a look at the GPU, which is an sm_80 in ctest's other run of these tests.
  tegula_device device = gpu_.device();
  device.compute_capability = 90;
  const ForwardData data(some_case(), Placement::kAligned, kPoison);
  const PlanPointer plan = plan_of(data, data.args(), device);
  ASSERT_NE(plan, nullptr);
  if (gpu_.device().compute_capability == 90) GTEST_SKIP() << "FAKE_CUDA_ARCH is 90";
  EXPECT_EQ(tegula_prepare(plan.get()), TEGULA_INVALID_ARGUMENT);
  EXPECT_STREQ(tegula_last_error(),
               "device: the plan is for sm_90, but cuda:0 (Fake GPU 0) is sm_80");
}

// A fault of the driver: the status and the words that name it, and nothing left behind.
TEST_F(FakeGpu, FaultsOfTheDriver) {
  Call call(gpu_);
  const auto expect_failure = [&](const char* symbol, cuda::CUresult fault, tegula_status status) {
    fake::control().fail(symbol, fault, 1, 1);
    EXPECT_EQ(tegula_forward(call.plan.get(), &call.args, &call.execution), status) << symbol;
    const std::string text = tegula_last_error();
    EXPECT_NE(text.find("CUDA_ERROR"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  };
  expect_failure("cuPointerGetAttributes", cuda::CUDA_ERROR_ILLEGAL_ADDRESS, TEGULA_DEVICE_ERROR);
  call.execution.stream = call.device.stream().get();
  expect_failure("cuStreamGetCtx", cuda::CUDA_ERROR_INVALID_CONTEXT, TEGULA_DEVICE_ERROR);
  call.execution.stream = nullptr;
  expect_failure("cuCtxPushCurrent_v2", cuda::CUDA_ERROR_OUT_OF_MEMORY, TEGULA_OUT_OF_MEMORY);
  call.device.download_outputs();
  EXPECT_EQ(call.data.untouched(), "");
}

// A server's list: every kernel is loaded once, and a failure names its problem.
TEST_F(FakeGpu, WarmUpLoadsTheKernelsOfAllProblems) {
  tegula_problem problems[3];
  const tegula_problem* pointers[3];
  for (int i = 0; i < 3; ++i) {
    Case item;
    item.id = "warm up";
    item.q_dtype = item.kv_dtype = item.o_dtype = TEGULA_F16;
    item.head_dim = item.head_dim_v = 96;  // of no other test here
    item.seqlens_q = item.seqlens_k = {5};
    item.causal = i == 1;
    ForwardData data(item, Placement::kAligned, kPoison);
    DeviceForward device(gpu_, data, Placement::kAligned);
    ASSERT_EQ(data.problem(device.args(), &problems[i]), TEGULA_OK) << tegula_last_error();
    pointers[i] = &problems[i];
  }
  const long long before = fake::control().num_calls("cuModuleLoadDataEx");
  fake::control().fail("cuModuleLoadDataEx", cuda::CUDA_ERROR_OUT_OF_MEMORY, 1, 4);
  EXPECT_EQ(tegula_warm_up(pointers, 3, &gpu_.device()), TEGULA_OUT_OF_MEMORY);
  EXPECT_NE(std::string(tegula_last_error()).find("problems[0]: "), std::string::npos)
      << tegula_last_error();
  fake::control().fail("cuModuleLoadDataEx", cuda::CUDA_SUCCESS, 1, 1);  // none from here on
  EXPECT_EQ(tegula_warm_up(pointers, 3, &gpu_.device()), TEGULA_OK) << tegula_last_error();
  const long long loaded = fake::control().num_calls("cuModuleLoadDataEx");
  EXPECT_GT(loaded, before + 2);
  EXPECT_EQ(tegula_warm_up(pointers, 3, &gpu_.device()), TEGULA_OK);
  EXPECT_EQ(fake::control().num_calls("cuModuleLoadDataEx"), loaded);
}

}  // namespace
}  // namespace tegula::cases
