// SPDX-License-Identifier: Apache-2.0
// One work item with few query rows (decode): lanes run along head_dim instead of over rows, so
// that one row costs head_dim / lanes products a key instead of head_dim. The item is bound by the
// bandwidth of K and V; rows are widened in registers, and each pass prefetches what the next one
// reads: the K pass this block's V, the V pass the next block's K (docs/design/cpu_forward.md).
#pragma once

#include "src/cpu/kernels/item.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

inline constexpr int kNarrowRows = kLanes < 8 ? kLanes : 8;
// Keys of a block: what is prefetched beside one block is still in the L2, on its way to the L1,
// when its turn comes (64 keys read up to 1.3 times faster from DRAM than 192, head_dim 128).
inline constexpr int64_t kNarrowTile = 64;

// By the sequence's own rows, never by the item's or the call's: with fixed_split its bits depend
// on itself alone.
TEGULA_INLINE bool is_narrow(const Item& item) {
  const cpu::ForwardParams& params = item.params;
  return item.task.seqlen_q * params.qheads_per_kvhead <= kNarrowRows &&
         params.head_dim % (params.pairs ? 2 * kLanes : kLanes) == 0;
}

TEGULA_INLINE void prefetch_row(const char* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
}

// How a narrow score reads its operands: kLanes values of kType times fp32 queries, or kLanes pairs
// of bf16 times pairs.
template <tegula_dtype kType, bool kDotPairs>
struct NarrowOperand {
  static constexpr int64_t kStep = kDotPairs ? 2 * kLanes : kLanes;  // values of a vector
  static TEGULA_INLINE vf load(const char* row, int64_t d) {
    if constexpr (kDotPairs) return vload(reinterpret_cast<const float*>(row + 2 * d));
    return vwiden<kType>(row + d * size_of(kType));
  }
};

// Scores of kLanes / kRows keys x kRows rows: as many accumulators as lanes, summed across lanes
// together. q: rows of q_bytes bytes. out: kLanes floats, [key][row].
template <int kRows, tegula_dtype kType, bool kDotPairs>
TEGULA_INLINE vf narrow_tile(const char* const* k_rows, const char* q, int64_t q_bytes,
                             int64_t head_dim) {
  using Operand = NarrowOperand<kType, kDotPairs>;
  constexpr int kKeys = kLanes / kRows;
  vf acc[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) acc[i] = vzero();
  for (int64_t d = 0; d < head_dim; d += Operand::kStep) {
    vf q_value[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      q_value[r] = vload(reinterpret_cast<const float*>(q + r * q_bytes + d * (kDotPairs ? 2 : 4)));
    }
#pragma GCC unroll 16
    for (int n = 0; n < kKeys; ++n) {
      const vf k_value = Operand::load(k_rows[n], d);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        acc[n * kRows + r] =
            multiply_accumulate<kDotPairs>(k_value, q_value[r], acc[n * kRows + r]);
      }
    }
  }
  return vsum_lanes(acc);
}

// Keys [begin, end) of the block: scores[n][row], kRows rows a key, so that a vector holds kLanes /
// kRows keys; the rest of the last vector is -inf. visit(n) is called beside each key.
template <int kRows, tegula_dtype kType, bool kDotPairs, class Visit>
TEGULA_INLINE void narrow_scores(const char** k_rows, const char* q, int64_t q_bytes,
                                 int64_t head_dim, int64_t begin, int64_t end, float* scores,
                                 Visit&& visit) {
  constexpr int kKeys = kLanes / kRows;
  int64_t n = begin;
  for (; n < end; n += kKeys) {
    const int64_t keys = end - n < kKeys ? end - n : kKeys;
    const char* rows[kKeys];
    for (int i = 0; i < kKeys; ++i) rows[i] = k_rows[n + (i < keys ? i : keys - 1)];
    for (int64_t i = 0; i < keys; ++i) visit(n + i);
    vstore(scores + n * kRows, narrow_tile<kRows, kType, kDotPairs>(rows, q, q_bytes, head_dim));
  }
  for (int64_t i = end * kRows; i < n * kRows; ++i) scores[i] = -__builtin_inff();
}

