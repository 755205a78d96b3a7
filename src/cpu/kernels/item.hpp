// SPDX-License-Identifier: Apache-2.0
// A work item in flight: its state in the worker's scratch, and the steps that every way of
// computing its scores shares (mask, softmax, P V, the walk over blocks of keys).
#pragma once

#include "src/cpu/kernel_abi.hpp"
#include "src/cpu/kernels/block.hpp"
#include "src/cpu/kernels/finish.hpp"
#include "src/cpu/kernels/output.hpp"
#include "src/cpu/kernels/score.hpp"
#include "src/cpu/kernels/softmax.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

// What one worker holds while it works on an item: all of it lies in the worker's scratch.
struct Item {
  const cpu::ForwardParams& params;
  const cpu::ForwardTask& task;
  char* scratch;
  char* q;         // packed queries
  float* acc_o;    // [row][o_stride]
  int64_t rows;    // packed query rows
  int64_t stride;  // rows of a panel
  float exponent_scale;
  float* row_max;  // [panels][stride], and so on
  float* row_sum;
  float* alpha;
  float* slope;
  int32_t* token;       // of the row, counted from the task's first token
  int32_t* mask_begin;  // of the panel at hand, relative to the block: [stride]
  int32_t* mask_end;
  float* position;
  float* column_max;

  float* at(int64_t offset) const { return reinterpret_cast<float*>(scratch + offset); }
  int64_t first_token() const { return task.row_begin / params.qheads_per_kvhead; }
};

// state: 5 arrays of padded rows, then 4 of a panel.
TEGULA_INLINE Item make_item(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                             char* scratch, int64_t stride, int64_t padded, char* q, float* acc_o,
                             float* state) {
  float* const panel = state + 5 * padded;
  const int64_t lanes = stride < kLanes ? kLanes : stride;  // a panel's arrays are whole vectors
  return {params,
          task,
          scratch,
          q,
          acc_o,
          task.row_end - task.row_begin,
          stride,
          task.cooked ? kLog2e : task.scale * kLog2e,
          state,
          state + padded,
          state + 2 * padded,
          state + 3 * padded,
          reinterpret_cast<int32_t*>(state + 4 * padded),
          reinterpret_cast<int32_t*>(panel),
          reinterpret_cast<int32_t*>(panel + lanes),
          panel + 2 * lanes,
          panel + 3 * lanes};
}

// Before the first key. padded: rows that the item has room for.
TEGULA_INLINE void reset_item(const Item& item, int64_t padded) {
  const cpu::ForwardLayout& layout = item.params.layout;
  const cpu::ForwardTask& task = item.task;
  for (int64_t r = 0; r < padded; r += kLanes) {
    vstore(item.row_max + r, vset(-__builtin_inff()));
    vstore(item.row_sum + r, vzero());
  }
  PackedRow row(item.params, task);
  const int64_t first_token = row.token;
  for (int64_t r = 0; r < padded; ++r) {
    item.token[r] = static_cast<int32_t>(row.token - first_token);
    item.slope[r] =
        task.alibi_slopes != nullptr ? task.alibi_slopes[row.head * task.alibi_stride] : 0.0f;
    // Padding rows repeat the last row's mask, so that they never make a block partial.
    if (r + 1 < item.rows) row.next();
  }
  __builtin_memset(
      item.scratch + layout.zero_row, 0,
      4 * static_cast<size_t>(layout.q_steps > layout.o_stride ? layout.q_steps : layout.o_stride));
  __builtin_memset(item.acc_o, 0, static_cast<size_t>(padded * layout.o_stride * 4));
}

TEGULA_INLINE Item begin_item(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                              char* scratch) {
  const cpu::ForwardLayout& layout = params.layout;
  const int64_t rows = task.row_end - task.row_begin;
  const int64_t padded = (rows + layout.panel_rows - 1) / layout.panel_rows * layout.panel_rows;
  const Item item =
      make_item(params, task, scratch, layout.panel_rows, padded, scratch + layout.q_t,
                reinterpret_cast<float*>(scratch + layout.acc_o),
                reinterpret_cast<float*>(scratch + layout.rows));
  reset_item(item, padded);
  return item;
}

// What a panel sees of a block: keys [begin, end) relative to it, and whether some row sees only a
// part of them.
struct Window {
  int64_t begin, end;
  bool partial;
};

// Fills the mask arrays for `count` rows from first_row on.
TEGULA_INLINE void mask_rows(const Item& item, int64_t first_row, int64_t count,
                             const Block& block) {
  const cpu::ForwardTask& task = item.task;
  const int64_t first_position = item.first_token() + task.seqlen_k - task.seqlen_q - block.first;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t token = item.token[first_row + r];
    int64_t begin = task.range_begin[token] - block.first;
    int64_t end = task.range_end[token] - block.first;
    begin = begin < block.begin ? block.begin : begin;
    end = end > block.end ? block.end : end;
    if (begin >= end) begin = end = block.begin;
    item.mask_begin[r] = static_cast<int32_t>(begin);
    item.mask_end[r] = static_cast<int32_t>(end);
    item.position[r] = static_cast<float>(first_position + token);
  }
}

