// SPDX-License-Identifier: Apache-2.0
// Online softmax over a block of keys (Milakov and Gimelshein, 2018; FlashAttention, algorithm 1),
// lanes = packed query rows.
#pragma once

#include "src/cpu/kernels/math.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

inline constexpr float kLog2e = 1.44269504f;

// Takes a block's maximum into one vector of rows: writes row_max and the factor alpha of what was
// accumulated before, and returns what is to be subtracted from the scores.
TEGULA_INLINE vf shift_rows(vf scale, vf column_max, float* row_max, float* alpha) {
  const vf old_max = vload(row_max);
  const vf new_max = vmax(old_max, column_max);
  // A row that has seen no key yet keeps -inf as its flag; subtracting 0 instead makes its P 0,
  // not NaN.
  const vf shift = vselect(vequal(new_max, vset(-__builtin_inff())), vzero(), new_max);
  // Exactly 1 while the maximum stays: the polynomial's 1 - 2^-24 would be lost once a block (lse
  // 3 times over its bound at 4 million keys).
  const vf factor =
      vselect(vequal(old_max, new_max), vset(1.0f), vexp2<5>(vmul(vsub(old_max, shift), scale)));
  vstore(row_max, new_max);
  vstore(alpha, factor);
  return shift;
}

// Updates row_max (in the scores' own units) and row_sum of the panel, turns scores [begin, end)
// into P, and gives the factor alpha of what was accumulated before. exponent_scale: the scores'
// unit in powers of two. The difference to the maximum is taken before the scale: fma(s, scale, -m)
// would lose everything above |m| ~ 2^16 (contract.md, 4). kPairs: begin is even, P goes to p_pairs
// as (n, n + 1) pairs of bf16; an odd last row is -inf in scores. finish(s): the last step from
// what lies in scores and column_max to a score, which must not turn their order around.
template <int kVectors, bool kPairs, class Finish>
TEGULA_INLINE void softmax_scores(const Finish& finish, float exponent_scale, int64_t stride,
                                  int64_t begin, int64_t end, const float* column_max,
                                  float* scores, [[maybe_unused]] float* p_pairs, float* row_max,
                                  float* row_sum, float* alpha) {
  const vf scale = vset(exponent_scale);
  vf shift[kVectors], sum[kVectors];
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) {
    const int64_t lane = j * kLanes;
    shift[j] =
        shift_rows(scale, finish(vload(column_max + lane)), row_max + lane, alpha + lane);
    sum[j] = vmul(vload(alpha + lane), vload(row_sum + lane));
  }
#ifdef TEGULA_PAIRS
  if constexpr (kPairs) {
    for (int64_t n = begin; n < end; n += 2) {
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        const float* const place = scores + n * stride + j * kLanes;
        // Degree 3 (7.5e-5) is far below bf16's half unit, 2e-3.
        const vf even = vexp2<3>(vmul(vsub(finish(vload(place)), shift[j]), scale));
        const vf odd = vexp2<3>(vmul(vsub(finish(vload(place + stride)), shift[j]), scale));
        sum[j] = vadd(sum[j], vadd(even, odd));
        vstore(p_pairs + n / 2 * stride + j * kLanes, vpack_pairs(even, odd));
      }
    }
  }
#endif
  if constexpr (!kPairs) {
    for (int64_t n = begin; n < end; ++n) {
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        float* const place = scores + n * stride + j * kLanes;
        const vf p = vexp2<5>(vmul(vsub(finish(vload(place)), shift[j]), scale));
        sum[j] = vadd(sum[j], p);
        vstore(place, p);
      }
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) vstore(row_sum + j * kLanes, sum[j]);
}

template <int kVectors, bool kPairs>
__attribute__((noinline)) void softmax_block(float exponent_scale, int64_t stride, int64_t begin,
                                             int64_t end, const float* column_max, float* scores,
                                             float* p_pairs, float* row_max, float* row_sum,
                                             float* alpha) {
  softmax_scores<kVectors, kPairs>([](vf s) { return s; }, exponent_scale, stride, begin, end,
                                   column_max, scores, p_pairs, row_max, row_sum, alpha);
}
template <int kVectors, bool kPairs>
__attribute__((noinline)) void capped_softmax_block(float scale, float cap, int64_t stride,
                                                    int64_t begin, int64_t end,
                                                    const float* column_max, float* scores,
                                                    float* p_pairs, float* row_max, float* row_sum,
                                                    float* alpha) {
  softmax_scores<kVectors, kPairs>(Softcap(scale, cap), kLog2e, stride, begin, end, column_max,
                                   scores, p_pairs, row_max, row_sum, alpha);
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
