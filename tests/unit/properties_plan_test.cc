// SPDX-License-Identifier: Apache-2.0
// What must not matter around a call: the caller's floating-point modes, and which of the calls
// that a plan covers comes first.
#include <gtest/gtest.h>

#include <cfenv>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tests/unit/run_util.hpp"

namespace tegula::cases {
namespace {

class PlanProperty : public ::testing::TestWithParam<tegula_isa> {};

INSTANTIATE_TEST_SUITE_P(Cpu, PlanProperty, ::testing::ValuesIn(isas()),
                         [](const auto& instance) { return tegula_isa_name(instance.param); });

// describe, plan and forward with `set` in force; the modes are put back before anything is judged.
template <typename Set>
RunResult run_with_modes(const ForwardData& data, const RunOptions& options, Set set, bool& kept) {
  std::fenv_t before;
  std::fegetenv(&before);
  set();
  const int rounding = std::fegetround();
#if defined(__x86_64__)
  const unsigned modes = _mm_getcsr() & ~0x3fu;  // without the sticky flags
#endif
  RunResult result = run(data, options);
  kept = std::fegetround() == rounding;
#if defined(__x86_64__)
  kept = kept && (_mm_getcsr() & ~0x3fu) == modes;
#endif
  std::fesetenv(&before);
  return result;
}

TEST_P(PlanProperty, RoundingAndDenormalModesChangeNoBit) {
  RunOptions options;
  options.isa = GetParam();
  for (const tegula_dtype dtype : {TEGULA_F32, TEGULA_BF16, TEGULA_F16, TEGULA_E5M2}) {
    Case item = plain(dtype, 9, 70, 4, 2, 40);
    item.sink = true;
    item.causal = true;
    item.num_splits = 2;
    item.softcap = 3.1;  // no fp32 number: the plan rounds it
    ForwardData data(item, Placement::kAligned, kPoison);
    // Denormal keys and values among the others.
    data.v.set(dtype == TEGULA_F32 || dtype == TEGULA_BF16 ? 0x1p-130 : 0x1p-16, 0, 0, 0, 0);
    const std::vector<std::byte> bits = bits_of(data, options);
    bool kept = false;
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      data.refill_outputs(0x5a);
      const RunResult result = run_with_modes(data, options, [mode] { std::fesetround(mode); }, kept);
      ASSERT_EQ(result.error, "");
      EXPECT_TRUE(kept);
      EXPECT_EQ(data.used_bits(), bits) << "rounding mode " << mode;
    }
#if defined(__x86_64__)
    data.refill_outputs(0x5a);
    const RunResult result =
        run_with_modes(data, options, [] { _mm_setcsr(_mm_getcsr() | 0x8040u); }, kept);  // FTZ, DAZ
    ASSERT_EQ(result.error, "");
    EXPECT_TRUE(kept);
    EXPECT_EQ(data.used_bits(), bits) << "denormals flushed";
#endif
  }
}

// A plan made for the largest call serves smaller ones: fewer sequences, shorter ones, empty ones.
TEST_P(PlanProperty, OnePlanServesEveryCallWithinItsMaxima) {
  for (const bool pages : {false, true}) {
    for (const std::int64_t fixed_split : {0, 64}) {
      Case item = plain(TEGULA_BF16, 0, 0, 6, 2, 64);
      item.ragged_q = true;
      item.causal = true;
      item.fixed_split = fixed_split;
      item.layout_k = pages ? LayoutK::kPageTable : LayoutK::kRagged;
      item.page_size = pages ? 16 : 0;
      item.seqused_k = pages;
      item.seqlens_q = {40, 40, 40, 40};
      item.seqlens_k = {700, 700, 700, 700};
      const ForwardData largest(item, Placement::kAligned, kPoison);
      tegula_problem problem{};
      ASSERT_EQ(largest.problem(&problem), TEGULA_OK) << tegula_last_error();
      tegula_device device{};
      tegula_device_init(&device);
      device.isa = GetParam();
      tegula_plan* plan = nullptr;
      ASSERT_EQ(tegula_plan_create(&problem, &device, &plan), TEGULA_OK) << tegula_last_error();
      const std::unique_ptr<tegula_plan, void (*)(tegula_plan*)> owner(plan, tegula_plan_destroy);
      const std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> calls[] = {
          {{1, 1, 1, 1}, {700, 3, 64, 65}}, {{40}, {40}}, {{1}, {699}}, {{0, 7, 0}, {5, 300, 0}}, {{}, {}}, {{12, 1}, {5, 1}}};
      for (const auto& [lens_q, lens_k] : calls) {
        item.seqlens_q = lens_q;
        item.seqlens_k = lens_k;
        ForwardData data(item, Placement::kGuarded, kPoison);
        ASSERT_EQ(tegula_forward(plan, &data.args(), nullptr), TEGULA_OK) << tegula_last_error();
        const Verdict verdict = ForwardReference(data, oracle::DeviceClass::kCpu).judge(data);
        EXPECT_TRUE(verdict.passed()) << lens_q.size() << " sequences: " << verdict.text();
      }
    }
  }
}

}  // namespace
}  // namespace tegula::cases
