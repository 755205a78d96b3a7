// SPDX-License-Identifier: Apache-2.0
// Register tiles of the narrow kernel: scores of a few keys for all rows, and P V for all rows.
#pragma once

#include "src/cpu/kernels/narrow_operand.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

// Scores of kKeys keys x kRows rows, not yet summed across lanes, into acc[key][row]. k_rows: +
// offset bytes. q: rows of q_bytes bytes in the operand's order.
template <int kKeys, int kRows, class Operand>
TEGULA_INLINE void narrow_products(const char* const* k_rows, int64_t offset, const char* q,
                                   int64_t q_bytes, int64_t head_dim, vf* acc, Ahead& ahead) {
  constexpr int kVectors = Operand::kVectors;
  const auto q_at = [q, q_bytes](int row, int64_t vector) {
    return vload(reinterpret_cast<const float*>(q + row * q_bytes) + vector * kLanes);
  };
  const char* k[kKeys];
  vf sum[kKeys][kRows];
#pragma GCC unroll 16
  for (int n = 0; n < kKeys; ++n) {
    k[n] = k_rows[n] + offset;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[n][r] = vzero();
  }
  int64_t vector = 0, at = 0;
  for (int64_t d = Operand::kValues; d <= head_dim; d += Operand::kValues) {
    vf q_value[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) q_value[r][j] = q_at(r, vector + j);
    }
#pragma GCC unroll 16
    for (int n = 0; n < kKeys; ++n) {
      fetch_beside<Operand>(ahead, k_rows + n, offset, at);
      vf k_value[kVectors];
      Operand::load_k(k[n] + at, k_value);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) {
          sum[n][r] = multiply_accumulate<Operand::kDotPairs>(k_value[j], q_value[r][j], sum[n][r]);
        }
      }
    }
    vector += kVectors;
    at += Operand::kBytes;
  }
  if (head_dim % Operand::kValues != 0) {
#pragma GCC unroll 16
    for (int n = 0; n < kKeys; ++n) {
      const vf k_value = Operand::load_last(k[n] + at);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sum[n][r] = vfma(k_value, q_at(r, vector), sum[n][r]);
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < kKeys; ++n) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc[n * kRows + r] = sum[n][r];
  }
}

// Scores of kLanes / kRows keys x kRows rows: as many sums as lanes, added up across lanes
// together. Few keys at a time, so that a row of k is read at once; fewer where the tables of 8-bit
// values would have to make room for q and the sums.
template <int kRows, class Operand>
TEGULA_INLINE vf narrow_tile(const char* const* k_rows, int64_t offset, const char* q,
                             int64_t q_bytes, int64_t head_dim, Ahead& ahead) {
  constexpr int kKeys = kLanes / kRows;
  constexpr int kMost = Operand::kDotPairs && !Operand::kAsItLies && kRows >= 4 ? 2 : 4;
  constexpr int kGroup = kKeys < kMost ? kKeys : kMost;
  vf acc[kLanes];
#pragma GCC unroll 16
  for (int n = 0; n < kKeys; n += kGroup) {
    narrow_products<kGroup, kRows, Operand>(k_rows + n, offset, q, q_bytes, head_dim,
                                            acc + n * kRows, ahead);
  }
  const vf sums = vsum_lanes(acc);
  return Operand::kScale == 1.0f ? sums : vmul(sums, vset(Operand::kScale));
}

// With a vector of rows, lanes are rows as in the wide kernel, and nothing is to be summed across
// them: k's 32-bit units are broadcast, q is [unit][row]. Where k is read as it lies.
template <int kRows, class Operand>
inline constexpr bool kLanesAreRows = kRows == kLanes && kLanes == 16 && Operand::kAsItLies;