// Fills the mask arrays of a panel of few rows.
TEGULA_INLINE Window mask_panel(const Item& item, int64_t panel, const Block& block) {
  mask_rows(item, panel * item.stride, item.stride, block);
  int64_t lowest = block.end, highest = block.begin, full_begin = block.begin, full_end = block.end;
  for (int64_t r = 0; r < item.stride; ++r) {
    const int64_t begin = item.mask_begin[r], end = item.mask_end[r];
    if (begin < end) {
      lowest = begin < lowest ? begin : lowest;
      highest = end > highest ? end : highest;
    }
    full_begin = begin > full_begin ? begin : full_begin;
    full_end = end < full_end ? end : full_end;
  }
  if (item.params.pairs) lowest &= ~int64_t{1};
  return {lowest, highest, lowest < full_begin || highest > full_end};
}

// The bias of the panel, transposed to [n][row]; a boolean one becomes 0 or -inf.
__attribute__((noinline)) inline void load_bias(const Item& item, int64_t panel, const Block& block,
                                                const Window& window, float* bias_t) {
  const cpu::ForwardTask& task = item.task;
  for (int64_t r = 0; r < item.stride; ++r) {
    const int64_t row =
        panel * item.stride + r < item.rows ? panel * item.stride + r : item.rows - 1;
    const int64_t token = item.first_token() + item.token[row];
    const int64_t head = task.row_begin + row - token * item.params.qheads_per_kvhead;
    const char* const from = task.bias + head * task.bias_head_stride +
                             token * task.bias_token_stride + block.first * task.bias_key_stride;
    const auto load = [&](auto value) {
      for (int64_t n = window.begin; n < window.end; ++n)
        bias_t[n * item.stride + r] = value(from + n * task.bias_key_stride);
    };
    if (item.params.bias_dtype == TEGULA_BOOL) {
      load([](const char* p) { return *p != 0 ? 0.0f : -__builtin_inff(); });
    } else {
      with_type(item.params.bias_dtype,
                [&]<tegula_dtype kType>() { load([](const char* p) { return widen<kType>(p); }); });
    }
  }
}

// With a bias: the list of v rows for some rows of a panel, whose weights are p, in which a key
// that is hidden from all of them is a row of zeros (its v may hold anything, and 0 * NaN is NaN).
// All are to be read `offset` bytes on.
TEGULA_INLINE const char** visible_rows(const Item& item, const float* p, const Window& window,
                                        int64_t rows, const Block& block, int64_t offset = 0) {
  const char** const visible = row_list(item.params, item.scratch, RowList::kVisible);
  for (int64_t n = window.begin; n < window.end; ++n) {
    bool any = false;
    for (int64_t r = 0; r < rows; ++r) any |= p[n * item.stride + r] != 0.0f;
    visible[n] = any ? block.v_rows[n] : item.scratch + item.params.layout.zero_row - offset;
  }
  for (int64_t i = 0; i < cpu::kRowPad; ++i) visible[window.end + i] = visible[window.end - 1];
  return visible;
}

// Score modifiers and mask, where there are any. step: see cook_block.
template <int kVectors>
TEGULA_INLINE void cook_panel(const Item& item, int64_t panel, const Block& block,
                              const Window& window, int64_t step) {
  const cpu::ForwardLayout& layout = item.params.layout;
  if (!item.task.cooked && !window.partial) return;
  const float* bias_t = nullptr;
  if (item.task.bias != nullptr) {
    load_bias(item, panel, block, window, item.at(layout.bias_t));
    bias_t = item.at(layout.bias_t);
  }
  const PanelMask mask{item.mask_begin, item.mask_end, item.position,
                       item.slope + panel * item.stride};
  cook_block<kVectors>(item.params, item.task.cooked ? item.task.scale : 1.0f, mask, bias_t,
                       item.task.alibi_slopes != nullptr, item.stride, step, window.begin,
                       window.end, item.at(layout.scores), item.column_max);
}

// From raw scores and their maxima to P.
template <int kVectors, bool kPairs>
TEGULA_INLINE void softmax_panel(const Item& item, int64_t panel, const Block& block,
                                 const Window& window) {
  const cpu::ForwardLayout& layout = item.params.layout;
  const int64_t first_row = panel * item.stride;
  float* const scores = item.at(layout.scores);
  int64_t end = window.end;
  cook_panel<kVectors>(item, panel, block, window, 1);
  if (kPairs && (end - window.begin) % 2 != 0) {
    for (int64_t r = 0; r < kVectors * kLanes; ++r)
      scores[end * item.stride + r] = -__builtin_inff();
    ++end;
  }
  softmax_block<kVectors, kPairs>(item.exponent_scale, item.stride, window.begin, end,
                                  item.column_max, scores, item.at(layout.p_pairs),
                                  item.row_max + first_row, item.row_sum + first_row,
                                  item.alpha + first_row);
}

