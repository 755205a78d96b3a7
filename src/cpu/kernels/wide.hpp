// SPDX-License-Identifier: Apache-2.0
// One work item with many query rows (prefill): panels of packed rows, lanes = rows, block by block
// over the keys.
#pragma once

#include "src/cpu/kernels/item.hpp"
#include "src/cpu/kernels/pack.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

// Rows of a panel whose trip counts are their own: a vector of them, where rows of the output tile
// do not straddle two vectors.
inline constexpr int kGroupVectors = kLanes % kOutRows == 0 ? 1 : kPanelVectors;

// A softcap alone is monotone, so that the maximum is capped instead of every score's being found
// again, and the scores are capped on their way into the softmax.
TEGULA_INLINE bool is_capped(const Item& item) {
  const cpu::ForwardTask& task = item.task;
  return item.params.softcap > 0.0f && task.bias == nullptr && task.alibi_slopes == nullptr &&
         // Softcap's coefficients are powers of the ratio, up to the tenth.
         task.scale > 0x1p-40f * item.params.softcap && task.scale < 0x1p12f * item.params.softcap;
}

// Whether the scores need more than that before the softmax.
TEGULA_INLINE bool is_cooked(const Item& item) {
  return item.task.cooked && !is_capped(item);
}

// What the vectors of a panel see of a block. Both ends of what a token sees move monotonically
// with the token.
struct PanelSpans {
  Span of[kPanelVectors];
  bool partial = false;  // not every row sees the same keys
};

TEGULA_INLINE Span span_of_rows(const Item& item, int64_t first_row, int64_t last_row,
                                const Block& block) {
  const cpu::ForwardTask& task = item.task;
  int64_t token = item.token[first_row];
  const int64_t last = item.token[last_row];
  const auto clip = [&](int64_t key) {
    key -= block.first;
    return key < block.begin ? block.begin : key > block.end ? block.end : key;
  };
  const int64_t full_end = clip(task.range_end[token]);
  const int64_t full_begin = clip(task.range_begin[last]);
  // A row without keys must not stretch the interval.
  while (token < last && task.range_begin[token] >= task.range_end[token]) ++token;
  Span span{clip(task.range_begin[token]), clip(task.range_end[last]), full_begin, full_end};
  if (span.begin >= span.end) return {span.begin, span.begin, span.begin, span.begin};
  if (item.params.pairs) span.begin &= ~int64_t{1};
  return span;
}

// Fills the item's mask arrays too, where they will be needed.
TEGULA_INLINE PanelSpans spans_of_panel(const Item& item, int64_t panel, int64_t vectors,
                                        const Block& block) {
  PanelSpans spans;
  const int64_t first_row = panel * item.stride;
  for (int64_t j = 0; j < vectors; ++j) {
    if (j % kGroupVectors != 0) {
      spans.of[j] = spans.of[j - 1];
      continue;
    }
    const int64_t group = vectors - j < kGroupVectors ? vectors - j : kGroupVectors;
    const Span span =
        span_of_rows(item, first_row + j * kLanes, first_row + (j + group) * kLanes - 1, block);
    spans.of[j] = span;
    const Span& top = spans.of[0];
    spans.partial |= span.begin >= span.end || span.begin < span.full_begin ||
                     span.end > span.full_end || (item.params.pairs && span.end % 2 != 0) ||
                     // the last tile would take the block's next keys into the maximum
                     span.end != block.end ||
                     span.begin != top.begin || span.end != top.end;
  }
  if (spans.partial || is_cooked(item)) mask_rows(item, first_row, vectors * kLanes, block);
  return spans;
}

// From raw scores and their maxima to P, for vectors [first, first + kVectors) of the panel, which
// see the same keys.
template <int kVectors, bool kPairs>
TEGULA_INLINE void softmax_vectors(const Item& item, int64_t first_row, int64_t first,
                                   const Span& span) {
  const cpu::ForwardLayout& layout = item.params.layout;
  const int64_t lane = first * kLanes, row = first_row + lane;
  const int64_t end = kPairs ? (span.end + 1) & ~int64_t{1} : span.end;
  float* const scores = item.at(layout.scores) + lane;
  float* const pairs = item.at(layout.p_pairs) + lane;
  if (is_capped(item)) {
    capped_softmax_block<kVectors, kPairs>(item.task.scale, item.params.softcap, item.stride,
                                           span.begin, end, item.column_max + lane, scores, pairs,
                                           item.row_max + row, item.row_sum + row,
                                           item.alpha + row);
  } else {
    softmax_block<kVectors, kPairs>(item.exponent_scale, item.stride, span.begin, end,
                                    item.column_max + lane, scores, pairs, item.row_max + row,
                                    item.row_sum + row, item.alpha + row);
  }
}