template <int kKeys, class Operand>
TEGULA_INLINE vf narrow_keys(const char* const* k_rows, int64_t offset, const char* q,
                             int64_t k_bytes, float* scores, vf maximum, Ahead& ahead) {
  vf acc[kKeys];
#pragma GCC unroll 16
  for (int n = 0; n < kKeys; ++n) acc[n] = vzero();
  for (int64_t line = 0; line < k_bytes; line += 64) {
#pragma GCC unroll 16
    for (int n = 0; n < kKeys; ++n) fetch_beside<Operand>(ahead, k_rows + n, offset, line);
    for (int64_t at = line; at < line + 64; at += 4) {
      const vf q_value = vload(reinterpret_cast<const float*>(q) + at / 4 * kLanes);
#pragma GCC unroll 16
      for (int n = 0; n < kKeys; ++n) {
        const vf k_value = vset(widen<TEGULA_F32>(k_rows[n] + offset + at));
        acc[n] = multiply_accumulate<Operand::kDotPairs>(k_value, q_value, acc[n]);
      }
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < kKeys; ++n) {
    vstore(scores + n * kLanes, acc[n]);
    maximum = vmax(maximum, acc[n]);
  }
  return maximum;
}

// Keys [begin, end) of the block: scores[n][row], kRows rows a key, so that a vector holds kLanes /
// kRows keys; the rest of the last vector is -inf. column_max: one vector, written.
template <int kRows, class Operand>
__attribute__((noinline)) void narrow_scores(const char* const* k_rows, int64_t offset,
                                             const char* q, int64_t q_bytes, int64_t head_dim,
                                             int64_t begin, int64_t end, float* scores,
                                             float* column_max, Ahead& ahead_of_block) {
  constexpr int kKeys = kLanes / kRows;
  Ahead ahead = ahead_of_block;  // in registers
  vf maximum = vset(-__builtin_inff());
  int64_t n = begin;
  if constexpr (kLanesAreRows<kRows, Operand>) {
    const int64_t k_bytes = head_dim / Operand::kValues * Operand::kBytes;
    for (; n + 8 <= end; n += 8)
      maximum = narrow_keys<8, Operand>(k_rows + n, offset, q, k_bytes, scores + n * kRows, maximum,
                                        ahead);
    for (; n < end; ++n)
      maximum = narrow_keys<1, Operand>(k_rows + n, offset, q, k_bytes, scores + n * kRows, maximum,
                                        ahead);
  }
  for (; n + kKeys <= end; n += kKeys) {
    const vf s = narrow_tile<kRows, Operand>(k_rows + n, offset, q, q_bytes, head_dim, ahead);
    vstore(scores + n * kRows, s);
    maximum = vmax(maximum, s);
  }
  if (n < end) {
    const char* rows[kKeys + kNear];
    for (int i = 0; i < kKeys + kNear; ++i) rows[i] = k_rows[n + i < end ? n + i : end - 1];
    vstore(scores + n * kRows,
           narrow_tile<kRows, Operand>(rows, offset, q, q_bytes, head_dim, ahead));
    for (int64_t i = end * kRows; i < (n + kKeys) * kRows; ++i) scores[i] = -__builtin_inff();
    maximum = vmax(maximum, vload(scores + n * kRows));
  }
  vstore(column_max, maximum);
  ahead_of_block = ahead;
}

// Rows [row, row + kRows) of acc_o, kRuns runs of v from `run` on: acc_o = alpha acc_o + P V. p:
// [step][p_stride].
template <int kRows, int kRuns, class Operand>
TEGULA_INLINE void narrow_output_tile(const float* p, int64_t p_stride, const char* const* v_rows,
                                      int64_t offset, int64_t run, int64_t steps,
                                      const float* alpha, float* acc_o, int64_t o_stride,
                                      Ahead& ahead) {
  constexpr int kVectors = Operand::kOutVectors;
  float* const out = acc_o + run * kVectors * kLanes;
  vf acc[kRows][kRuns * kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kRuns * kVectors; ++j)
      acc[r][j] = vmul(vset(alpha[r]), vload(out + r * o_stride + j * kLanes));
  }
  for (int64_t step = 0; step < steps; ++step) {
    const char* const* const rows = v_rows + step * Operand::kKeys;
#pragma GCC unroll 16
    for (int i = 0; i < kRuns; ++i) {
#pragma GCC unroll 2
      for (int n = 0; n < Operand::kKeys; ++n)
        fetch_beside<Operand>(ahead, rows + n, offset, (run + i) * Operand::kBytes);
      vf v[kVectors];
      Operand::load_v(rows, offset + (run + i) * Operand::kBytes, v);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const vf p_value = vset(p[step * p_stride + r]);
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) {
          vf& sum = acc[r][i * kVectors + j];
          sum = multiply_accumulate<Operand::kDotPairs>(p_value, v[j], sum);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kRuns * kVectors; ++j) vstore(out + r * o_stride + j * kLanes, acc[r][j]);
  }
}

