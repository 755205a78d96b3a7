// SPDX-License-Identifier: Apache-2.0
// Scores of one panel of packed query rows against a block of keys, transposed: S^T[n][row] = K[n]
// . Q[row]. K as it lies in memory is the broadcast operand and Q^T, packed once per task, supplies
// the vectors: K is never packed, and the softmax along n needs no reduction across lanes.
#pragma once

#include "src/cpu/kernel_abi.hpp"
#include "src/cpu/kernels/math.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

// The panel's rows as the softmax sees them, relative to the first key of a block. Arrays of
// panel_rows.
struct PanelMask {
  const int32_t* begin;  // row sees keys [begin, end)
  const int32_t* end;
  const float* position;  // of the row's token among the keys (ALiBi)
  const float* slope;
};

template <bool kPairs>
TEGULA_INLINE vf multiply_accumulate(vf a, vf b, vf acc) {
#ifdef TEGULA_PAIRS
  if constexpr (kPairs) return vdot_pairs(acc, a, b);
#endif
  return vfma(a, b, acc);
}

// kRows keys x kVectors vectors of rows. Folds the running maximum over keys into column_max.
template <int kRows, int kVectors, bool kPairs>
TEGULA_INLINE void score_tile(const char* const* k_rows, const float* q_t, int64_t q_steps,
                              int64_t stride, float* scores, vf* column_max) {
  vf acc[kRows][kVectors];
  const char* k[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    k[r] = k_rows[r];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) acc[r][j] = vzero();
  }
  for (int64_t step = 0; step < q_steps; ++step) {
    vf q[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) q[j] = vload(q_t + step * stride + j * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const vf k_value =
          vset(widen<TEGULA_F32>(k[r] + 4 * step));  // fp32, or the bits of a bf16 pair
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j)
        acc[r][j] = multiply_accumulate<kPairs>(k_value, q[j], acc[r][j]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      vstore(scores + r * stride + j * kLanes, acc[r][j]);
      column_max[j] = vmax(column_max[j], acc[r][j]);
    }
  }
}

// Keys [begin, end) of the block. column_max: kVectors vectors, written.
template <int kVectors, bool kPairs>
__attribute__((noinline)) void score_block(const char* const* k_rows, const float* q_t,
                                           int64_t q_steps, int64_t stride, int64_t begin,
                                           int64_t end, float* scores, float* column_max) {
  constexpr int kRows = kAccumulators / kVectors < 8 ? kAccumulators / kVectors : 8;
  vf maximum[kVectors];
  for (int j = 0; j < kVectors; ++j) maximum[j] = vset(-__builtin_inff());
  int64_t n = begin;
  for (; n + kRows <= end; n += kRows) {
    score_tile<kRows, kVectors, kPairs>(k_rows + n, q_t, q_steps, stride, scores + n * stride,
                                        maximum);
  }
  for (; n < end; ++n) {
    score_tile<1, kVectors, kPairs>(k_rows + n, q_t, q_steps, stride, scores + n * stride, maximum);
  }
  for (int j = 0; j < kVectors; ++j) vstore(column_max + j * kLanes, maximum[j]);
}

// Scores that are more than K . Q, or partly masked: brings them to natural-log units (cooked:
// scale, softcap, bias, ALiBi; else scale is 1), sets masked ones to -inf, and takes the maximum
// again. bias_t: [n][row], -inf = not visible; nullptr: none.
template <int kVectors>
__attribute__((noinline)) void cook_block(const cpu::ForwardParams& params, float scale,
                                          const PanelMask& mask, const float* bias_t, bool alibi,
                                          int64_t stride, int64_t step, int64_t begin, int64_t end,
                                          float* scores, float* column_max) {
  const vf negative_infinity = vset(-__builtin_inff());
  const bool capped = params.softcap > 0.0f;
  const vf cap = vset(params.softcap);
  const vf inverse_cap = vset(capped ? 1.0f / params.softcap : 0.0f);
  for (int j = 0; j < kVectors; ++j) {
    const int64_t lane = j * kLanes;
    const vi row_begin = vload_int(mask.begin + lane);
    const vi row_end = vload_int(mask.end + lane);
    const vf position = vload(mask.position + lane);
    const vf slope = vload(mask.slope + lane);
    vf maximum = negative_infinity;
    for (int64_t n = begin; n < end; n += step) {
      float* const place = scores + n * stride + lane;
      vf s = vmul(vload(place), vset(scale));
      if (capped) s = vmul(cap, vtanh(vmul(s, inverse_cap)));
      if (alibi) s = vsub(s, vmul(slope, vabs(vsub(position, vset(static_cast<float>(n))))));
      if (bias_t != nullptr) {
        const vf bias = vload(bias_t + n * stride + lane);
        s = vselect(vequal(bias, negative_infinity), negative_infinity, vadd(s, bias));
      }
      s = vselect(vinside(vset_int(static_cast<int32_t>(n)), row_begin, row_end), s,
                  negative_infinity);
      vstore(place, s);
      maximum = vmax(maximum, s);
    }
    vstore(column_max + lane, maximum);
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