// One block of keys for one panel of kVectors vectors.
template <int kVectors, bool kPairs>
TEGULA_INLINE void step(const Item& item, int64_t panel, const Block& block, BlockAhead& ahead) {
  const cpu::ForwardLayout& layout = item.params.layout;
  const int64_t first_row = panel * item.stride;
  const PanelSpans spans = spans_of_panel(item, panel, kVectors, block);
  score_panel<kVectors, kPairs>(block.k_rows, item.at(layout.q_t) + first_row * layout.q_steps,
                                layout.q_steps, item.stride, spans.of,
                                spans.partial && !is_cooked(item), item.mask_begin, item.mask_end,
                                item.at(layout.scores), item.column_max, ahead);
  if (is_cooked(item)) cook_spans<kVectors, kPairs>(item, panel, block, spans.of);
  if (!spans.partial) {
    softmax_vectors<kVectors, kPairs>(item, first_row, 0, spans.of[0]);
  } else {
    for (int j = 0; j < kVectors; ++j) {
      if (spans.of[j].begin < spans.of[j].end)
        softmax_vectors<1, kPairs>(item, first_row, j, spans.of[j]);
    }
  }
  for (int j = 0; j < kVectors; j += kGroupVectors) {
    const int64_t row = first_row + j * kLanes;
    const int64_t left = item.rows - row, most = kGroupVectors * kLanes;
    if (spans.of[j].begin < spans.of[j].end)
      output_rows<kPairs>(item, block, row, j * kLanes, left < most ? left : most,
                          {spans.of[j].begin, spans.of[j].end, spans.partial});
  }
}

template <int kVectors, bool kPairs>
TEGULA_INLINE void step_vectors(int64_t vectors, const Item& item, int64_t panel,
                                const Block& block, BlockAhead& ahead) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors)
      return step_vectors<kVectors - 1, kPairs>(vectors, item, panel, block, ahead);
  }
  step<kVectors, kPairs>(item, panel, block, ahead);
}

template <bool kPairs>
TEGULA_INLINE void attend_wide(const Item& item) {
  const cpu::ForwardParams& params = item.params;
  const int64_t panels = (item.rows + item.stride - 1) / item.stride;
  const auto find = [&](int64_t index, int64_t first, int64_t begin, int64_t end) {
    const bool odd = index % 2 != 0;
    return find_rows(params, item.task, first, begin, end,
                     row_list(params, item.scratch, odd ? RowList::kNextK : RowList::kK),
                     row_list(params, item.scratch, odd ? RowList::kNextV : RowList::kV),
                     item.scratch + params.layout.zero_row);
  };
  const Window hull = visible_keys(item);
  if (hull.begin >= hull.end) return;
  const auto block_end = [&](int64_t first) {
    return first + params.tile_n < hull.end ? first + params.tile_n : hull.end;
  };
  const auto panel_end = [&](int64_t first) {
    return first + item.stride < item.rows ? first + item.stride : item.rows;
  };
  // Blocks lie on a grid from key_begin on, wherever the first visible key is: a row's bits then do
  // not depend on which other rows share its item.
  int64_t first = hull.begin - (hull.begin - item.task.key_begin) % params.tile_n;
  Block block = find(0, first, hull.begin, block_end(first));
  for (int64_t index = 1; first < hull.end; ++index) {
    load_keys(params, block, item.scratch);
    load_values(params, item.task, block, item.scratch);
    first += params.tile_n;
    const Block next = find(index, first, first, block_end(first));
    BlockAhead ahead(params, item.task, next,
                     panels * (params.tile_n / kScoreKeys<kPanelVectors>));
    for (int64_t panel = 0; panel < panels; ++panel) {
      const int64_t row = panel * item.stride, end = panel_end(row);
      if (index == 1) {
        pack_queries(params, item.task, row, end,
                     item.at(params.layout.q_t) + row * params.layout.q_steps);
        ahead.add_queries(params, end, panel_end(end));
      }
      step_vectors<kPanelVectors, kPairs>((end - row + kLanes - 1) / kLanes, item, panel, block,
                                          ahead);
    }
    block = next;
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
