// SPDX-License-Identifier: Apache-2.0
// A work item with few query rows (decode with a large group, a few tokens) on matrix tiles, where
// packing k and v would cost more than the products: nothing is packed but Q^T.
//   S^T[16 keys][16 rows] = K Q^T, with rows of k as they lie as the A operand.
//   O[16 rows][32 columns] = P V, with rows of v as they lie as the B operand: tdpbf16ps takes a
//   row as pairs (v[2c], v[2c + 1]), so that A pairs (p, 0) give the even columns and (0, p) the
//   odd ones. Twice the dot products of a packed v, which memory hides.
// Lanes are query rows, so that mask and softmax are those of the other kernels. The zero of a pair
// meets a value of a visible key, never another: rows outside the visible range are zeros.
#pragma once

#include "src/cpu/kernels/finish.hpp"
#include "src/cpu/kernels/item.hpp"
#include "src/cpu/kernels/narrow.hpp"
#include "src/cpu/kernels/tile_pack.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

inline constexpr int64_t kDecodeKeys = 64;  // of a block

// Sixteen rows of k or v as a tile reads them.
struct TileRun {
  const char* base;
  int64_t stride, part_bytes;
};

// To the L2: k's rows while v is read, and the other way round.
TEGULA_INLINE void fetch_row(const char* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
}

// kGroups groups of 16 packed rows.
template <int kGroups>
class TileDecode {
 public:
  TEGULA_INLINE explicit TileDecode(const Item& item)
      : item_(item), params_(item.params), tiles_(item.params.tiles) {}

  // Before the first key.
  TEGULA_INLINE void begin() const {
    reset_item(item_, item_.stride);
    __builtin_memset(o_tile(0, 0, 0), 0, static_cast<size_t>(columns() * kGroups * 2 * kTileBytes));
    pack_queries();
  }

  // One block of keys, whose rows lie k_offset and v_offset bytes behind the block's lists. fetch()
  // is called beside each step.
  template <class Fetch>
  TEGULA_INLINE void attend(const Block& block, int64_t k_offset, int64_t v_offset,
                            Fetch&& fetch) const {
    const Window window = mask_panel(item_, 0, block);
    const int64_t key_begin = block.begin / 16 * 16;
    TileRun runs[kDecodeKeys / 16];
    int64_t count = find_runs(item_.task.k, params_.head_dim, tiles_.head_dim, block, block.k_rows,
                              k_offset, runs);
    for (int64_t i = 0; i < count; i += 2) {
      if (i + 1 < count) {
        score<2>(runs + i, key_begin + 16 * i);
      } else {
        score<1>(runs + i, key_begin + 16 * i);
      }
      fetch();
    }
    soften(block, window);
    rescale();
    for (int64_t i = 0; i < count; ++i) split_p(key_begin + 16 * i);
    count = find_runs(item_.task.v, params_.head_dim_v, tiles_.head_dim_v, block, block.v_rows,
                      v_offset, runs);
    for (int64_t column = 0; column < columns(); ++column) {
      add_output(runs, count, key_begin, column);
      fetch();
    }
  }

  TEGULA_INLINE void finish() const {
    float row[512 + 32];
    PackedRow packed(params_, item_.task);
    for (int64_t r = 0; r < item_.rows; ++r, packed.next()) {
      for (int64_t column = 0; column < columns(); ++column) {
        const float* const even = o_tile(column, 0, r / 16) + r % 16 * 16;
        const float* const odd = o_tile(column, 1, r / 16) + r % 16 * 16;
        for (int64_t i = 0; i < 16; ++i) {
          row[32 * column + 2 * i] = even[i];
          row[32 * column + 2 * i + 1] = odd[i];
        }
      }
      finish_row(params_, item_.task, r, packed, item_.row_max[r],
                 item_.row_sum[r], row);
    }
  }

 private:
  static constexpr int kVectors = 16 * kGroups / kLanes;

