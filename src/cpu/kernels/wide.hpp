// SPDX-License-Identifier: Apache-2.0
// One work item with many query rows (prefill): panels of packed rows, lanes = rows, block by block
// over the keys.
#pragma once

#include "src/cpu/kernels/item.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

// One block of keys for one panel.
template <int kVectors, bool kPairs>
TEGULA_INLINE void step(const Item& item, int64_t panel, const Block& block, const Window& window) {
  const cpu::ForwardLayout& layout = item.params.layout;
  score_block<kVectors, kPairs>(
      block.k_rows, item.at(layout.q_t) + panel * item.stride * layout.q_steps, layout.q_steps,
      item.stride, window.begin, window.end, item.at(layout.scores), item.column_max);
  softmax_panel<kVectors, kPairs>(item, panel, block, window);
  output_panel<kPairs>(item, panel, block, window);
}

template <int kVectors, bool kPairs>
TEGULA_INLINE void step_vectors(int64_t vectors, const Item& item, int64_t panel,
                                const Block& block, const Window& window) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors)
      return step_vectors<kVectors - 1, kPairs>(vectors, item, panel, block, window);
  }
  step<kVectors, kPairs>(item, panel, block, window);
}

template <bool kPairs>
TEGULA_INLINE void attend_wide(const Item& item) {
  pack_queries(item.params, item.task, item.scratch + item.params.layout.q_t,
               item.at(item.params.layout.widen));
  for_each_block(item, item.params.tile_n, [&](int64_t first, int64_t begin, int64_t end) {
    const Block block = find_block(item.params, item.task, first, begin, end, item.scratch);
    load_k(item.params, block, item.scratch);
    load_v(item.params, block, item.scratch);
    for (int64_t panel = 0; panel * item.stride < item.rows; ++panel) {
      const Window window = mask_panel(item, panel, block);
      if (window.begin >= window.end) continue;
      const int64_t rows = item.rows - panel * item.stride;
      const int64_t vectors = ((rows < item.stride ? rows : item.stride) + kLanes - 1) / kLanes;
      step_vectors<kPanelVectors, kPairs>(vectors, item, panel, block, window);
    }
  });
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
