// SPDX-License-Identifier: Apache-2.0
// Names, error text, capabilities, messages, memory.
#include "src/core/log.hpp"

#include <thread>

#include "tests/unit/api/call_fixture.hpp"

namespace {

using namespace tegula_test;

TEST(Library, Names) {
  EXPECT_STREQ(tegula_status_name(TEGULA_OK), "ok");
  EXPECT_STREQ(tegula_status_name(TEGULA_INVALID_ARGUMENT), "invalid argument");
  EXPECT_STREQ(tegula_status_name(TEGULA_WRONG_TYPE), "wrong type");
  EXPECT_STREQ(tegula_status_name(TEGULA_UNSUPPORTED), "unsupported");
  EXPECT_STREQ(tegula_status_name(TEGULA_OUT_OF_MEMORY), "out of memory");
  EXPECT_STREQ(tegula_status_name(TEGULA_DEVICE_ERROR), "device error");
  EXPECT_STREQ(tegula_status_name(TEGULA_INTERNAL_ERROR), "internal error");
  EXPECT_STREQ(tegula_status_name(99), "?");
  const struct {
    int32_t dtype;
    const char* name;
    size_t size;
  } dtypes[] = {{TEGULA_DTYPE_NONE, "none", 0},
                {TEGULA_F32, "f32", 4},
                {TEGULA_F16, "f16", 2},
                {TEGULA_BF16, "bf16", 2},
                {TEGULA_E4M3, "e4m3", 1},
                {TEGULA_E5M2, "e5m2", 1},
                {TEGULA_BOOL, "bool", 1},
                {TEGULA_I32, "i32", 4},
                {TEGULA_I64, "i64", 8},
                {9, "?", 0},
                {-1, "?", 0}};
  for (const auto& dtype : dtypes) {
    EXPECT_STREQ(tegula_dtype_name(dtype.dtype), dtype.name);
    EXPECT_EQ(tegula_dtype_size(dtype.dtype), dtype.size);
  }
  EXPECT_STREQ(tegula_isa_name(TEGULA_ISA_AUTO), "auto");
  EXPECT_STREQ(tegula_isa_name(TEGULA_ISA_AVX512BF16), "avx512bf16");
  EXPECT_STREQ(tegula_isa_name(TEGULA_ISA_AMX), "amx");
  EXPECT_STREQ(tegula_isa_name(TEGULA_ISA_AMX_MODEL), "amx_model");
  EXPECT_STREQ(tegula_isa_name(-3), "?");
}

TEST(Library, Version) {
  EXPECT_EQ(tegula_version(),
            TEGULA_VERSION_MAJOR * 10000 + TEGULA_VERSION_MINOR * 100 + TEGULA_VERSION_PATCH);
  EXPECT_EQ(tegula_abi_version(), TEGULA_ABI_VERSION);
}

TEST(LastError, IsThatOfTheThreadAndItsLastCall) {
  EXPECT_EQ(tegula_prepare(nullptr), TEGULA_INVALID_ARGUMENT);
  EXPECT_STREQ(tegula_last_error(), "plan: is NULL");
  EXPECT_STREQ(tegula_last_error(), "plan: is NULL") << "asking changes nothing";
  std::thread([] {
    EXPECT_STREQ(tegula_last_error(), "");
    EXPECT_EQ(tegula_problem_init(nullptr), TEGULA_INVALID_ARGUMENT);
    EXPECT_STREQ(tegula_last_error(), "problem: is NULL");
  }).join();
  EXPECT_STREQ(tegula_last_error(), "plan: is NULL");
  tegula_problem problem;
  EXPECT_EQ(tegula_problem_init(&problem), TEGULA_OK);
  EXPECT_STREQ(tegula_last_error(), "");
}

TEST(Capability, EveryDocumentedNameIsKnown) {
  const auto value_of = [](const char* name) {
    int64_t value = -1;
    EXPECT_EQ(tegula_capability(nullptr, name, &value), TEGULA_OK) << tegula_last_error();
    return value;
  };
  EXPECT_EQ(value_of("isa.scalar"), 3);
  EXPECT_EQ(value_of("isa.amx_model"), 3);
  for (const char* name : {"isa.avx2", "isa.avx512", "isa.avx512bf16", "isa.amx"}) {
    EXPECT_GE(value_of(name), 0);
    EXPECT_LE(value_of(name), 3);
  }
  EXPECT_GE(value_of("cuda"), 0);
  EXPECT_LE(value_of("cuda"), 1);
  EXPECT_GE(value_of("cuda.devices"), value_of("cuda"));
  EXPECT_EQ(value_of("forward"), 1);
  EXPECT_EQ(value_of("append_kv"), 1);
  EXPECT_EQ(value_of("combine"), 1);
  EXPECT_EQ(value_of("backward"), 0);
  EXPECT_EQ(value_of("head_dim.max"), 512);
  EXPECT_EQ(value_of("head_dim_v.max"), 512);
  EXPECT_EQ(value_of("num_splits.max"), 1024);
  EXPECT_GE(value_of("num_workers"), 1);
}

// A GPU by its index is what the driver shows, by its architecture what kernels there are for it.
TEST(Capability, OfAGpu) {
  tegula_device device;
  ASSERT_EQ(tegula_device_init(&device), TEGULA_OK);
  device.kind = TEGULA_CUDA;
  const auto value_of = [&device](const char* name) {
    int64_t value = -1;
    EXPECT_EQ(tegula_capability(&device, name, &value), TEGULA_OK) << tegula_last_error();
    EXPECT_STREQ(tegula_last_error(), "");
    return value;
  };
  EXPECT_EQ(value_of("forward"), value_of("cuda"));
  device.compute_capability = 90;
  device.num_sms = 132;
  EXPECT_EQ(value_of("forward"), 1);
  EXPECT_EQ(value_of("head_dim.max"), 256);
  EXPECT_EQ(value_of("combine"), 0);
  device.compute_capability = 80;
  EXPECT_EQ(value_of("forward"), 0);
  EXPECT_EQ(value_of("head_dim.max"), 0);
}

TEST(Capability, UnknownNamesListTheKnownOnes) {
  int64_t value = 42;
  EXPECT_EQ(tegula_capability(nullptr, "tensor_cores", &value), TEGULA_INVALID_ARGUMENT);
  EXPECT_EQ(value, 42);
  EXPECT_STREQ(tegula_last_error(),
               "name: \"tensor_cores\" is not one of isa.scalar, isa.avx2, isa.avx512, "
               "isa.avx512bf16, isa.amx, isa.amx_model, cuda, cuda.devices, forward, append_kv, "
               "combine, backward, head_dim.max, head_dim_v.max, num_splits.max, num_workers");
  EXPECT_EQ(tegula_capability(nullptr, nullptr, &value), TEGULA_INVALID_ARGUMENT);
  EXPECT_STREQ(tegula_last_error(), "name: is NULL");
  EXPECT_EQ(tegula_capability(nullptr, "cuda", nullptr), TEGULA_INVALID_ARGUMENT);
  EXPECT_STREQ(tegula_last_error(), "value: is NULL");
}

TEST(Log, GoesToTheCallbackOrNowhere) {
  std::vector<std::string> lines;
  tegula_set_log_callback(
      [](void* context, const char* message) {
        static_cast<std::vector<std::string>*>(context)->push_back(message);
      },
      &lines);
  tegula::log_message("%d workers", 3);
  tegula_set_log_callback(nullptr, nullptr);
  tegula::log_message("nobody listens");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "3 workers");
}

