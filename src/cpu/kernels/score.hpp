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

// kRows keys, the first being key n of the block, x kVectors vectors of rows. Folds the running
// maximum over keys into column_max. kMasked: scores outside a row's mask become -inf.
template <int kRows, int kVectors, bool kPairs, bool kMasked>
TEGULA_INLINE void score_tile(const char* const* k_rows, const float* q_t, int64_t q_steps,
                              int64_t stride, [[maybe_unused]] int64_t n,
                              [[maybe_unused]] const int32_t* mask_begin,
                              [[maybe_unused]] const int32_t* mask_end, float* scores,
                              vf* column_max) {
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
  for (int j = 0; j < kVectors; ++j) {
    const int64_t lane = j * kLanes;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kMasked) {
        const vm inside =
            vinside(vset_int(static_cast<int32_t>(n + r)), vload_int(mask_begin + lane),
                    vload_int(mask_end + lane));
        acc[r][j] = vselect(inside, acc[r][j], vset(-__builtin_inff()));
      }
      vstore(scores + r * stride + lane, acc[r][j]);
      column_max[j] = vmax(column_max[j], acc[r][j]);
    }
  }
}

// Keys of a score tile for a panel of kVectors vectors; even, so that no pair of keys straddles two
// tiles. At most cpu::kRowPad.
template <int kVectors>
inline constexpr int kScoreKeys = kAccumulators / kVectors < 8 ? kAccumulators / kVectors & ~1 : 8;

// What a vector of rows sees of a block, relative to its first key: keys [begin, end), of which all
// rows see [full_begin, full_end). With pairs, begin is even.
struct Span {
  int64_t begin, end, full_begin, full_end;
};

// One tile for the vectors of the panel that see a part of it.
template <int kRows, int kVectors, bool kPairs>
TEGULA_INLINE void score_vectors(int64_t vectors, bool masked, const char* const* k_rows,
                                 const float* q_t, int64_t q_steps, int64_t stride, int64_t n,
                                 const int32_t* mask_begin, const int32_t* mask_end, float* scores,
                                 float* column_max) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) {
      return score_vectors<kRows, kVectors - 1, kPairs>(vectors, masked, k_rows, q_t, q_steps,
                                                        stride, n, mask_begin, mask_end, scores,
                                                        column_max);
    }
  }
  vf maximum[kVectors];
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) maximum[j] = vload(column_max + j * kLanes);
  if (masked) {
    score_tile<kRows, kVectors, kPairs, true>(k_rows, q_t, q_steps, stride, n, mask_begin, mask_end,
                                              scores, maximum);
  } else {
    score_tile<kRows, kVectors, kPairs, false>(k_rows, q_t, q_steps, stride, n, nullptr, nullptr,
                                               scores, maximum);
  }
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) vstore(column_max + j * kLanes, maximum[j]);
}

// Keys [begin, end), whole tiles, for every vector of the panel and without a mask: nearly all of
// the work, so the loop does nothing else. With score_edge's tests beside each tile it reached 90
// instead of 98 % of the peak (bf16, head_dim 64; Zen 4).
template <int kVectors, bool kPairs, class Ahead>
TEGULA_INLINE void score_full(const char* const* k_rows, const float* q_t, int64_t q_steps,
                              int64_t stride, int64_t begin, int64_t end, float* scores,
                              float* column_max, Ahead& ahead) {
  constexpr int kRows = kScoreKeys<kVectors>;
  vf maximum[kVectors];
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) maximum[j] = vload(column_max + j * kLanes);
  for (int64_t n = begin; n < end; n += kRows) {
    ahead();
    score_tile<kRows, kVectors, kPairs, false>(k_rows + n, q_t, q_steps, stride, n, nullptr,
                                               nullptr, scores + n * stride, maximum);
  }
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) vstore(column_max + j * kLanes, maximum[j]);
}

// Tiles that some vectors do not see, or not all of.
template <int kVectors, bool kPairs, class Ahead>
__attribute__((noinline)) void score_edge(const char* const* k_rows, const float* q_t,
                                          int64_t q_steps, int64_t stride, int64_t begin,
                                          int64_t end, const Span* spans, bool masked,
                                          const int32_t* mask_begin, const int32_t* mask_end,
                                          float* scores, float* column_max, Ahead& ahead) {
  constexpr int kRows = kScoreKeys<kVectors>;
  for (int64_t n = begin; n < end; n += kRows) {
    ahead();
    // Both ends of the spans rise with the vector.
    int first = 0, last = kVectors;
    while (first < kVectors && spans[first].end <= n) ++first;
    while (last > first && spans[last - 1].begin >= n + kRows) --last;
    if (first >= last) continue;
    bool partial = false;
    for (int j = first; j < last; ++j)
      partial |= n < spans[j].full_begin || n + kRows > spans[j].full_end;
    const int64_t lane = first * kLanes;
    score_vectors<kRows, kVectors, kPairs>(last - first, masked && partial, k_rows + n, q_t + lane,
                                           q_steps, stride, n, mask_begin + lane, mask_end + lane,
                                           scores + n * stride + lane, column_max + lane);
  }
}

// The scores of a panel against a block, each vector's over its span (in whole tiles), and their
// maxima over the keys. masked: keys outside a row's mask_begin and mask_end (relative to the
// block) become -inf. ahead() is called beside each tile.
template <int kVectors, bool kPairs, class Ahead>
__attribute__((noinline)) void score_panel(const char* const* k_rows, const float* q_t,
                                           int64_t q_steps, int64_t stride, const Span* spans,
                                           bool masked, const int32_t* mask_begin,
                                           const int32_t* mask_end, float* scores,
                                           float* column_max, Ahead& ahead) {
  constexpr int kRows = kScoreKeys<kVectors>;
  int64_t begin = INT64_MAX, end = 0, full_begin = 0, full_end = INT64_MAX;
  for (int j = 0; j < kVectors; ++j) {
    vstore(column_max + j * kLanes, vset(-__builtin_inff()));
    full_begin = spans[j].full_begin > full_begin ? spans[j].full_begin : full_begin;
    full_end = spans[j].full_end < full_end ? spans[j].full_end : full_end;
    if (spans[j].begin >= spans[j].end) continue;
    begin = spans[j].begin < begin ? spans[j].begin : begin;
    end = spans[j].end > end ? spans[j].end : end;
  }
  if (begin >= end) return;
  // Tiles from `begin` on; those in [full_begin, full_end) are full.
  full_begin = begin + (full_begin - begin + kRows - 1) / kRows * kRows;
  full_end = full_end > full_begin ? full_end - (full_end - full_begin) % kRows : full_begin;
  const auto edge = [&](int64_t from, int64_t to) {
    score_edge<kVectors, kPairs>(k_rows, q_t, q_steps, stride, from, to, spans, masked, mask_begin,
                                 mask_end, scores, column_max, ahead);
  };
  if (full_begin >= end) return edge(begin, end);
  if (begin < full_begin) edge(begin, full_begin);
  score_full<kVectors, kPairs>(k_rows, q_t, q_steps, stride, full_begin, full_end, scores,
                               column_max, ahead);
  if (full_end < end) edge(full_end, end);
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
