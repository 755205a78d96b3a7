// SPDX-License-Identifier: Apache-2.0
// The end of a row: divide by the sum, take in the sink, write o and lse; and merging partial rows,
// which ends the same way.
#pragma once

#include "src/cpu/kernel_abi.hpp"
#include "src/cpu/kernels/block.hpp"
#include "src/cpu/kernels/softmax.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

// What finishing a row needs: o = factor * acc_o.
struct RowEnd {
  float factor;
  float lse;
};

// A row whose weights exp(s - max) sum to `sum`, max in natural-log units; a sink adds exp(sink -
// max) to the sum. The row is empty if sum is 0: the largest weight is about 1, and a NaN counts as
// a weight even where the maximum has passed over it. Double precision: exp(sink - lse) must be
// good to 2^-20 however far apart they are.
// Without want_lse and a sink, which needs it, lse is not computed.
TEGULA_INLINE RowEnd end_row(double max, double sum, const float* sink, bool want_lse) {
  const bool empty = sum == 0.0;
  if (sink == nullptr && !want_lse) return {empty ? 0.0f : static_cast<float>(1.0 / sum), 0.0f};
  const double lse = empty ? -__builtin_inf() : max + __builtin_log(sum);
  if (sink == nullptr || *sink == -__builtin_inff()) {
    return {empty ? 0.0f : static_cast<float>(1.0 / sum), static_cast<float>(lse)};
  }
  if (empty) return {0.0f, *sink};
  // softmax over {lse, sink}, from the difference so that neither exponential overflows
  const double difference = static_cast<double>(*sink) - lse;
  const double e = __builtin_exp(difference > 0 ? -difference : difference);
  const double share = (difference > 0 ? e : 1.0) / (1.0 + e);
  const double total = (difference > 0 ? static_cast<double>(*sink) : lse) + __builtin_log1p(e);
  return {static_cast<float>(share / sum), static_cast<float>(total)};
}

// kLanes rows without a sink.
struct RowEnds {
  vf factor, lse;
};
TEGULA_INLINE RowEnds end_rows(vf max, vf sum) {
  const vm empty = vequal(sum, vzero());
  const vf lse = vselect(vequal(sum, sum), vadd(max, vlog(sum)), sum);  // NaN passes
  return {vselect(empty, vzero(), vdiv(vset(1.0f), sum)),
          vselect(empty, vset(-__builtin_inff()), lse)};
}

// Multiplies in place.
TEGULA_INLINE void scale_row(float* value, float factor, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) vstore(value + i, vmul(vload(value + i), vset(factor)));
  for (; i < count; ++i) value[i] *= factor;
}

// How the row of query head `head` of the group ends, descale_v included.
TEGULA_INLINE RowEnd end_task_row(const cpu::ForwardTask& task, int64_t head, float row_max,
                                  float row_sum) {
  const bool split = task.o_partial != nullptr;
  const float* const sink =
      task.sink != nullptr && !split ? task.sink + head * task.sink_stride : nullptr;
  const double max =
      static_cast<double>(row_max) * (task.cooked ? 1.0 : static_cast<double>(task.scale));
  RowEnd end = end_row(max, row_sum, sink, split || task.lse != nullptr);
  end.factor *= task.v_scale;
  return end;
}

// How kLanes packed rows from `row` on end.
TEGULA_INLINE void end_task_rows(const cpu::ForwardTask& task, PackedRow row, const float* row_max,
                                 const float* row_sum, RowEnd (&ends)[kLanes]) {
  if (task.sink != nullptr) {
    for (int i = 0; i < kLanes; ++i, row.next())
      ends[i] = end_task_row(task, row.head, row_max[i], row_sum[i]);
    return;
  }
  const vf max = vmul(vload(row_max), vset(task.cooked ? 1.0f : task.scale));
  const RowEnds together = end_rows(max, vload(row_sum));
  float factor[kLanes], lse[kLanes];
  vstore(factor, vmul(together.factor, vset(task.v_scale)));
  vstore(lse, together.lse);
  for (int i = 0; i < kLanes; ++i) ends[i] = {factor[i], lse[i]};
}

// Writes `row`, row r of the task.
TEGULA_INLINE void write_row(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                             int64_t r, const PackedRow& row, const RowEnd& end,
                             const float* acc_o) {
  if (task.o_partial != nullptr) {
    narrow_row(TEGULA_F32, acc_o,
               reinterpret_cast<char*>(task.o_partial + r * params.head_dim_v),
               params.head_dim_v, end.factor);
    task.lse_partial[r] = end.lse;
    return;
  }
  narrow_row(params.o_dtype, acc_o,
             task.o + row.token * task.o_token_stride + row.head * task.o_head_stride,
             params.head_dim_v, end.factor);
  if (task.lse != nullptr)
    task.lse[row.token * task.lse_token_stride + row.head * task.lse_head_stride] = end.lse;
}

TEGULA_INLINE void finish_row(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                              int64_t r, const PackedRow& row, float row_max, float row_sum,
                              const float* acc_o) {
  write_row(params, task, r, row, end_task_row(task, row.head, row_max, row_sum), acc_o);
}

// o = sum_s exp(lse_s - lse) o_s in the order of s. A partial whose lse is -inf or +inf is empty
// and its o is not read.
inline void combine(const cpu::CombineRow& row) {
  const auto lse_of = [&](int64_t s) { return row.lse_partial[s * row.lse_split_stride]; };
  const auto is_empty = [](float lse) {
    return lse == -__builtin_inff() || lse == __builtin_inff();
  };
  double max = -__builtin_inf(), sum = 0.0;
  for (int64_t s = 0; s < row.num_splits; ++s) {
    const float lse = lse_of(s);
    if (!is_empty(lse) && lse > max) max = lse;  // a NaN comes in by the sum
  }
  for (int64_t s = 0; s < row.num_splits; ++s) {
    if (!is_empty(lse_of(s))) sum += __builtin_exp(static_cast<double>(lse_of(s)) - max);
  }
  const RowEnd end = end_row(max, sum, row.sink, row.lse != nullptr);
  const int64_t element = size_of(row.o_dtype);
  constexpr int64_t kChunk = 64;
  for (int64_t d = 0; d < row.head_dim_v; d += kChunk) {
    const int64_t count = row.head_dim_v - d < kChunk ? row.head_dim_v - d : kChunk;
    float acc[kChunk] = {}, part[kChunk];
    for (int64_t s = 0; s < row.num_splits; ++s) {
      if (is_empty(lse_of(s))) continue;
      const float weight =
          static_cast<float>(__builtin_exp(static_cast<double>(lse_of(s)) - max)) * end.factor;
      widen_row(row.partial_dtype,
                row.o_partial + s * row.o_split_stride + d * size_of(row.partial_dtype), part,
                count);
      for (int64_t i = 0; i < count; ++i) acc[i] += weight * part[i];
    }
    narrow_row(row.o_dtype, acc, row.o + d * element, count);
  }
  if (row.lse != nullptr) *row.lse = end.lse;
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