TEST(Log, TheCallbackMayTurnItselfOff) {
  int calls = 0;
  tegula_set_log_callback(
      [](void* context, const char*) {
        ++*static_cast<int*>(context);
        tegula_set_log_callback(nullptr, nullptr);
      },
      &calls);
  tegula::log_message("one");
  tegula::log_message("two");
  EXPECT_EQ(calls, 1);
}

TEST(TrimMemory, FreesWhatCallsLeft) {
  ASSERT_EQ(tegula_trim_memory(nullptr), TEGULA_OK);
  ForwardFixture f(Layout::kDense);
  ASSERT_EQ(f.describe(), TEGULA_OK);
  const PlanHandle plan = make_plan(f.problem);
  ASSERT_EQ(tegula_forward(plan.get(), &f.args, nullptr), TEGULA_OK);
  tegula_plan_info info;
  ASSERT_EQ(tegula_plan_info_init(&info), TEGULA_OK);
  ASSERT_EQ(tegula_plan_get_info(plan.get(), &info), TEGULA_OK);
  size_t freed = 0;
  ASSERT_EQ(tegula_trim_memory(&freed), TEGULA_OK);
  EXPECT_GE(freed, info.scratch_bytes);
  ASSERT_EQ(tegula_trim_memory(&freed), TEGULA_OK);
  EXPECT_EQ(freed, 0u);
}

}  // namespace