  TEGULA_INLINE char* at(int64_t offset) const { return item_.scratch + offset; }
  TEGULA_INLINE int64_t columns() const { return tiles_.head_dim_v / 32; }
  TEGULA_INLINE float* scores(int64_t key) const {
    return item_.at(params_.layout.scores) + key * item_.stride;
  }
  // [part][head_dim / 32][group] B tiles of Q^T
  TEGULA_INLINE char* q_tile(int64_t part, int64_t step, int64_t group) const {
    return item_.q + ((part * (tiles_.head_dim / 32) + step) * kGroups + group) * kTileBytes;
  }
  // [part][even, odd][group] A tiles of one run of 16 keys
  TEGULA_INLINE char* p_tile(int64_t key, int64_t part, int64_t odd, int64_t group) const {
    return at(tiles_.p) +
           (((key / 16 * tiles_.q_parts + part) * 2 + odd) * kGroups + group) * kTileBytes;
  }
  TEGULA_INLINE float* o_tile(int64_t column, int64_t odd, int64_t group) const {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(item_.acc_o) +
                                    ((column * 2 + odd) * kGroups + group) * kTileBytes);
  }

  TEGULA_INLINE void pack_queries() const {
    const int64_t row_bytes = 2 * tiles_.head_dim;
    PackedRow row(params_, item_.task);
    for (int64_t group = 0; group < kGroups; ++group) {
      const char* rows[2][16];
      for (int64_t i = 0; i < 16; ++i) rows[0][i] = rows[1][i] = at(tiles_.zero_row);
      for (int64_t i = 0; i < 16 && group * 16 + i < item_.rows; ++i, row.next()) {
        char* const to = at(tiles_.stage) + i * tiles_.q_parts * row_bytes;
        split_row(params_.q_dtype,
                  item_.task.q + row.token * item_.task.q_token_stride +
                      row.head * item_.task.q_head_stride,
                  params_.head_dim, tiles_.head_dim, tiles_.q_parts, to, row_bytes,
                  item_.at(params_.layout.widen));
        for (int64_t part = 0; part < tiles_.q_parts; ++part) rows[part][i] = to + part * row_bytes;
      }
      for (int64_t part = 0; part < tiles_.q_parts; ++part) {
        for (int64_t step = 0; step < tiles_.head_dim / 32; ++step)
          transpose_words(rows[part], 64 * step, q_tile(part, step, group));
      }
    }
  }

  // Runs of 16 keys of the block as they lie, or a copy where they do not lie so: other types,
  // pages that cut the run, a run that is not visible as a whole, padded dimensions. Returns their
  // number.
  TEGULA_INLINE int64_t find_runs(const cpu::KvRows& from, int64_t dim, int64_t padded,
                                  const Block& block, const char* const* rows, int64_t offset,
                                  TileRun* runs) const {
    const bool regular = (from.pages == nullptr || from.page_size % 16 == 0) &&
                         params_.kv_dtype == TEGULA_BF16 && dim == padded;
    const int64_t part_bytes = 2 * padded, stride = tiles_.kv_parts * part_bytes;
    char* to = at(tiles_.stage);
    int64_t count = 0;
    for (int64_t key = block.begin / 16 * 16; key < block.end; key += 16) {
      if (regular && key >= block.begin && key + 16 <= block.end) {
        runs[count++] = {rows[key] + offset, from.token_stride, 0};
        continue;
      }
      runs[count++] = {to, stride, part_bytes};
      for (int64_t n = key; n < key + 16; ++n, to += stride) {
        if (n < block.begin || n >= block.end) {
          __builtin_memset(to, 0, static_cast<size_t>(stride));
        } else {
          split_row(params_.kv_dtype, rows[n] + offset, dim, padded, tiles_.kv_parts, to,
                    part_bytes, item_.at(params_.layout.widen));
        }
      }
    }
    return count;
  }

  // Scores of kRuns runs of keys: kRuns x kGroups sums, so that a dot product need not wait for the
  // one before it.
  template <int kRuns>
  TEGULA_INLINE void score(const TileRun* k, int64_t key) const {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    for (int64_t a = 0; a < tiles_.kv_parts; ++a) {
      for (int64_t b = 0; b < tiles_.q_parts; ++b) {
        for (int64_t step = 0; step < tiles_.head_dim / 32; ++step) {
          tile_load<6>(q_tile(b, step, 0), 64);
          tile_stream<4>(k[0].base + a * k[0].part_bytes + 64 * step, k[0].stride);
          tile_dot<0, 4, 6>();
          if constexpr (kRuns > 1) {
            tile_stream<5>(k[1].base + a * k[1].part_bytes + 64 * step, k[1].stride);
            tile_dot<1, 5, 6>();
          }
          if constexpr (kGroups > 1) {
            tile_load<7>(q_tile(b, step, 1), 64);
            tile_dot<2, 4, 7>();
            if constexpr (kRuns > 1) tile_dot<3, 5, 7>();
          }
        }
      }
    }
    const int64_t stride = item_.stride * 4;
    tile_store<0>(scores(key), stride);
    if constexpr (kRuns > 1) tile_store<1>(scores(key + 16), stride);
    if constexpr (kGroups > 1) {
      tile_store<2>(scores(key) + 16, stride);
      if constexpr (kRuns > 1) tile_store<3>(scores(key + 16) + 16, stride);
    }
  }

  // Scores to P, 0 outside of the window.
  TEGULA_INLINE void soften(const Block& block, const Window& window) const {
    if (window.begin < window.end) {
      vf maximum[kVectors];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) maximum[j] = vset(-__builtin_inff());
      for (int64_t n = window.begin; n < window.end; ++n) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j)
          maximum[j] = vmax(vload(scores(n) + j * kLanes), maximum[j]);
      }
      for (int j = 0; j < kVectors; ++j) vstore(item_.column_max + j * kLanes, maximum[j]);
      softmax_panel<kVectors, false>(item_, 0, block, window);
    } else {
      for (int64_t r = 0; r < item_.stride; ++r) item_.alpha[r] = 1.0f;
    }
    const auto clear = [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n)
        __builtin_memset(scores(n), 0, static_cast<size_t>(item_.stride * 4));
    };
    clear(block.begin / 16 * 16, window.begin);
    clear(window.end, (block.end + 15) / 16 * 16);
  }

  TEGULA_INLINE void rescale() const {
    for (int64_t r = 0; r < item_.rows; ++r) {
      if (item_.alpha[r] == 1.0f) continue;
      for (int64_t column = 0; column < columns(); ++column) {
        for (int64_t odd = 0; odd < 2; ++odd)
          scale_row(o_tile(column, odd, r / 16) + r % 16 * 16, item_.alpha[r], 16);
      }
    }
  }

  // P of 16 keys as A operands: rows = query rows, a pair a key.
  TEGULA_INLINE void split_p(int64_t key) const {
    const char* rows[16];
    alignas(64) float transposed[16 * 16];
    for (int64_t group = 0; group < kGroups; ++group) {
      for (int64_t n = 0; n < 16; ++n)
        rows[n] = reinterpret_cast<const char*>(scores(key + n) + 16 * group);
      transpose_words(rows, 0, reinterpret_cast<char*>(transposed));
      for (int64_t i = 0; i < 16 * 16; i += kLanes) {
        vf p = vload(transposed + i);
        if (tiles_.q_parts > 1) {
          const vf high = vtruncate_bf16(p);
          store_halves(high, p_tile(key, 0, 0, group) + 4 * i, p_tile(key, 0, 1, group) + 4 * i);
          p = vsub(p, high);
        }
        const int64_t last = tiles_.q_parts - 1;
        store_halves(p, p_tile(key, last, 0, group) + 4 * i, p_tile(key, last, 1, group) + 4 * i);
      }
    }
  }

  // 32 columns of O.
  TEGULA_INLINE void add_output(const TileRun* v, int64_t count, int64_t key,
                                int64_t column) const {
    tile_load<0>(o_tile(column, 0, 0), 64);
    tile_load<1>(o_tile(column, 1, 0), 64);
    if constexpr (kGroups > 1) {
      tile_load<2>(o_tile(column, 0, 1), 64);
      tile_load<3>(o_tile(column, 1, 1), 64);
    }
    for (int64_t i = 0; i < count; ++i, key += 16) {
      for (int64_t b = 0; b < tiles_.kv_parts; ++b) {
        tile_stream<6>(v[i].base + b * v[i].part_bytes + 64 * column, v[i].stride);
        for (int64_t a = 0; a < tiles_.q_parts && 2 * a + b < 3; ++a) {
          tile_load<4>(p_tile(key, a, 0, 0), 64);
          tile_dot<0, 4, 6>();
          tile_load<5>(p_tile(key, a, 1, 0), 64);
          tile_dot<1, 5, 6>();
          if constexpr (kGroups > 1) {
            tile_load<4>(p_tile(key, a, 0, 1), 64);
            tile_dot<2, 4, 6>();
            tile_load<5>(p_tile(key, a, 1, 1), 64);
            tile_dot<3, 5, 6>();
          }
        }
      }
    }
    tile_store<0>(o_tile(column, 0, 0), 64);
    tile_store<1>(o_tile(column, 1, 0), 64);
    if constexpr (kGroups > 1) {
      tile_store<2>(o_tile(column, 0, 1), 64);
      tile_store<3>(o_tile(column, 1, 1), 64);
    }
  }

  Item item_;
  const cpu::ForwardParams& params_;
  const cpu::TileLayout& tiles_;
};

