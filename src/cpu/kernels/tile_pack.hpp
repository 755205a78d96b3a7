// SPDX-License-Identifier: Apache-2.0
// Operands of the matrix tiles: rows as bf16 parts, k and v as B operands (pairs along the summed
// dimension in a row, as tdpbf16ps wants them).
//
// A value is one bf16 part (bf16, 8-bit: exact) or, for fp16, two whose sum it is exactly (11 bits
// = 8 + 3).
#pragma once

#include "src/cpu/kernels/block.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

inline constexpr int64_t kTileKeys = 64;  // of a unit
inline constexpr int64_t kTileRows = 32;  // packed query rows of a unit
inline constexpr int64_t kTileBytes = 1024;

// An 8-bit row as bf16, exact; count is a multiple of two vectors.
template <tegula_dtype kType>
TEGULA_INLINE void widen_to_bf16(const char* from, int64_t count, char* to) {
  for (int64_t i = 0; i < count; i += 2 * kLanes)
    narrow_two(to + 2 * i, vwiden<kType>(from + i), vwiden<kType>(from + i + kLanes));
}

// count values of a row as parts, each padded with zeros to `padded` values (even). Parts lie
// part_bytes apart. widened: room for the row in fp32.
TEGULA_INLINE void split_row(tegula_dtype type, const char* from, int64_t count, int64_t padded,
                             int64_t parts, char* to, int64_t part_bytes, float* widened) {
  if (parts == 1 && type == TEGULA_BF16 && count == padded) {  // without calls: 32 values at least
    for (int64_t i = 0; i < count; i += 32) __builtin_memcpy(to + 2 * i, from + 2 * i, 64);
    return;
  }
  if (size_of(type) == 1 && count == padded && count % (2 * kLanes) == 0) {
    return type == TEGULA_E4M3 ? widen_to_bf16<TEGULA_E4M3>(from, count, to)
                               : widen_to_bf16<TEGULA_E5M2>(from, count, to);
  }
  if (parts == 1) {
    bf16_row(type, from, to, count, widened);
  } else {
    widen_row(type, from, widened, count);
    narrow_row(TEGULA_BF16, widened, to, count);
    for (int64_t i = 0; i < count; ++i) widened[i] -= widen<TEGULA_BF16>(to + 2 * i);
    narrow_row(TEGULA_BF16, widened, to + part_bytes, count);
  }
  for (int64_t part = 0; part < parts; ++part) {
    __builtin_memset(to + part * part_bytes + 2 * count, 0,
                     static_cast<size_t>(2 * (padded - count)));
  }
}

// Packed query rows as A operands: [group of 32 rows][part][row][head_dim].
TEGULA_INLINE void pack_query_tiles(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                                    char* scratch) {
  const cpu::TileLayout& tiles = params.tiles;
  const int64_t row_bytes = 2 * tiles.head_dim, part_bytes = kTileRows * row_bytes;
  const int64_t rows = task.row_end - task.row_begin;
  char* const q = scratch + tiles.q;
  float* const widened = reinterpret_cast<float*>(scratch + params.layout.widen);
  PackedRow row(params, task);
  for (int64_t r = 0; r < rows; ++r, row.next()) {
    split_row(params.q_dtype,
              task.q + row.token * task.q_token_stride + row.head * task.q_head_stride,
              params.head_dim, tiles.head_dim, tiles.q_parts,
              q + r / kTileRows * tiles.q_parts * part_bytes + r % kTileRows * row_bytes,
              part_bytes, widened);
  }
  for (int64_t r = rows; r % kTileRows != 0; ++r) {
    for (int64_t part = 0; part < tiles.q_parts; ++part) {
      __builtin_memset(
          q + (r / kTileRows * tiles.q_parts + part) * part_bytes + r % kTileRows * row_bytes, 0,
          static_cast<size_t>(row_bytes));
    }
  }
}

// Sixteen rows of sixteen 32-bit words at byte `offset`, transposed: to[word][row].
TEGULA_INLINE void transpose_words(const char* const* rows, int64_t offset, char* to) {
#pragma GCC unroll 4
  for (int row = 0; row < 16; row += kLanes) {
#pragma GCC unroll 4
    for (int word = 0; word < 16; word += kLanes) {
      vf a[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        a[i] = vload(reinterpret_cast<const float*>(rows[row + i] + offset + 4 * word));
      vtranspose(a);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        vstore(reinterpret_cast<float*>(to + 64 * (word + i) + 4 * row), a[i]);
    }
  }
}

// Rows of one operand, as they lie or converted into `stage`: rows[part * count + i].
struct TileRows {
  int64_t count, dim, padded, parts;
  tegula_dtype dtype;
  char* stage;     // [count][parts][padded] bf16
  float* widened;  // room for a row
  const char* zeros;

  // Keys [begin, end) of the unit that begins at key `first`; the others are rows of zeros.
  TEGULA_INLINE void find(const cpu::KvRows& from, int64_t first, int64_t begin, int64_t end,
                          const char** rows) const {
    for (int64_t i = 0; i < count * parts; ++i) rows[i] = zeros;
    row_pointers(from, begin, end, rows + (begin - first));
    if (dtype == TEGULA_BF16 && dim == padded) return;
    for (int64_t i = begin - first; i < end - first; ++i) {
      char* const to = stage + i * parts * 2 * padded;
      split_row(dtype, rows[i], dim, padded, parts, to, 2 * padded, widened);
      for (int64_t part = 0; part < parts; ++part) rows[part * count + i] = to + part * 2 * padded;
    }
  }
};

// Rows of the next unit, on their way while this one is packed: they lie far apart in a tensor of
// several heads, where the CPU's own prefetchers see no stream.
class NextRows {
 public:
  TEGULA_INLINE NextRows(const cpu::KvRows& from, int64_t begin, int64_t end, int64_t row_bytes)
      : count_(end <= begin              ? 0
               : end - begin < kTileKeys ? end - begin
                                         : kTileKeys),
        row_bytes_(row_bytes) {
    row_pointers(from, begin, begin + count_, rows_);
  }
  TEGULA_INLINE void prefetch(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end && i < count_; ++i) {
      for (int64_t byte = 0; byte < row_bytes_; byte += 64) __builtin_prefetch(rows_[i] + byte);
    }
  }

 private:
  int64_t count_, row_bytes_;
  const char* rows_[kTileKeys];
};

