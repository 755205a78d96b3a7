// SPDX-License-Identifier: Apache-2.0
// Forward attention of one work item: packed query rows of one sequence and kv head against a range
// of keys. Design, measurements and dead ends: docs/design/cpu_forward.md.
#pragma once

#include "src/cpu/kernels/finish.hpp"
#include "src/cpu/kernels/narrow.hpp"
#include "src/cpu/kernels/wide.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

template <bool kPairs>
TEGULA_INLINE void attend(const Item& item) {
  if (is_narrow(item)) {
    attend_narrow<kPairs>(item);
  } else {
    attend_wide<kPairs>(item);
  }
}

inline void forward(const cpu::ForwardParams& params, const cpu::ForwardTask& task, char* scratch) {
  const Item item = begin_item(params, task, scratch);
  if (kHasPairs && params.pairs) {
    attend<kHasPairs>(item);
  } else {
    attend<false>(item);
  }
  for (int64_t r = 0; r < item.rows; ++r) {
    const int64_t token = item.first_token() + item.token[r];
    finish_row(params, task, r, token, task.row_begin + r - token * params.qheads_per_kvhead,
               item.row_max[r], item.row_sum[r],
               item.at(params.layout.acc_o) + r * params.layout.o_stride);
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
