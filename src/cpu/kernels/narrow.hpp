// SPDX-License-Identifier: Apache-2.0
// Work items with few query rows (decode): lanes run along head_dim instead of over rows, so that
// one row costs head_dim / lanes products a key instead of head_dim. Bound by the bandwidth of K
// and V, which are read once, where they lie. The heads of a token usually lie beside each other,
// so several of them are worked on together, block by block, and the next block is fetched in the
// order of memory meanwhile (docs/design/cpu_forward.md).
#pragma once

#include "src/cpu/kernels/item.hpp"
#include "src/cpu/kernels/narrow_tiles.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

inline constexpr int kNarrowRows = kLanes;
// Keys of a block: the heads of this block and of the next one share the L2 (64 keys: ratio 4 from
// DRAM 1.1 times slower, inside the L3 1.05 times faster).
inline constexpr int64_t kNarrowTile = 32;

// By the sequence's own rows, never by the item's or the call's: with fixed_split its bits depend
// on itself alone.
TEGULA_INLINE bool is_narrow(const cpu::ForwardParams& params, const cpu::ForwardTask& task) {
  const int64_t rows = task.seqlen_q * params.qheads_per_kvhead;
  return rows <= kNarrowRows && !(params.use_tiles && rows >= cpu::kLeastTileRows) &&
         params.head_dim % kLanes == 0;
}

// The operand of the scores: q's rows are packed for it.
template <bool kPairs, class F>
TEGULA_INLINE void with_k_operand(const cpu::ForwardParams& params, F&& f) {
  bool done = false;
  if constexpr (kPairs) {
    with_operand<true>(params.kv_dtype, [&]<class Operand>() {
      if (!Operand::fits(params.head_dim)) return;
      f.template operator()<Operand>();
      done = true;
    });
  }
  if (!done) with_operand<false>(params.kv_dtype, f);
}

// Rows of q one after another, in the operand's order, or [unit][row] (kLanesAreRows); zeros up to
// kNarrowRows. q_bytes: of a row.
template <int kRows, class Operand>
TEGULA_INLINE void pack_narrow(const Item& item, int64_t q_bytes) {
  const cpu::ForwardParams& params = item.params;
  const cpu::ForwardTask& task = item.task;
  constexpr int kValues = Operand::kValues;
  __builtin_memset(item.q, 0, static_cast<size_t>(kNarrowRows * q_bytes));
  PackedRow row(params, task);
  for (int64_t r = 0; r < item.rows; ++r, row.next()) {
    const char* const from = query_row(task, row);
    char* const to = item.q + r * q_bytes;
    if constexpr (kLanesAreRows<kRows, Operand>) {
      float widened[512];  // head_dim is at most 512
      const char* units = from;
      if constexpr (!Operand::kDotPairs) {
        widen_row(params.q_dtype, from, widened, params.head_dim);
        units = reinterpret_cast<const char*>(widened);
      }
      for (int64_t i = 0; i < q_bytes; i += 4)
        __builtin_memcpy(item.q + i * kLanes + 4 * r, units + i, 4);
    } else if constexpr (Operand::kDotPairs) {
      for (int64_t d = 0; d < params.head_dim; d += kValues) {
        for (int i = 0; i < kValues; ++i)
          __builtin_memcpy(to + 2 * (d + i), from + 2 * (d + Operand::k_value(i)), 2);
      }
    } else {
      float* const values = reinterpret_cast<float*>(to);
      widen_row(params.q_dtype, from, values, params.head_dim);
      for (int64_t d = 0; d + kValues <= params.head_dim; d += kValues) {
        float run[kValues];
        for (int i = 0; i < kValues; ++i) run[i] = values[d + Operand::k_value(i)];
        __builtin_memcpy(values + d, run, sizeof run);
      }
    }
  }
}

// Gives each lane its row's mask, the key that the lane holds counted from its vector's first one.
template <int kRows>
TEGULA_INLINE void spread_mask(const Item& item) {
  for (int lane = kLanes - 1; lane >= 0; --lane) {
    const int row = lane % kRows, key = lane / kRows;
    item.mask_begin[lane] = item.mask_begin[row] - key;
    item.mask_end[lane] = item.mask_end[row] - key;
    item.position[lane] = item.position[row] - static_cast<float>(key);
  }
}

