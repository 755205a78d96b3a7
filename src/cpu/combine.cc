// SPDX-License-Identifier: Apache-2.0
// Merging partial results of the same rows: one task for a few rows.
#include <algorithm>

#include "src/core/dtype.hpp"
#include "src/core/integer.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/rows.hpp"
#include "src/cpu/tasks.hpp"

namespace tegula::cpu {

Status combine(const KernelFamily& family, const CombineCall& call, const Execution& execution) {
  const int64_t rows = call.batch * call.tokens * call.num_heads;
  const auto partial_size = static_cast<int64_t>(dtype_size(call.o_partial.dtype));
  const int64_t row_bytes = std::max<int64_t>(1, call.num_splits * call.head_dim_v * partial_size);
  const int64_t rows_a_task = std::max<int64_t>(1, kTaskBytes / row_bytes);
  run_tasks(
      execution, num_workers_of(execution), ceil_div(rows, rows_a_task),
      [&](int64_t task, int32_t) {
        for (int64_t r = task * rows_a_task; r < std::min((task + 1) * rows_a_task, rows); ++r) {
          const int64_t head = r % call.num_heads;
          const int64_t token = r / call.num_heads % call.tokens;
          const int64_t b = r / call.num_heads / call.tokens;
          CombineRow row{};
          row.partial_dtype = call.o_partial.dtype;
          row.o_dtype = call.o.dtype;
          row.num_splits = call.num_splits;
          row.head_dim_v = call.head_dim_v;
          row.o_partial = reinterpret_cast<const char*>(row_at(call.o_partial, b, token, head));
          row.o_split_stride = call.o_split_stride * partial_size;
          const auto lse_at = [&](const StridedView& view) {
            return reinterpret_cast<float*>(view.data) + b * view.strides[0] +
                   head * view.strides[1] + token * view.strides[2];
          };
          row.lse_partial = lse_at(call.lse_partial);
          row.lse_split_stride = call.lse_split_stride;
          row.sink = call.sink.present() ? reinterpret_cast<const float*>(call.sink.data) +
                                               head * call.sink.strides[0]
                                         : nullptr;
          row.o = reinterpret_cast<char*>(const_cast<std::byte*>(row_at(call.o, b, token, head)));
          row.lse = call.lse.present() ? lse_at(call.lse) : nullptr;
          family.combine(row);
        }
      });
  return {};
}

}  // namespace tegula::cpu
