// SPDX-License-Identifier: Apache-2.0
// Rows of millions of keys: what is lost once a block must not add up.
#include <gtest/gtest.h>

#include <cmath>

#include <tegula/tegula.hpp>

#include "tests/unit/run_util.hpp"

namespace tegula {
namespace {

class LongRow : public ::testing::TestWithParam<tegula_isa> {};

INSTANTIATE_TEST_SUITE_P(Cpu, LongRow, ::testing::ValuesIn(cases::isas()),
                         [](const auto& instance) { return tegula_isa_name(instance.param); });

// All scores and values are 1: lse = 1 + log(n) and o = 1, within contract.md, 12's bound at w = 1.
TEST_P(LongRow, LseDoesNotDrift) {
  constexpr int64_t kKeys = int64_t{1} << 22;
  const float one = 1.0f;
  float o = 0, lse = 0;
  const Extents keys{1, kKeys, 1, 1}, single{1, 1, 1, 1}, broadcast{0, 0, 0, 1};
  const ForwardArgs args{.q = Tensor(&one, single),
                         .k = Tensor(&one, keys, broadcast),
                         .v = Tensor(&one, keys, broadcast),
                         .o = Tensor(&o, single),
                         .lse = Tensor(&lse, {1, 1, 1})};
  Device device;
  device.set_isa(GetParam());
  Plan(Problem(args, {.num_splits = 1}), device).forward(args);
  const double reference = 1.0 + std::log(static_cast<double>(kKeys));
  EXPECT_NEAR(lse, reference, 0x1p-20 * (2.0 + reference) + 0x1p-23 * 0x1p11);
  EXPECT_NEAR(o, 1.0, 0x1p-20);
}

}  // namespace
}  // namespace tegula