// Score modifiers and mask of a panel of the wide kernel, each vector over its span.
template <int kVectors, bool kPairs>
TEGULA_INLINE void cook_spans(const Item& item, int64_t panel, const Block& block,
                              const Span* spans) {
  const cpu::ForwardLayout& layout = item.params.layout;
  const float* bias_t = nullptr;
  if (item.task.bias != nullptr) {
    bias_t = item.at(layout.bias_t);
    load_bias(item, panel, block, {block.begin, block.end, true}, item.at(layout.bias_t));
  }
  for (int j = 0; j < kVectors; ++j) {
    const int64_t lane = j * kLanes;
    const PanelMask mask{item.mask_begin + lane, item.mask_end + lane, item.position + lane,
                         item.slope + panel * item.stride + lane};
    const int64_t end = kPairs ? (spans[j].end + 1) & ~int64_t{1} : spans[j].end;
    cook_block<1>(item.params, item.task.scale, mask, bias_t != nullptr ? bias_t + lane : nullptr,
                  item.task.alibi_slopes != nullptr, item.stride, 1, spans[j].begin, end,
                  item.at(layout.scores) + lane, item.column_max + lane);
  }
}

// P V of `rows` rows from first_row on, which are those of the panel from `lane` on, over the keys
// of the window.
template <bool kPairs>
TEGULA_INLINE void output_rows(const Item& item, const Block& block, int64_t first_row,
                               int64_t lane, int64_t rows, const Window& window) {
  const cpu::ForwardLayout& layout = item.params.layout;
  const float* const p = item.at(kPairs ? layout.p_pairs : layout.scores) + lane;
  const char** const v_rows = item.task.bias != nullptr
                                  ? visible_rows(item, p, window, rows, block)
                                  : block.v_rows;
  const int64_t begin = kPairs ? window.begin / 2 : window.begin;
  const int64_t end = kPairs ? (window.end + 1) / 2 : window.end;
  output_block<kPairs>(p + begin * item.stride, item.stride, item.stride - lane, v_rows + begin,
                       end - begin, rows, item.alpha + first_row,
                       item.acc_o + first_row * layout.o_stride, layout.o_stride);
}

// The keys that one of the task's first `tokens` tokens sees.
TEGULA_INLINE Window visible_keys(const cpu::ForwardTask& task, int64_t tokens) {
  int64_t begin = task.key_end, end = task.key_begin;
  for (int64_t t = 0; t < tokens; ++t) {
    if (task.range_begin[t] >= task.range_end[t])
      continue;  // a row without keys must not stretch the interval
    begin = task.range_begin[t] < begin ? task.range_begin[t] : begin;
    end = task.range_end[t] > end ? task.range_end[t] : end;
  }
  return {begin < task.key_begin ? task.key_begin : begin, end > task.key_end ? task.key_end : end,
          false};
}

TEGULA_INLINE Window visible_keys(const Item& item) {
  return visible_keys(item.task, item.token[item.rows - 1] + 1);
}

// The keys that every row of the item sees; they may be none.
TEGULA_INLINE Window unmasked_keys(const Item& item) {
  const cpu::ForwardTask& task = item.task;
  int64_t begin = task.key_begin, end = task.key_end;
  for (int64_t t = 0; t <= item.token[item.rows - 1]; ++t) {
    begin = task.range_begin[t] > begin ? task.range_begin[t] : begin;
    end = task.range_end[t] < end ? task.range_end[t] : end;
  }
  return {begin, end, false};
}

// Calls visit(first, begin, end) for the blocks of tile_n keys that hold some of `keys`: the block
// begins at key `first`, and keys [begin, end) of it are to be read. Blocks lie on a grid from the
// split's first key on, wherever the first visible key is: a row's bits then do not depend on which
// other rows share its item.
template <class Visit>
TEGULA_INLINE void for_each_block(const Window& keys, int64_t grid, int64_t tile_n, Visit&& visit) {
  if (keys.begin >= keys.end) return;
  for (int64_t first = keys.begin - (keys.begin - grid) % tile_n; first < keys.end;
       first += tile_n) {
    visit(first, first < keys.begin ? keys.begin : first,
          first + tile_n > keys.end ? keys.end : first + tile_n);
  }
}

// Divides by the sums and writes what the item's rows end with.
TEGULA_INLINE void finish_item(const Item& item) {
  PackedRow row(item.params, item.task);
  for (int64_t first = 0; first < item.rows; first += kLanes) {
    RowEnd ends[kLanes];
    end_task_rows(item.task, row, item.row_max + first, item.row_sum + first, ends);
    for (int64_t r = first; r < first + kLanes && r < item.rows; ++r, row.next()) {
      write_row(item.params, item.task, r, row, ends[r - first],
                item.acc_o + r * item.params.layout.o_stride);
    }
  }
}
}  // namespace tegula::TEGULA_ISA_NAMESPACE
