// SPDX-License-Identifier: Apache-2.0
// Forward attention of one work item: packed query rows of one sequence and one or more kv heads
// against a range of keys. Design, measurements and dead ends: docs/design/cpu_forward.md.
#pragma once

#include "src/cpu/kernels/finish.hpp"
#include "src/cpu/kernels/narrow.hpp"
#include "src/cpu/kernels/wide.hpp"
#ifdef TEGULA_TILES
#include "src/cpu/kernels/tile_decode.hpp"
#include "src/cpu/kernels/tile_prefill.hpp"
#endif

namespace tegula::TEGULA_ISA_NAMESPACE {

#ifdef TEGULA_TILES
inline constexpr bool kHasTiles = true;
#else
inline constexpr bool kHasTiles = false;
#endif

#ifdef TEGULA_TILES
TEGULA_INLINE void attend_on_tiles(const cpu::ForwardParams& params, const cpu::ForwardTask* tasks,
                                   int64_t heads, char* scratch) {
  if (is_tile_decode(params, *tasks)) {
    if (tasks->row_end - tasks->row_begin <= 16)
      return attend_tile_decode<1>(params, tasks, heads, scratch);
    return attend_tile_decode<2>(params, tasks, heads, scratch);
  }
  for (int64_t h = 0; h < heads; ++h) {
    if (params.tiles.q_parts == 1) {
      attend_tiles<1>(params, tasks[h], scratch);
    } else {
      attend_tiles<2>(params, tasks[h], scratch);
    }
  }
}
#endif

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
#ifdef TEGULA_TILES
  if (params.use_tiles && !is_narrow(params, *tasks)) {
    return attend_on_tiles(params, tasks, heads, scratch);
  }
#endif
  if (kHasPairs && params.pairs) {
    attend<kHasPairs>(params, tasks, heads, scratch);
  } else {
    attend<false>(params, tasks, heads, scratch);
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