// Calls pack(unit, rows, next) for each unit of 64 keys that holds some of [begin, end): `unit`
// counts from the block's first key, rows[part * 64 + i] are the parts of its keys.
template <class Pack>
TEGULA_INLINE void for_each_unit(const cpu::ForwardParams& params, const cpu::KvRows& from,
                                 int64_t dim, int64_t padded, int64_t first, int64_t begin,
                                 int64_t end, char* scratch, Pack&& pack) {
  const TileRows source{kTileKeys,
                        dim,
                        padded,
                        params.tiles.kv_parts,
                        params.kv_dtype,
                        scratch + params.tiles.stage,
                        reinterpret_cast<float*>(scratch + params.layout.widen),
                        scratch + params.tiles.zero_row};
  const char* rows[2 * kTileKeys];
  for (int64_t n = begin - (begin - first) % kTileKeys; n < end; n += kTileKeys) {
    const int64_t lo = n < begin ? begin : n, hi = n + kTileKeys < end ? n + kTileKeys : end;
    source.find(from, n, lo, hi, rows);
    pack(n - first, rows, NextRows(from, hi, end, dim * size_of(params.kv_dtype)));
  }
}

// Keys [begin, end) of k for the scores: [part][16 keys][32 values of head_dim] tiles, in which row
// = pair of values, column = key. first: key of the block's first row.
TEGULA_INLINE void pack_key_tiles(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                                  int64_t first, int64_t begin, int64_t end, char* scratch) {
  const cpu::TileLayout& tiles = params.tiles;
  const int64_t steps = tiles.head_dim / 32;
  const auto pack = [&](int64_t unit, const char* const* rows, const NextRows& next) {
    for (int64_t part = 0; part < tiles.kv_parts; ++part) {
      char* to = scratch + tiles.k + part * tiles.k_part_bytes + unit / 16 * steps * kTileBytes;
      for (int64_t key = 0; key < kTileKeys; key += 16) {
        if (part == 0) next.prefetch(key, key + 16);
        for (int64_t step = 0; step < steps; ++step, to += kTileBytes) {
          transpose_words(rows + part * kTileKeys + key, 64 * step, to);
        }
      }
    }
  };
  for_each_unit(params, task.k, params.head_dim, tiles.head_dim, first, begin, end, scratch, pack);
}

// Likewise v for P V: [part][32 keys][16 columns] tiles, in which row = pair of keys.
TEGULA_INLINE void pack_value_tiles(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                                    int64_t first, int64_t begin, int64_t end, char* scratch) {
  const cpu::TileLayout& tiles = params.tiles;
  const int64_t columns = tiles.head_dim_v / 16;
  const auto pack = [&](int64_t unit, const char* const* rows, const NextRows& next) {
    for (int64_t part = 0; part < tiles.kv_parts; ++part) {
      char* const to =
          scratch + tiles.v + part * tiles.v_part_bytes + unit / 32 * columns * kTileBytes;
      for (int64_t pair = 0; pair < kTileKeys / 2; ++pair) {
        if (part == 0) next.prefetch(2 * pair, 2 * pair + 2);
        const char* const even = rows[part * kTileKeys + 2 * pair];
        const char* const odd = rows[part * kTileKeys + 2 * pair + 1];
        char* const row = to + pair / 16 * columns * kTileBytes + pair % 16 * 64;
        for (int64_t column = 0; column < columns; column += 2) {
          interleave_words(even + 32 * column, odd + 32 * column, row + column * kTileBytes,
                           row + (column + 1) * kTileBytes);
        }
      }
    }
  };
  for_each_unit(params, task.v, params.head_dim_v, tiles.head_dim_v, first, begin, end, scratch,
                pack);
}

// Both, unless the worker's last item has left them there. More keys than asked for do no harm:
// some row of the call sees them, so v is what it seems, and P is 0 where this item does not.
TEGULA_INLINE void pack_block(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                              int64_t first, int64_t begin, int64_t end, char* scratch) {
  auto& packed = *reinterpret_cast<cpu::PackedBlock*>(scratch + params.tiles.packed);
  if (packed.head == task.head && packed.first == first && packed.begin <= begin &&
      packed.end >= end) {
    return;
  }
  pack_key_tiles(params, task, first, begin, end, scratch);
  pack_value_tiles(params, task, first, begin, end, scratch);
  packed = {task.head, first, begin, end};
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
