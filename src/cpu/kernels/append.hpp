// SPDX-License-Identifier: Apache-2.0
// One row on its way into a cache: rotate, divide by the scale of an 8-bit cache, round
// (contract.md, 5). Rows that keep their bits do not come here. The same bits on every instruction
// set and device, so each product's rounding is fixed and nothing is vectorised differently.
#pragma once

#include "src/cpu/kernel_abi.hpp"
#include "src/cpu/kernels/block.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

inline void append(const cpu::AppendRow& row) {
  float value[512];  // head_dim and head_dim_v are at most 512
  widen_row(row.from_dtype, row.from, value, row.dim);
  const int64_t pairs = row.rotary_dim / 2;
  float cos[256], sin[256];
  if (pairs > 0) {
    widen_row(row.rotary_dtype, row.cos, cos, pairs);
    widen_row(row.rotary_dtype, row.sin, sin, pairs);
  }
  for (int64_t i = 0; i < pairs; ++i) {
    float* const x = value + (row.interleaved ? 2 * i : i);
    float* const y = row.interleaved ? x + 1 : x + pairs;
    const float y_sin = *y * sin[i];
    const float y_cos = *y * cos[i];
    const float rotated = __builtin_fmaf(*x, cos[i], -y_sin);
    *y = __builtin_fmaf(*x, sin[i], y_cos);
    *x = rotated;
  }
  if (size_of(row.to_dtype) == 1) {
    for (int64_t d = 0; d < row.dim; ++d) value[d] /= row.descale;
  }
  with_type(row.to_dtype, [&]<tegula_dtype kType>() {
    for (int64_t d = 0; d < row.dim; ++d) narrow<kType>(row.to + d * size_of(kType), value[d]);
  });
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
