// SPDX-License-Identifier: Apache-2.0
// Forward attention of one work item: packed query rows of one sequence and one or more kv heads
// against a range of keys. Design, measurements and dead ends: docs/design/cpu_forward.md.
#pragma once

#include "src/cpu/kernels/finish.hpp"
#include "src/cpu/kernels/narrow.hpp"
#include "src/cpu/kernels/wide.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

template <bool kPairs>
TEGULA_INLINE void attend(const cpu::ForwardParams& params, const cpu::ForwardTask* tasks,
                          int64_t heads, char* scratch) {
  if (is_narrow(params, *tasks)) return attend_narrow<kPairs>(params, tasks, heads, scratch);
  for (int64_t h = 0; h < heads; ++h) {
    const Item item = begin_item(params, tasks[h], scratch);
    attend_wide<kPairs>(item);
    finish_item(item);
  }
}

inline void forward(const cpu::ForwardParams& params, const cpu::ForwardTask* tasks, int64_t heads,
                    char* scratch) {
  if (kHasPairs && params.pairs) {
    attend<kHasPairs>(params, tasks, heads, scratch);
  } else {
    attend<false>(params, tasks, heads, scratch);
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