// Scores [begin, end) to P, as softmax_block does, with kLanes / kRows keys a vector.
template <int kRows, bool kPairs>
TEGULA_INLINE void narrow_softmax(const Item& item, const Window& window) {
  float* const scores = item.at(item.params.layout.scores);
  const vf scale = vset(item.exponent_scale);
  const vf shift = shift_rows(scale, vload(item.column_max), item.row_max, item.alpha);
  vf sum = vmul(vload(item.alpha), vload(item.row_sum));
  const auto next_p = [&](int64_t i) {
    const vf p = vexp2<kPairs ? 3 : 5>(vmul(vsub(vload(scores + i), shift), scale));
    sum = vadd(sum, p);
    return p;
  };
  for (int64_t i = window.begin * kRows; i < window.end * kRows; i += kLanes) {
#ifdef TEGULA_PAIRS
    if constexpr (kPairs) {
      float* const pairs = item.at(item.params.layout.p_pairs) + i / 2;
      if constexpr (kRows < kLanes) {
        vpack_keys<kRows>(next_p(i), pairs);
      } else {  // a vector is one key
        const vf even = next_p(i);
        i += kLanes;
        vstore(pairs, vpack_pairs(even, i < window.end * kRows ? next_p(i) : vzero()));
      }
      continue;
    }
#endif
    vstore(scores + i, next_p(i));
  }
  vstore(item.row_sum, sum);
}

// P V of one head.
template <int kRows, bool kPairs>
TEGULA_INLINE void output_narrow(const Item& item, const Block& block, int64_t offset,
                                 const Window& window, Ahead& ahead) {
  const cpu::ForwardParams& params = item.params;
  bool done = false;
  with_operand<kPairs>(params.kv_dtype, [&]<class Operand>() {
    if (!Operand::fits(params.head_dim_v)) return;
    done = true;
    const char** const v_rows = item.task.bias != nullptr
                                    ? visible_rows(item, item.at(params.layout.scores),
                                                   window, item.rows, block, offset)
                                    : block.v_rows;
    const int64_t first = window.begin / Operand::kKeys;
    const int64_t end = (window.end + Operand::kKeys - 1) / Operand::kKeys;
    narrow_output<kRows, Operand>(
        item.at(kPairs ? params.layout.p_pairs : params.layout.scores) + first * kRows,
        v_rows + first * Operand::kKeys, offset, end - first, params.head_dim_v, item.alpha,
        item.acc_o, params.layout.o_stride, ahead);
  });
  if (done) return;
  // An odd width: through a converted copy.
  Block copy = block;
  copy.v_rows = row_list(params, item.scratch, RowList::kConverted);
  for (int64_t n = block.begin; n < block.end + block.end % 2; ++n)
    copy.v_rows[n] = block.v_rows[n] + offset;
  load_v(params, copy, item.scratch);
  output_rows<kPairs>(item, copy, 0, 0, item.rows, window);
}

// One block of keys for one head, whose rows lie offset_k and offset_v bytes from the block's.
template <int kRows, bool kPairs>
TEGULA_INLINE void narrow_block(const Item& item, const Block& block, int64_t offset_k,
                                int64_t offset_v, const Window& full, int64_t q_bytes,
                                Ahead& ahead_k, Ahead& ahead_v) {
  const cpu::ForwardParams& params = item.params;
  const bool unmasked = !item.task.cooked && full.begin <= block.first + block.begin &&
                        full.end >= block.first + block.end;
  const Window window =
      unmasked ? Window{block.begin, block.end, false} : mask_panel(item, 0, block);
  if (window.begin >= window.end) return;
  with_k_operand<kPairs>(params, [&]<class Operand>() {
    narrow_scores<kRows, Operand>(block.k_rows, offset_k, item.q, q_bytes, params.head_dim,
                                  window.begin, window.end, item.at(params.layout.scores),
                                  item.column_max, ahead_k);
  });
  if (!unmasked) {
    spread_mask<kRows>(item);
    cook_panel<1>(item, 0, block, window, kLanes / kRows);
  }
  vstore(item.column_max, vfold_max<kRows>(vload(item.column_max)));
  narrow_softmax<kRows, kPairs>(item, window);
  output_narrow<kRows, kPairs>(item, block, offset_v, window, ahead_v);
}

// The heads' rows of keys [begin, end) of a block, for the first head.
TEGULA_INLINE Block find_narrow(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                                int64_t first, int64_t begin, int64_t end, const char** k_rows,
                                const char** v_rows) {
  Block block{first, begin - first, end - first, k_rows, v_rows};
  row_pointers(task.k, begin, end, k_rows + block.begin);
  row_pointers(task.v, begin, end, v_rows + block.begin);
  if (params.pairs) {
    // What completes a pair has P = 0: its partner stands in for it, here and past the end.
    if (block.begin % 2 != 0) {
      --block.begin;
      k_rows[block.begin] = k_rows[block.begin + 1];
      v_rows[block.begin] = v_rows[block.begin + 1];
    }
  }
  for (int i = 0; i < kNear; ++i) {
    k_rows[block.end + i] = k_rows[block.end - 1];
    v_rows[block.end + i] = v_rows[block.end - 1];
  }
  return block;
}