// A last half run of fp32 products.
template <class Operand>
TEGULA_INLINE void narrow_output_last(const float* p, int64_t p_stride, const char* const* v_rows,
                                      int64_t offset, int64_t runs, int64_t steps, float alpha,
                                      float* acc_o) {
  float* const out = acc_o + runs * Operand::kValues;
  vf acc = vmul(vset(alpha), vload(out));
  for (int64_t step = 0; step < steps; ++step) {
    acc = vfma(vset(p[step * p_stride]),
               Operand::load_last(v_rows[step] + offset + runs * Operand::kBytes), acc);
  }
  vstore(out, acc);
}

// Runs [run, runs) in tiles of kRuns runs, then narrower ones.
template <int kRows, int kRuns, class Operand>
TEGULA_INLINE void narrow_output_runs(const float* p, int64_t p_stride, const char* const* v_rows,
                                      int64_t offset, int64_t run, int64_t runs, int64_t steps,
                                      const float* alpha, float* acc_o, int64_t o_stride,
                                      Ahead& ahead) {
  for (; run + kRuns <= runs; run += kRuns) {
    narrow_output_tile<kRows, kRuns, Operand>(p, p_stride, v_rows, offset, run, steps, alpha, acc_o,
                                              o_stride, ahead);
  }
  if constexpr (kRuns > 1) {
    if (run < runs) {
      narrow_output_runs<kRows, kRuns / 2, Operand>(p, p_stride, v_rows, offset, run, runs, steps,
                                                    alpha, acc_o, o_stride, ahead);
    }
  }
}

// P V of kRows rows, v read where it lies. Accumulators: as many as registers allow.
template <int kRows, class Operand>
__attribute__((noinline)) void narrow_output(const float* p, const char* const* v_rows,
                                             int64_t offset, int64_t steps, int64_t head_dim_v,
                                             const float* alpha, float* acc_o, int64_t o_stride,
                                             Ahead& ahead_of_block) {
  constexpr int kRegisters = kAccumulators < 16 ? 8 : 16;
  constexpr int kMost = kRegisters / Operand::kOutVectors;
  constexpr int kTileRows = kRows < kMost ? kRows : kMost;
  constexpr int kRuns = kMost / kTileRows < 4 ? kMost / kTileRows : 4;
  const int64_t runs = head_dim_v / Operand::kValues;
  Ahead ahead = ahead_of_block, nothing = {v_rows, v_rows, 0};
  for (int row = 0; row < kRows; row += kTileRows) {
    narrow_output_runs<kTileRows, kRuns, Operand>(p + row, kRows, v_rows, offset, 0, runs, steps,
                                                  alpha + row, acc_o + row * o_stride, o_stride,
                                                  row == 0 ? ahead : nothing);
  }
  if (head_dim_v % Operand::kValues != 0) {
    for (int row = 0; row < kRows; ++row) {
      narrow_output_last<Operand>(p + row, kRows, v_rows, offset, runs, steps, alpha[row],
                                  acc_o + row * o_stride);
    }
  }
  ahead_of_block = ahead;
}

// A finished row of o from the operand's order to the true one.
template <class Operand>
TEGULA_INLINE void reorder_output(float* acc_o, int64_t head_dim_v) {
  constexpr int kCount = Operand::kValues;
  for (int64_t d = 0; d + kCount <= head_dim_v; d += kCount) {
    float run[kCount];
    for (int i = 0; i < kCount; ++i) run[Operand::v_value(i)] = acc_o[d + i] * Operand::kScale;
    __builtin_memcpy(acc_o + d, run, sizeof run);
  }
  for (int64_t d = head_dim_v / kCount * kCount; d < head_dim_v; ++d) acc_o[d] *= Operand::kScale;
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
