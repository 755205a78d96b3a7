// SPDX-License-Identifier: Apache-2.0
// The case table on the library: the whole of it on the kernels that this machine would choose, the
// fast part on every other instruction set that it can run.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/cases/verify.hpp"

namespace tegula::cases {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRepeats = 3;
constexpr bool kFastOnly = true;
#else
constexpr int kRepeats = 20;
constexpr bool kFastOnly = false;
#endif

bool runs(tegula_isa isa) {
  std::int64_t bits = 0;
  const std::string name = std::string("isa.") + tegula_isa_name(isa);
  return tegula_capability(nullptr, name.c_str(), &bits) == TEGULA_OK && (bits & 3) == 3;
}

void verify(tegula_isa isa, bool fast, int repeats) {
  VerifyOptions options;
  ASSERT_EQ(tegula_device_init(&options.device), TEGULA_OK) << tegula_last_error();
  options.device.isa = isa;
  options.repeats = repeats;
  if (fast) options.tags = {"fast"};
  int shown = 0;
  const Totals totals =
      verify_all(options, [&shown](const CaseResult& result, std::int64_t, std::int64_t) {
        if (result.outcome == Outcome::kFailed && ++shown <= 30) {
          ADD_FAILURE() << result.id << ": " << result.text;
        }
      });
  EXPECT_EQ(totals.failed, 0) << "of " << totals.total();
  EXPECT_EQ(totals.skipped, 0);
  EXPECT_EQ(totals.refused, 3);  // tests/cases/refusals/cpu.txt
  EXPECT_GE(totals.passed, 450);
}

TEST(VerifyTable, Chosen) { verify(TEGULA_ISA_AUTO, kFastOnly, kRepeats); }

class VerifyIsa : public ::testing::TestWithParam<tegula_isa> {};

TEST_P(VerifyIsa, Fast) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the same threads as VerifyTable.Chosen; kernels carry no sanitizer";
#endif
  if (!runs(GetParam())) GTEST_SKIP() << "not on this machine";
  verify(GetParam(), true, 3);
}

INSTANTIATE_TEST_SUITE_P(Cpu, VerifyIsa,
                         ::testing::Values(TEGULA_ISA_SCALAR, TEGULA_ISA_AVX2, TEGULA_ISA_AVX512,
                                           TEGULA_ISA_AVX512BF16, TEGULA_ISA_AMX,
                                           TEGULA_ISA_AMX_MODEL),
                         [](const auto& instance) { return tegula_isa_name(instance.param); });

}  // namespace
}  // namespace tegula::cases
