// SPDX-License-Identifier: Apache-2.0
// Plans for a GPU that is described by hand: no driver is asked, so they are the same on a machine
// without one.
#include "tests/unit/api/call_fixture.hpp"

namespace {

using namespace tegula_test;

tegula_device hopper() {
  tegula_device device;
  EXPECT_EQ(tegula_device_init(&device), TEGULA_OK);
  device.kind = TEGULA_CUDA;
  device.compute_capability = 90;
  device.num_sms = 132;
  return device;
}

// bf16, head_dim 8, head_dim_v 16.
struct CudaFixture : ForwardFixture {
  explicit CudaFixture(Layout layout) : ForwardFixture(layout, TEGULA_BF16) {
    EXPECT_EQ(describe(), TEGULA_OK) << tegula_last_error();
  }
};

std::string refusal_of(const tegula_problem& problem, const tegula_device& device) {
  tegula_plan* plan = nullptr;
  if (tegula_plan_create(&problem, &device, &plan) == TEGULA_OK) {
    tegula_plan_destroy(plan);
    return "";
  }
  EXPECT_EQ(plan, nullptr);
  return tegula_last_error();
}

TEST(CudaPlan, NeedsNoGpu) {
  const CudaFixture f(Layout::kRagged);
  const tegula_device device = hopper();
  const PlanHandle plan = make_plan(f.problem, &device);
  ASSERT_NE(plan, nullptr);
  tegula_plan_info info;
  ASSERT_EQ(tegula_plan_info_init(&info), TEGULA_OK);
  ASSERT_EQ(tegula_plan_get_info(plan.get(), &info), TEGULA_OK);
  EXPECT_STREQ(info.implementation, "cuda_forward_sm90");
  EXPECT_EQ(info.device_kind, TEGULA_CUDA);
  EXPECT_EQ(info.num_splits, 1);
  EXPECT_GE(info.tile_m, 64);
  EXPECT_GE(info.tile_n, 64);
  size_t needed = 0;
  ASSERT_EQ(tegula_explain(plan.get(), nullptr, 0, &needed), TEGULA_OK);
  std::string text(needed, '\0');
  ASSERT_EQ(tegula_explain(plan.get(), text.data(), text.size(), nullptr), TEGULA_OK);
  for (const char* words : {"cuda_forward_sm90", "cuda:0, sm_90, 132 SMs", "tile_m", "scratch"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  }
}

TEST(CudaPlan, ACpuPlanNamesTheGpuFirst) {
  const CudaFixture f(Layout::kDense);
  const PlanHandle plan = make_plan(f.problem);
  std::string text(4096, '\0');
  ASSERT_EQ(tegula_explain(plan.get(), text.data(), text.size(), nullptr), TEGULA_OK);
  EXPECT_NE(text.find("not cuda_forward_sm90 the device is not a GPU"), std::string::npos) << text;
}

// contract.md, 2: no plan moves a call to another device.
TEST(CudaPlan, RefusesByNameWhatNoKernelDoes) {
  const struct {
    const char* what;
    Layout layout;
    void (*change)(tegula_problem&);
    const char* text;
  } table[] = {
      {"fp32", Layout::kDense,
       [](tegula_problem& p) { p.q_dtype = p.kv_dtype = p.o_dtype = TEGULA_F32; }, "f32"},
      {"a cache of another type", Layout::kDense,
       [](tegula_problem& p) { p.kv_dtype = TEGULA_F16; }, "f16"},
      {"an 8-bit cache", Layout::kDense, [](tegula_problem& p) { p.kv_dtype = TEGULA_E4M3; },
       "e4m3"},
      {"a larger head_dim", Layout::kDense, [](tegula_problem& p) { p.head_dim = 264; }, "264"},
      {"an odd head_dim", Layout::kDense, [](tegula_problem& p) { p.head_dim = 20; }, "20"},
      {"a larger head_dim_v", Layout::kDense, [](tegula_problem& p) { p.head_dim_v = 264; }, "264"},
      {"pages", Layout::kPaged, [](tegula_problem&) {}, "paged"},
      {"splits", Layout::kDense, [](tegula_problem& p) { p.num_splits = 2; }, "num_splits"},
      {"fixed splits", Layout::kDense, [](tegula_problem& p) { p.fixed_split = 64; },
       "fixed_split"},
      {"a bias", Layout::kDense,
       [](tegula_problem& p) {
         p.operands |= TEGULA_HAS_BIAS;
         p.bias_dtype = TEGULA_F32;
       },
       "bias"},
  };
  for (const auto& row : table) {
    CudaFixture f(row.layout);
    row.change(f.problem);
    const std::string text = refusal_of(f.problem, hopper());
    EXPECT_NE(text.find("device: cuda:0 has no implementation for this: "), std::string::npos)
        << row.what << ": " << text;
    EXPECT_NE(text.find(row.text), std::string::npos) << row.what << ": " << text;
  }
}

TEST(CudaPlan, OtherArchitecturesAreRefused) {
  const CudaFixture f(Layout::kDense);
  for (const int32_t arch : {80, 89, 100, 120}) {
    tegula_device device = hopper();
    device.compute_capability = arch;
    EXPECT_EQ(refusal_of(f.problem, device), "device: cuda:0 has no implementation for this: sm_" +
                                                 std::to_string(arch) +
                                                 " is not served: sm_90 (H100, H200) is");
  }
}

TEST(CudaDevice, ChecksWhatIsFilledIn) {
  const CudaFixture f(Layout::kDense);
  tegula_device device = hopper();
  device.num_sms = 0;
  EXPECT_EQ(refusal_of(f.problem, device),
            "device.num_sms: 0 is less than 1 beside compute_capability 90");
  device = hopper();
  device.compute_capability = 9;
  EXPECT_EQ(refusal_of(f.problem, device),
            "device.compute_capability: 9 is not 10 * major + minor (90: sm_90)");
  device = hopper();
  device.num_workers = 0;  // of the CPU
  EXPECT_EQ(refusal_of(f.problem, device), "");
}

// Callers compiled against the first release: their structures end before the new fields.
TEST(CudaDevice, OlderStructuresAreTaken) {
  ForwardFixture f(Layout::kDense, TEGULA_BF16);
  ASSERT_EQ(tegula_problem_init_sized(&f.problem, offsetof(tegula_problem, unaligned)), TEGULA_OK);
  f.problem.unaligned = 0xffffffff;  // behind the caller's structure
  ASSERT_EQ(f.describe(), TEGULA_OK) << tegula_last_error();
  EXPECT_EQ(f.problem.unaligned, 0xffffffff) << "written past the caller's structure";
  tegula_device device;
  ASSERT_EQ(tegula_device_init_sized(&device, offsetof(tegula_device, compute_capability)),
            TEGULA_OK);
  device.compute_capability = device.num_sms = -1;
  EXPECT_NE(make_plan(f.problem, &device), nullptr);
}

// TEGULA_UNALIGNED_*: what bulk tensor copies cannot move.
TEST(CudaAlignment, IsDescribed) {
  const auto described = [](void (*spoil)(ForwardFixture&)) {
    ForwardFixture f(Layout::kDense, TEGULA_BF16);
    for (Operand* operand : {&f.q, &f.k, &f.v, &f.o, &f.lse}) {
      operand->tensor.device_kind = TEGULA_CUDA;
    }
    spoil(f);
    EXPECT_EQ(f.describe(), TEGULA_OK) << tegula_last_error();
    return f.problem.unaligned;
  };
  EXPECT_EQ(described([](ForwardFixture&) {}), 0u);
  EXPECT_EQ(described([](ForwardFixture& f) { f.q.tensor.byte_offset = 2; }), TEGULA_UNALIGNED_Q);
  EXPECT_EQ(described([](ForwardFixture& f) { f.k.tensor.strides[1] = 2 * 8 + 1; }),
            TEGULA_UNALIGNED_K);
  EXPECT_EQ(described([](ForwardFixture& f) { f.v.tensor.strides[2] = 0; }), TEGULA_UNALIGNED_V);
  EXPECT_EQ(described([](ForwardFixture& f) { f.k.tensor.strides[0] = int64_t{1} << 39; }),
            TEGULA_UNALIGNED_K);
  EXPECT_EQ(described([](ForwardFixture& f) {
              f.o.tensor.byte_offset = 8;
              f.q.tensor.data = nullptr;  // not known yet
            }),
            TEGULA_UNALIGNED_O);
  EXPECT_EQ(described([](ForwardFixture& f) {
              for (Operand* operand : {&f.q, &f.k, &f.v, &f.o, &f.lse})
                operand->tensor.device_kind = TEGULA_CPU;
              f.q.tensor.byte_offset = 2;
            }),
            0u)
      << "of no account on the CPU";
}

TEST(CudaAlignment, ChoosesTheLoads) {
  const auto explained = [](uint32_t unaligned) {
    CudaFixture f(Layout::kDense);
    f.problem.unaligned = unaligned;
    const tegula_device device = hopper();
    const PlanHandle plan = make_plan(f.problem, &device);
    std::string text(4096, '\0');
    EXPECT_EQ(tegula_explain(plan.get(), text.data(), text.size(), nullptr), TEGULA_OK);
    return text;
  };
  EXPECT_NE(explained(0).find("bulk tensor copies (TMA)"), std::string::npos);
  EXPECT_NE(explained(TEGULA_UNALIGNED_O).find("bulk tensor copies (TMA)"), std::string::npos);
  EXPECT_NE(explained(TEGULA_UNALIGNED_K).find("loads           by threads"), std::string::npos);
}

TEST(CudaAlignment, UnknownBitsAreRefused) {
  CudaFixture f(Layout::kDense);
  f.problem.unaligned = 16;
  EXPECT_EQ(refusal_of(f.problem, hopper()), "unaligned: 0x10 has bits beyond the known 0xf");
}

// On the CPU there is nothing to prepare; a refused problem is named by its number.
TEST(WarmUp, TakesAList) {
  ForwardFixture a(Layout::kDense), b(Layout::kPaged);
  ASSERT_EQ(a.describe(), TEGULA_OK);
  ASSERT_EQ(b.describe(), TEGULA_OK);
  const tegula_problem* problems[] = {&a.problem, &b.problem};
  EXPECT_EQ(tegula_warm_up(problems, 2, nullptr), TEGULA_OK) << tegula_last_error();
  EXPECT_EQ(tegula_warm_up(nullptr, 0, nullptr), TEGULA_OK);
  EXPECT_EQ(tegula_warm_up(nullptr, 1, nullptr), TEGULA_INVALID_ARGUMENT);
  EXPECT_STREQ(tegula_last_error(), "problems: is NULL, but count is 1");
  b.problem.softcap = -1;
  EXPECT_EQ(tegula_warm_up(problems, 2, nullptr), TEGULA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(tegula_last_error()).rfind("problems[1]: softcap: -1 is not", 0), 0u)
      << tegula_last_error();
  problems[0] = nullptr;
  EXPECT_EQ(tegula_warm_up(problems, 2, nullptr), TEGULA_INVALID_ARGUMENT);
  EXPECT_STREQ(tegula_last_error(), "problems[0]: problem: is NULL");
}

}  // namespace