// Rows of the next block on their way to the L2, a share of them at each call.
struct NextBlock {
  const Block& block;
  int64_t k_bytes, v_bytes, share;
  int64_t next = 0;

  TEGULA_INLINE void operator()() {
    for (int64_t i = 0; i < share && block.begin + next < block.end; ++i, ++next) {
      fetch_row(block.k_rows[block.begin + next], k_bytes);
      fetch_row(block.v_rows[block.begin + next], v_bytes);
    }
  }
};

// The heads of a token lie beside each other in the usual layouts: block by block, all of them, so
// that their rows are read as one stream.
template <int kGroups>
__attribute__((noinline)) inline void attend_tile_decode(const cpu::ForwardParams& params,
                                                         const cpu::ForwardTask* tasks,
                                                         int64_t heads, char* scratch) {
  const TileScope scope;
  const cpu::TileLayout& tiles = params.tiles;
  const cpu::ForwardTask& lead = *tasks;
  __builtin_memset(scratch + tiles.zero_row, 0, static_cast<size_t>(tiles.zero_row_bytes));
  const auto head_of = [&](int64_t head) {
    char* const state = scratch + tiles.few + head * tiles.few_bytes;
    return TileDecode<kGroups>(make_item(params, tasks[head], scratch, 16 * kGroups, 16 * kGroups,
                                         state, reinterpret_cast<float*>(state + tiles.few_o),
                                         reinterpret_cast<float*>(state + tiles.few_rows)));
  };
  for (int64_t h = 0; h < heads; ++h) head_of(h).begin();

  const int64_t tokens =
      (lead.row_end - 1) / params.qheads_per_kvhead + 1 - lead.row_begin / params.qheads_per_kvhead;
  const Window keys = visible_keys(lead, tokens);
  const auto find = [&](int64_t first, RowList k, RowList v) {
    const int64_t begin = first < keys.begin ? keys.begin : first;
    const int64_t end = first + kDecodeKeys > keys.end ? keys.end : first + kDecodeKeys;
    const Block block{first, begin - first, end - first, row_list(params, scratch, k),
                      row_list(params, scratch, v)};
    row_pointers(lead.k, begin, end, block.k_rows + block.begin);
    row_pointers(lead.v, begin, end, block.v_rows + block.begin);
    return block;
  };
  const int64_t steps = heads * (kDecodeKeys / 32 + tiles.head_dim_v / 32);
  for_each_block(keys, lead.key_begin, kDecodeKeys, [&](int64_t first, int64_t, int64_t end) {
    const Block block = find(first, RowList::kK, RowList::kV);
    const Block next = end < keys.end ? find(first + kDecodeKeys, RowList::kNextK, RowList::kNextV)
                                      : Block{first, 0, 0, block.k_rows, block.v_rows};
    NextBlock fetch{next, heads * params.head_dim * size_of(params.kv_dtype),
                    heads * params.head_dim_v * size_of(params.kv_dtype),
                    (kDecodeKeys + steps - 1) / steps};
    for (int64_t h = 0; h < heads; ++h) {
      head_of(h).attend(block, tasks[h].k.base - lead.k.base, tasks[h].v.base - lead.v.base, fetch);
    }
  });
  for (int64_t h = 0; h < heads; ++h) head_of(h).finish();
}

// By the sequence's own rows, as is_narrow().
TEGULA_INLINE bool is_tile_decode(const cpu::ForwardParams& params, const cpu::ForwardTask& task) {
  return task.seqlen_q * params.qheads_per_kvhead <= cpu::kFewTileRows;
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
