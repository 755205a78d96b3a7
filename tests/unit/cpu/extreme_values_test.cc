// SPDX-License-Identifier: Apache-2.0
// Values that random data do not reach: each of these was wrong once on some instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include <tegula/tegula.hpp>

#include "tests/unit/run_util.hpp"

namespace tegula {
namespace {

class ExtremeValues : public ::testing::TestWithParam<tegula_isa> {
 protected:
  Device device() const {
    Device device;
    device.set_isa(GetParam());
    return device;
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu, ExtremeValues, ::testing::ValuesIn(cases::isas()),
                         [](const auto& instance) { return tegula_isa_name(instance.param); });

// All values are 2, so that o is 2 whatever the visible scores are. The key behind the first chunk
// has a score 240 above them: in a row's maximum, it would leave the row without weight.
TEST_P(ExtremeValues, LoudKeyBehindAChunkIsNotInTheMaximum) {
  constexpr int64_t kTokens = 256, kDim = 64;
  const Extents shape{1, kTokens, 1, kDim};
  for (int64_t chunk = 96; chunk <= 104; ++chunk) {
    std::vector<float> q(kTokens * kDim, 1.0f), k(q.size(), 0.01f), v(q.size(), 2.0f), o(q.size());
    for (int64_t d = 0; d < kDim; ++d) k[static_cast<size_t>(chunk * kDim + d)] = 30.0f;
    const ForwardArgs args{.q = Tensor(q.data(), shape),
                           .k = Tensor(k.data(), shape),
                           .v = Tensor(v.data(), shape),
                           .o = Tensor(o.data(), shape)};
    Plan(Problem(args, {.attention_chunk = chunk}), device()).forward(args);
    for (const float value : o) ASSERT_NEAR(value, 2.0f, 1e-5) << "attention_chunk " << chunk;
  }
}

// (scale / softcap)^10 is beyond fp32 in both directions.
TEST_P(ExtremeValues, SoftcapFarFromTheScale) {
  constexpr int64_t kTokens = 64, kDim = 64;
  const Extents shape{1, kTokens, 1, kDim};
  for (const double softcap : {1e-30, 1e-5, 1e-4, 1e4, 1e30}) {
    std::vector<float> q(kTokens * kDim, 0.0f), k(q.size(), 1.0f), v(q.size(), 2.0f), o(q.size());
    const ForwardArgs args{.q = Tensor(q.data(), shape),
                           .k = Tensor(k.data(), shape),
                           .v = Tensor(v.data(), shape),
                           .o = Tensor(o.data(), shape)};
    Plan(Problem(args, {.softcap = softcap}), device()).forward(args);
    for (const float value : o) ASSERT_NEAR(value, 2.0f, 1e-5) << "softcap " << softcap;
  }
}

// v = 1 + 2^-8 needs more bits than bf16 has; an fp16 cache holds it, and o is fp32.
TEST_P(ExtremeValues, Fp16CacheKeepsItsBitsUnderABf16Query) {
  constexpr int64_t kTokens = 64, kKeys = 4096, kDim = 64;
  constexpr uint16_t kOneBf16 = 0x3f80, kValueFp16 = 0x3c04;
  std::vector<uint16_t> q(kTokens * kDim, kOneBf16), k(kKeys * kDim, 0), v(k.size(), kValueFp16);
  std::vector<float> o(q.size());
  const Extents rows{1, kTokens, 1, kDim}, keys{1, kKeys, 1, kDim};
  const ForwardArgs args{.q = Tensor(q.data(), Dtype::kBf16, rows),
                         .k = Tensor(k.data(), Dtype::kF16, keys),
                         .v = Tensor(v.data(), Dtype::kF16, keys),
                         .o = Tensor(o.data(), rows)};
  Plan(Problem(args), device()).forward(args);
  // contract.md, 12: 4 u R + e A, with R = v / 64 here.
  for (const float value : o) ASSERT_NEAR(value, 1.00390625f, 3.5e-4);
}

// Scores far from 0, of which neither an exponential nor a shift may lose the difference of 2 that
// decides between v = 1 and 3; from one level to another they may jump, which gives rows a new
// shift.
TEST_P(ExtremeValues, ScoresFarFromZeroKeepTheirDifferences) {
  constexpr int64_t kTokens = 64, kKeys = 256, kDim = 64;
  constexpr uint16_t kOne = 0x3f80, kTwo = 0x4000, kThree = 0x4040;
  const auto power = [](int e) { return static_cast<uint16_t>((e + 127) << 7); };  // of 2
  const auto expect = [&](uint16_t first, uint16_t second, double level) {
    std::vector<uint16_t> q(kTokens * kDim, 0), k(kKeys * kDim, 0), v(k.size(), kOne);
    std::vector<float> o(q.size()), lse(kTokens);
    for (int64_t i = 0; i < kTokens; ++i) {
      q[static_cast<size_t>(i * kDim)] = power(10);
      q[static_cast<size_t>(i * kDim + 1)] = kOne;
    }
    for (int64_t n = 0; n < kKeys; ++n) {
      k[static_cast<size_t>(n * kDim)] = n < kKeys / 2 ? first : second;
      if (n % 2 != 0) continue;
      k[static_cast<size_t>(n * kDim + 1)] = kTwo;
      for (int64_t d = 0; d < kDim; ++d) v[static_cast<size_t>(n * kDim + d)] = kThree;
    }
    const Extents rows{1, kTokens, 1, kDim}, keys{1, kKeys, 1, kDim};
    const ForwardArgs args{.q = Tensor(q.data(), Dtype::kBf16, rows),
                           .k = Tensor(k.data(), Dtype::kBf16, keys),
                           .v = Tensor(v.data(), Dtype::kBf16, keys),
                           .o = Tensor(o.data(), rows),
                           .lse = Tensor(lse.data(), Extents{1, 1, kTokens})};
    Plan(Problem(args, {.softmax_scale = 1.0}), device()).forward(args);
    const double weight = std::exp(2.0);
    const double value = (1.0 + 3.0 * weight) / (1.0 + weight);
    for (const float x : o) ASSERT_NEAR(x, value, 0.01) << "level " << level;
    const double count = first == second ? kKeys / 2 : kKeys / 4;
    const double sum = level + std::log(count * (1.0 + weight));
    for (const float x : lse)
      ASSERT_NEAR(x, sum, 2e-3 + std::fabs(sum) * 0x1p-20) << "level " << level;
  };
  const auto minus = [&](int e) { return static_cast<uint16_t>(power(e) | 0x8000); };
  for (const int e : {0, 5, 9, 10, 11, 13}) {  // 2^20 and more are far (tile_softmax.hpp)
    const double level = std::ldexp(1024.0, e);
    expect(power(e), power(e), level);
    expect(minus(e), minus(e), -level);
    expect(0, power(e), level);
    expect(minus(e), power(e), level);
    expect(minus(e), 0, 0.0);
    expect(power(e), 0, level);
  }
}

}  // namespace
}  // namespace tegula