template <int kRows, bool kPairs, class Visit>
TEGULA_INLINE void narrow_block(const Item& item, const Block& block, const Window& window,
                                int64_t q_bytes, Visit&& visit) {
  const cpu::ForwardLayout& layout = item.params.layout;
  const auto run = [&]<tegula_dtype kType, bool kDotPairs>() __attribute__((noinline)) {
    narrow_scores<kRows, kType, kDotPairs>(block.k_rows, item.scratch + layout.q_t, q_bytes,
                                           item.params.head_dim, window.begin, window.end,
                                           item.at(layout.scores), visit);
  };
  if constexpr (kPairs) {
    if (item.params.kv_dtype == TEGULA_BF16) return run.template operator()<TEGULA_BF16, true>();
  }
  with_type(item.params.kv_dtype,
            [&]<tegula_dtype kType>() { run.template operator()<kType, false>(); });
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

// The maximum over the lanes of each row, in all of them.
template <int kRows>
TEGULA_INLINE vf fold_max(vf value) {
  float twice[2 * kLanes];
#pragma GCC unroll 4
  for (int distance = kRows; distance < kLanes; distance *= 2) {
    vstore(twice, value);
    vstore(twice + kLanes, value);
    value = vmax(value, vload(twice + distance));
  }
  return value;
}

// Scores [begin, end) to P, as softmax_block does, with kLanes / kRows keys a vector.
template <int kRows, bool kPairs>
__attribute__((noinline)) inline void narrow_softmax(const Item& item, const Window& window) {
  float* const scores = item.at(item.params.layout.scores);
  const vf scale = vset(item.exponent_scale);
  const vf shift = shift_rows(scale, item.column_max, item.row_max, item.alpha);
  vf sum = vmul(vload(item.alpha), vload(item.row_sum));
  for (int64_t i = window.begin * kRows; i < window.end * kRows; i += kLanes) {
    const vf p = vexp2<kPairs ? 3 : 5>(vmul(vsub(vload(scores + i), shift), scale));
    sum = vadd(sum, p);
#ifdef TEGULA_PAIRS
    if constexpr (kPairs) {
      vpack_keys<kRows>(p, item.at(item.params.layout.p_pairs) + i / 2);
      continue;
    }
#endif
    vstore(scores + i, p);
  }
  vstore(item.row_sum, sum);
}

// Rows of q one after another, in the form that the scores want; zeros up to kNarrowRows. Returns
// the bytes of a row.
template <bool kPairs>
TEGULA_INLINE int64_t pack_narrow(const Item& item) {
  const cpu::ForwardParams& params = item.params;
  const cpu::ForwardTask& task = item.task;
  const bool dot_pairs = kPairs && params.kv_dtype == TEGULA_BF16;
  const int64_t bytes = params.head_dim * (dot_pairs ? 2 : 4);
  char* const q = item.scratch + params.layout.q_t;
  __builtin_memset(q, 0, static_cast<size_t>(kNarrowRows * bytes));
  for (int64_t r = 0; r < item.rows; ++r) {
    const char* const from = query_row(params, task, task.row_begin + r);
    if (dot_pairs) {
      __builtin_memcpy(q + r * bytes, from, static_cast<size_t>(bytes));
    } else {
      widen_row(params.q_dtype, from, reinterpret_cast<float*>(q + r * bytes), params.head_dim);
    }
  }
  return bytes;
}

template <int kRows, bool kPairs>
TEGULA_INLINE void attend_rows(const Item& whole) {
  Item item = whole;
  item.stride = kRows;
  const cpu::ForwardParams& params = item.params;
  const int64_t tile_n = params.tile_n < kNarrowTile ? params.tile_n : kNarrowTile;
  const int64_t q_bytes = pack_narrow<kPairs>(item);
  const int64_t k_bytes = params.head_dim * size_of(params.kv_dtype);
  const int64_t v_bytes = params.head_dim_v * size_of(params.kv_dtype);
  float* const scores = item.at(params.layout.scores);
  const char** const next_k =
      reinterpret_cast<const char**>(item.scratch + params.layout.pointers) + 2 * params.tile_n;
  for (int lane = kRows; lane < kLanes; ++lane) item.slope[lane] = item.slope[lane % kRows];

  for_each_block(item, tile_n, [&](int64_t first, int64_t begin, int64_t end) {
    const Block block = find_block(params, item.task, first, begin, end, item.scratch);
    const Window window = mask_panel(item, 0, block);
    const char* const* const v_rows = block.v_rows;
    narrow_block<kRows, kPairs>(item, block, window, q_bytes,
                                [&](int64_t n) { prefetch_row(v_rows[n], v_bytes); });
    vf maximum = vset(-__builtin_inff());
    for (int64_t i = window.begin * kRows; i < window.end * kRows; i += kLanes) {
      maximum = vmax(maximum, vload(scores + i));
    }
    vstore(item.column_max, maximum);
    spread_mask<kRows>(item);
    cook_panel<1>(item, 0, block, window, kLanes / kRows);
    vstore(item.column_max, fold_max<kRows>(vload(item.column_max)));
    narrow_softmax<kRows, kPairs>(item, window);

    int64_t next_end = end + tile_n < item.task.key_end ? end + tile_n : item.task.key_end;
    if (item.task.bias != nullptr || end != first + tile_n)
      next_end = end;  // the list is in use; or this is the last block
    row_pointers(item.task.k, end, next_end, next_k);
    load_v(params, block, params.v_in_place, item.scratch, [&](int64_t n) {
      if (n < next_end - end) prefetch_row(next_k[n], k_bytes);
      if (kPairs && n + 1 < next_end - end) prefetch_row(next_k[n + 1], k_bytes);
    });
    output_panel<kPairs>(item, 0, block, window);
  });
  // A row's sum lies in kLanes / kRows lanes.
  for (int row = 0; row < kRows; ++row) {
    for (int lane = row + kRows; lane < kLanes; lane += kRows)
      item.row_sum[row] += item.row_sum[lane];
  }
}

template <bool kPairs, int kRows = kNarrowRows>
TEGULA_INLINE void attend_narrow(const Item& item) {
  if constexpr (kRows > 1) {
    if (item.rows <= kRows / 2) return attend_narrow<kPairs, kRows / 2>(item);
  }
  attend_rows<kRows, kPairs>(item);
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