template <int kRows, bool kPairs>
TEGULA_INLINE void attend_heads(const cpu::ForwardParams& params, const cpu::ForwardTask* tasks,
                                int64_t heads, char* scratch) {
  const cpu::ForwardLayout& layout = params.layout;
  const auto item_of = [&](int64_t head) {
    char* const state = scratch + layout.narrow + head * layout.narrow_bytes;
    return make_item(params, tasks[head], scratch, kRows, kLanes, state,
                     reinterpret_cast<float*>(state + layout.narrow_acc_o),
                     reinterpret_cast<float*>(state + layout.narrow_rows));
  };
  int64_t q_bytes = 0;
  for (int64_t h = 0; h < heads; ++h) {
    const Item item = item_of(h);
    reset_item(item, kLanes);
    for (int lane = kRows; lane < kLanes; ++lane) item.slope[lane] = item.slope[lane % kRows];
    with_k_operand<kPairs>(params, [&]<class Operand>() {
      q_bytes = params.head_dim * (Operand::kDotPairs ? 2 : 4);
      pack_narrow<kRows, Operand>(item, q_bytes);
    });
  }

  const Item lead = item_of(0);
  const cpu::ForwardTask& task = *tasks;
  const Window range = visible_keys(lead), full = unmasked_keys(lead);
  const int64_t tile_n = params.tile_n < kNarrowTile ? params.tile_n : kNarrowTile;
  const int64_t k_bytes = heads * params.head_dim * size_of(params.kv_dtype);
  const int64_t v_bytes = heads * params.head_dim_v * size_of(params.kv_dtype);
  const auto list = [&](RowList which) { return row_list(params, scratch, which); };
  const auto find = [&](int64_t first, const char** k_rows, const char** v_rows) {
    return find_narrow(params, task, first, first < range.begin ? range.begin : first,
                       first + tile_n > range.end ? range.end : first + tile_n, k_rows, v_rows);
  };
  const auto ahead_of = [](const char** rows, const Block& block, int64_t bytes) {
    return Ahead(rows + block.begin, rows + block.end, bytes);
  };
  if (range.begin < range.end) {
    Block block = find(range.begin - (range.begin - task.key_begin) % tile_n, list(RowList::kK),
                       list(RowList::kV));
    const char **spare_k = list(RowList::kNextK), **spare_v = list(RowList::kNextV);
    ahead_of(block.k_rows, block, k_bytes).fetch_all();
    ahead_of(block.v_rows, block, v_bytes).fetch_all();
    for (;;) {
      const bool last = block.first + tile_n >= range.end;
      const Block next = last ? Block{block.first, 0, 0, spare_k, spare_v}
                              : find(block.first + tile_n, spare_k, spare_v);
      Ahead ahead_k = ahead_of(spare_k, next, k_bytes), ahead_v = ahead_of(spare_v, next, v_bytes);
      for (int64_t h = 0; h < heads; ++h) {
        narrow_block<kRows, kPairs>(item_of(h), block, tasks[h].k.base - task.k.base,
                                    tasks[h].v.base - task.v.base, full, q_bytes, ahead_k, ahead_v);
      }
      if (last) break;
      spare_k = block.k_rows;
      spare_v = block.v_rows;
      block = next;
    }
  }

  for (int64_t h = 0; h < heads; ++h) {
    const Item item = item_of(h);
    for (int row = 0; row < kRows; ++row) {  // a row's sum lies in kLanes / kRows lanes
      for (int lane = row + kRows; lane < kLanes; lane += kRows)
        item.row_sum[row] += item.row_sum[lane];
    }
    with_operand<kPairs>(params.kv_dtype, [&]<class Operand>() {
      if (!Operand::fits(params.head_dim_v)) return;
      for (int64_t r = 0; r < item.rows; ++r)
        reorder_output<Operand>(item.acc_o + r * layout.o_stride, params.head_dim_v);
    });
    finish_item(item);
  }
}

template <bool kPairs, int kRows = kNarrowRows>
TEGULA_INLINE void attend_narrow(const cpu::ForwardParams& params, const cpu::ForwardTask* tasks,
                                 int64_t heads, char* scratch) {
  if constexpr (kRows > 1) {
    if (tasks->row_end - tasks->row_begin <= kRows / 2)
      return attend_narrow<kPairs, kRows / 2>(params, tasks, heads, scratch);
  }
  attend_heads<kRows, kPairs>(params, tasks, heads, scratch);
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
