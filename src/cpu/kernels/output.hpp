// SPDX-License-Identifier: Apache-2.0
// acc_o[row][d] = alpha[row] acc_o[row][d] + sum_n P^T[n][row] V[n][d]: P^T as the softmax left it
// is the broadcast operand.
#pragma once

#include "src/cpu/kernels/score.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

template <int kRows, int kVectors, bool kPairs>
TEGULA_INLINE void output_tile(const float* p, int64_t p_stride, const char* const* v_rows,
                               int64_t column, int64_t steps, const float* alpha, float* acc_o,
                               int64_t o_stride) {
  vf acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      acc[r][j] = vmul(vset(alpha[r]), vload(acc_o + r * o_stride + column + j * kLanes));
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    const float* const v_row = reinterpret_cast<const float*>(v_rows[step]) + column;
    vf v[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) v[j] = vload(v_row + j * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const vf p_value = vset(p[step * p_stride + r]);
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j)
        acc[r][j] = multiply_accumulate<kPairs>(p_value, v[j], acc[r][j]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j)
      vstore(acc_o + r * o_stride + column + j * kLanes, acc[r][j]);
  }
}

// All columns from `column` on, in tiles of kVectors vectors, then narrower ones.
template <int kRows, int kVectors, bool kPairs>
TEGULA_INLINE void output_columns(const float* p, int64_t p_stride, const char* const* v_rows,
                                  int64_t column, int64_t steps, const float* alpha, float* acc_o,
                                  int64_t o_stride) {
  for (; column + kVectors * kLanes <= o_stride; column += kVectors * kLanes) {
    output_tile<kRows, kVectors, kPairs>(p, p_stride, v_rows, column, steps, alpha, acc_o,
                                         o_stride);
  }
  if constexpr (kVectors > 1) {
    output_columns<kRows, kVectors / 2, kPairs>(p, p_stride, v_rows, column, steps, alpha, acc_o,
                                                o_stride);
  }
}

// rows: that hold queries. The widest tile may run into padding rows, of which there are up to
// padded_rows.
template <bool kPairs>
__attribute__((noinline)) void output_block(const float* p, int64_t p_stride, int64_t padded_rows,
                                            const char* const* v_rows, int64_t steps, int64_t rows,
                                            const float* alpha, float* acc_o, int64_t o_stride) {
  int64_t row = 0;
  for (; rows - row > 2 && row + kOutRows <= padded_rows; row += kOutRows) {
    output_columns<kOutRows, kOutVectors, kPairs>(p + row, p_stride, v_rows, 0, steps, alpha + row,
                                                  acc_o + row * o_stride, o_stride);
  }
  for (; rows - row > 1; row += 2) {
    output_columns<2, 4, kPairs>(p + row, p_stride, v_rows, 0, steps, alpha + row,
                                 acc_o + row * o_stride, o_stride);
  }
  if (row < rows) {
    output_columns<1, 8, kPairs>(p + row, p_stride, v_rows, 0, steps, alpha + row,
                                 acc_o + row * o_stride, o_stride);
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
