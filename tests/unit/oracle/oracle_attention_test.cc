// SPDX-License-Identifier: Apache-2.0
// The oracle against results worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/oracle/oracle.hpp"

namespace tegula::oracle {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// seqlen_q rows, seqlen_k keys, q = 0, v(j) = j + 1: o is the mean of the visible v.
Attention counting(std::int64_t seqlen_q, std::int64_t seqlen_k) {
  Attention call;
  call.seqlen_q = seqlen_q;
  call.seqlen_k = seqlen_k;
  call.q.assign(static_cast<std::size_t>(seqlen_q), 0.0);
  call.k.assign(static_cast<std::size_t>(seqlen_k), 1.0);
  for (std::int64_t j = 0; j < seqlen_k; ++j) call.v.push_back(static_cast<double>(j + 1));
  return call;
}

std::string picture(const Attention& call) {
  std::string text;
  for (std::int64_t i = 0; i < call.seqlen_q; ++i) {
    for (std::int64_t j = 0; j < call.seqlen_k; ++j) text += visible(call, i, j) ? 'x' : '.';
    text += ' ';
  }
  return text;
}

TEST(OracleAttention, Masks) {
  Attention call = counting(3, 5);
  EXPECT_EQ(picture(call), "xxxxx xxxxx xxxxx ");
  call.causal = true;
  EXPECT_EQ(picture(call), "xxx.. xxxx. xxxxx ");
  call.window_left = 1;
  EXPECT_EQ(picture(call), ".xx.. ..xx. ...xx ");
  call.causal = false;
  call.window_right = 1;
  EXPECT_EQ(picture(call), ".xxx. ..xxx ...xx ");
  call.window_left = -1;
  EXPECT_EQ(picture(call), "xxxx. xxxxx xxxxx ");
  call.window_left = 0;
  call.window_right = 0;
  EXPECT_EQ(picture(call), "..x.. ...x. ....x ");
  call.window_left = call.window_right = -1;
  call.attention_chunk = 2;  // p = 2, 3, 4
  EXPECT_EQ(picture(call), "..xx. ..xx. ....x ");
  call.leftpad_k = 1;  // chunks count from key 1: {1, 2}, {3, 4}
  EXPECT_EQ(picture(call), ".xx.. ...xx ...xx ");

  Attention longer = counting(5, 2);
  longer.causal = true;
  EXPECT_EQ(picture(longer), ".. .. .. x. xx ");
  longer.causal = false;
  longer.attention_chunk = 2;  // p = -3 .. 1: chunks -2, -1, -1, 0, 0
  EXPECT_EQ(picture(longer), ".. .. .. xx xx ");
}

TEST(OracleAttention, MeansOfVisibleValues) {
  Attention call = counting(2, 4);
  call.causal = true;
  const Row row = attend_row(call, 0, 0);
  EXPECT_EQ(row.visible, 3);
  EXPECT_NEAR(row.o[0], 2.0, 1e-15);
  EXPECT_NEAR(row.lse, std::log(3.0), 1e-15);
  EXPECT_NEAR(row.abs[0], 2.0, 1e-15);
  EXPECT_NEAR(row.rms[0], std::sqrt(14.0) / 3.0, 1e-15);
  EXPECT_EQ(row.w, 0.0);
  EXPECT_EQ(row.score[0], 0.0);
}

TEST(OracleAttention, TwoKeysByHand) {
  Attention call;
  call.seqlen_q = 1;
  call.seqlen_k = 2;
  call.head_dim = 2;
  call.q = {1.0, -2.0};
  call.k = {3.0, 1.0, 0.5, 0.25};  // dots 1 and 0; sums of magnitudes 5 and 1
  call.v = {1.0, -1.0};
  call.softmax_scale = 0.5;
  const Row row = attend_row(call, 0, 0);
  const double z = std::exp(0.5) + 1.0;
  EXPECT_NEAR(row.o[0], (std::exp(0.5) - 1.0) / z, 1e-15);
  EXPECT_NEAR(row.lse, std::log(z), 1e-15);
  const double p0 = std::exp(0.5) / z;
  const double p1 = 1.0 / z;
  EXPECT_NEAR(row.abs[0], 1.0, 1e-15);
  EXPECT_NEAR(row.rms[0], std::sqrt(p0 * p0 + p1 * p1), 1e-15);
  EXPECT_NEAR(row.w, p0 * 2.5 + p1 * 0.5, 1e-15);
  EXPECT_NEAR(row.score[0], row.w + std::fabs(row.o[0]) * row.w, 1e-15);

  call.softcap = 0.25;
  const double capped = 0.25 * std::tanh(2.0);
  EXPECT_NEAR(attend_row(call, 0, 0).lse, std::log(std::exp(capped) + 1.0), 1e-15);

  // The bias comes after the cap, ALiBi as well: p = 1, distances 1 and 0.
  call.bias = [](std::int64_t, std::int64_t, std::int64_t j) { return j == 0 ? 1.0 : -0.5; };
  call.alibi_slopes = {0.125};
  const Row biased = attend_row(call, 0, 0);
  EXPECT_NEAR(biased.lse, std::log(std::exp(capped + 1.0 - 0.125) + std::exp(-0.5)), 1e-15);
}

TEST(OracleAttention, AlibiIsSymmetricAroundTheDiagonal) {
  Attention call = counting(1, 3);
  call.alibi_slopes = {std::log(2.0)};
  call.seqlen_q = 2;
  call.q = {0.0, 0.0};
  // Row 0: p = 1; weights 1/2, 1, 1/2.
  EXPECT_NEAR(attend_row(call, 0, 0).o[0], (0.5 * 1 + 2 + 0.5 * 3) / 2.0, 1e-15);
}

TEST(OracleAttention, Sink) {
  Attention call = counting(1, 2);
  call.v = {1.0, 1.0};
  call.sink = {2.0};
  const Row row = attend_row(call, 0, 0);
  EXPECT_NEAR(row.o[0], 2.0 / (2.0 + std::exp(2.0)), 1e-15);
  EXPECT_NEAR(row.lse, std::log(2.0 + std::exp(2.0)), 1e-15);
  call.sink = {-kInf};
  EXPECT_NEAR(attend_row(call, 0, 0).lse, std::log(2.0), 1e-15);
  call.sink = {1000.0};
  EXPECT_NEAR(attend_row(call, 0, 0).lse, 1000.0, 1e-12);
}

TEST(OracleAttention, RowsWithoutKeys) {
  Attention call = counting(3, 1);
  call.causal = true;
  const Row row = attend_row(call, 0, 0);
  EXPECT_EQ(row.visible, 0);
  EXPECT_EQ(row.o[0], 0.0);
  EXPECT_EQ(row.lse, -kInf);
  call.sink = {1.5};
  EXPECT_EQ(attend_row(call, 0, 0).lse, 1.5);
  EXPECT_EQ(attend_row(call, 0, 0).o[0], 0.0);
  // Every key hidden by the bias.
  Attention hidden = counting(1, 2);
  hidden.bias = [](std::int64_t, std::int64_t, std::int64_t) { return -kInf; };
  EXPECT_EQ(attend_row(hidden, 0, 0).visible, 0);
}

TEST(OracleAttention, HeadsShareTheirKeyHead) {
  Attention call;
  call.seqlen_q = call.seqlen_k = 1;
  call.num_heads_q = 6;
  call.num_heads_kv = 2;
  call.q.assign(6, 1.0);
  call.k.assign(2, 1.0);
  call.v = {10.0, 20.0};
  for (std::int64_t h = 0; h < 6; ++h) {
    EXPECT_EQ(attend_row(call, 0, h).o[0], h < 3 ? 10.0 : 20.0) << h;
  }
}

TEST(OracleAttention, NanAndHugeScores) {
  Attention call = counting(1, 2);
  call.q = {1.0};
  call.k = {1e30, -1e30};
  EXPECT_EQ(attend_row(call, 0, 0).o[0], 1.0);
  EXPECT_EQ(attend_row(call, 0, 0).lse, 1e30);
  call.q = {std::numeric_limits<double>::quiet_NaN()};
  const Row row = attend_row(call, 0, 0);
  EXPECT_TRUE(std::isnan(row.o[0]));
  EXPECT_TRUE(std::isnan(row.lse));
}

TEST(OracleAttention, FlushedProbabilities) {
  Attention call = counting(1, 2);
  call.q = {1.0};
  call.k = {0.0, -30.0};
  call.p_underflow = 0x1p-16;
  const Row row = attend_row(call, 0, 0);
  // Key 0 counts at most f p_max, key 1 all of its own weight.
  EXPECT_NEAR(row.flush[0], 0x1p-16 * 1.0 + std::exp(-30.0) * 2.0, 1e-13);
}

TEST(OracleTolerance, Bounds) {
  Row row;
  row.visible = 4;
  row.o = {1.0};
  row.abs = {2.0};
  row.rms = {0.5};
  row.score = {3.0};
  row.flush = {0.0};
  row.w = 7.0;
  row.lse = -2.0;
  const Limits bf16 = limits_for(DeviceClass::kCpu, Format::kBf16);
  EXPECT_NEAR(o_bound(bf16, row, 0, Format::kFp32),
              4 * 0x1p-8 * 0.5 + (1e-4 + 0x1p-22) * 2.0 + 0x1p-20 * 3.0, 1e-12);
  EXPECT_NEAR(o_bound(bf16, row, 0, Format::kBf16) - o_bound(bf16, row, 0, Format::kFp32), 0x1p-7,
              1e-12);
  EXPECT_NEAR(lse_bound(bf16, row), 3e-4 + 0x1p-20 * 9.0 + 0x1p-22, 1e-12);
  const Limits fp32 = limits_for(DeviceClass::kCpu, Format::kFp32);
  EXPECT_NEAR(o_bound(fp32, row, 0, Format::kFp32),
              4 * 0x1p-24 * 0.5 + (0x1p-20 + 0x1p-22) * 2.0 + 0x1p-20 * 3.0, 1e-15);
  EXPECT_EQ(o_ratio(fp32, row, 0, Format::kFp32, 1.0), 0.0);
  EXPECT_GT(o_ratio(fp32, row, 0, Format::kFp32, 1.0001), 1.0);
  EXPECT_EQ(o_ratio(fp32, row, 0, Format::kFp32, std::nan("")), kInf);
  EXPECT_EQ(o_ratio(fp32, row, 0, Format::kFp32, kInf), kInf);
  row.visible = 0;
  row.lse = -kInf;
  EXPECT_EQ(lse_ratio(fp32, row, -kInf), 0.0);
  EXPECT_EQ(lse_ratio(fp32, row, -1e30), kInf);
  EXPECT_EQ(o_ratio(fp32, row, 0, Format::kFp32, 1e-30), kInf);
  EXPECT_EQ(o_ratio(fp32, row, 0, Format::kFp32, -0.0), 0.0);
}

TEST(OracleCombine, ByHand) {
  Partials partials;
  partials.o = {{1.0}, {3.0}, {100.0}};
  partials.lse = {0.0, std::log(3.0), -kInf};
  const Combined row = combine_row(partials);
  EXPECT_NEAR(row.o[0], 0.25 * 1 + 0.75 * 3, 1e-15);
  EXPECT_NEAR(row.lse, std::log(4.0), 1e-15);
  partials.has_sink = true;
  partials.sink = std::log(4.0);
  const Combined sunk = combine_row(partials);
  EXPECT_NEAR(sunk.o[0], 0.125 * 1 + 0.375 * 3, 1e-15);
  EXPECT_NEAR(sunk.lse, std::log(8.0), 1e-15);
  partials.lse = {-kInf, kInf, -kInf};
  const Combined empty = combine_row(partials);
  EXPECT_TRUE(empty.empty);
  EXPECT_EQ(empty.o[0], 0.0);
  EXPECT_EQ(empty.lse, std::log(4.0));
}

TEST(OracleAppend, Rotates) {
  const float cos_row[2] = {0.5f, 1.0f};
  const float sin_row[2] = {2.0f, 0.0f};
  std::vector<float> half{1.0f, 2.0f, 3.0f, 4.0f, 9.0f};
  rotate(half, cos_row, sin_row, 4, false);  // pairs (0, 2) and (1, 3)
  EXPECT_EQ(half, (std::vector<float>{0.5f - 6.0f, 2.0f, 2.0f + 1.5f, 4.0f, 9.0f}));
  std::vector<float> interleaved{1.0f, 2.0f, 3.0f, 4.0f, 9.0f};
  rotate(interleaved, cos_row, sin_row, 4, true);  // pairs (0, 1) and (2, 3)
  EXPECT_EQ(interleaved, (std::vector<float>{0.5f - 4.0f, 2.0f + 1.0f, 3.0f, 4.0f, 9.0f}));
  // The product y * sin is rounded, then the fma: with all exact, the sum of squares below is 0.
  const float third = 1.0f / 3.0f;
  std::vector<float> rounded{third, third};
  rotate(rounded, &third, &third, 2, false);
  const auto square = static_cast<float>(static_cast<double>(third) * third);
  EXPECT_EQ(rounded[0], std::fmaf(third, third, -square));
  EXPECT_NE(rounded[0], 0.0f);
}

TEST(OracleAppend, CacheBits) {
  EXPECT_EQ(cache_bits(Format::kE4m3, 448.0f, 0.5f), 0x7eu);
  EXPECT_EQ(cache_bits(Format::kE4m3, 1.0f, 3.0f), encode(Format::kE4m3, 0.34375));
  EXPECT_EQ(cache_bits(Format::kE5m2, -kInf, 1.0f), 0xfbu);
  EXPECT_EQ(cache_bits(Format::kBf16, 1.00390625f, 7.0f), 0x3f80u);  // half an ulp: to even
  EXPECT_EQ(cache_bits(Format::kFp16, 2.0f, 7.0f), 0x4000u);
}

}  // namespace
}  // namespace tegula::oracle
