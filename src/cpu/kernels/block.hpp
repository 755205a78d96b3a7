// SPDX-License-Identifier: Apache-2.0
// Getting operands into the form that the tiles read: rows of q transposed, rows of k and v found (pages included) and, where their
// type is not the tiles' own, converted once per block.
#pragma once

#include "src/cpu/kernel_abi.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

// count values of a row to fp32. Nothing past the row is read.
TEGULA_INLINE void widen_row(tegula_dtype type, const char* from, float* to, int64_t count) {
  with_type(type, [&]<tegula_dtype kType>() {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) vstore(to + i, vwiden<kType>(from + i * size_of(kType)));
    for (; i < count; ++i) to[i] = widen<kType>(from + i * size_of(kType));
  });
}

// count values to o's type (never 8-bit).
TEGULA_INLINE void narrow_row(tegula_dtype type, const float* from, char* to, int64_t count) {
  const auto convert = [&]<tegula_dtype kType>() {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) vnarrow<kType>(to + i * size_of(kType), vload(from + i));
    for (; i < count; ++i) narrow<kType>(to + i * size_of(kType), from[i]);
  };
  switch (type) {
    case TEGULA_F32: return convert.template operator()<TEGULA_F32>();
    case TEGULA_F16: return convert.template operator()<TEGULA_F16>();
    default: return convert.template operator()<TEGULA_BF16>();
  }
}

// A row as bf16, an odd end padded with a zero: exact for bf16 and 8-bit values. widened: room for the row in fp32.
TEGULA_INLINE void bf16_row(tegula_dtype type, const char* from, char* to, int64_t count, float* widened) {
  if (type == TEGULA_BF16) {
    __builtin_memcpy(to, from, static_cast<size_t>(2 * count));
  } else {
    widen_row(type, from, widened, count);
    narrow_row(TEGULA_BF16, widened, to, count);
  }
  if (count % 2 != 0) __builtin_memset(to + 2 * count, 0, 2);
}

// Addresses of rows [begin, end). Pages are looked up once each.
TEGULA_INLINE void row_pointers(const cpu::KvRows& rows, int64_t begin, int64_t end, const char** out) {
  if (rows.pages == nullptr) {
    for (int64_t n = begin; n < end; ++n) *out++ = rows.base + n * rows.token_stride;
    return;
  }
  for (int64_t n = begin; n < end;) {
    const int64_t page = n / rows.page_size;
    const int64_t page_end = (page + 1) * rows.page_size;
    const char* row = rows.base + static_cast<int64_t>(rows.pages[page * rows.pages_stride]) * rows.page_stride +
                      (n - page * rows.page_size) * rows.token_stride;
    for (; n < end && n < page_end; ++n, row += rows.token_stride) *out++ = row;
  }
}

// Packs rows [row_begin, row_end) of the task into q_t, panel by panel: q_t[panel][step][lane]; lanes past the end are 0.
TEGULA_INLINE void pack_queries(const cpu::ForwardParams& params, const cpu::ForwardTask& task, char* q_t, float* widened) {
  const cpu::ForwardLayout& layout = params.layout;
  const int64_t rows = task.row_end - task.row_begin;
  const int64_t panel_bytes = layout.q_steps * layout.panel_rows * 4;
  if (rows % layout.panel_rows != 0) {
    __builtin_memset(q_t + rows / layout.panel_rows * panel_bytes, 0, static_cast<size_t>(panel_bytes));
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = task.row_begin + r;
    const int64_t token = row / params.qheads_per_kvhead;
    const int64_t head = row - token * params.qheads_per_kvhead;
    const char* const from = task.q + token * task.q_token_stride + head * task.q_head_stride;
    char* const units = reinterpret_cast<char*>(widened);
    if (params.pairs) {
      bf16_row(params.q_dtype, from, units, params.head_dim, widened + layout.q_steps);
    } else {
      widen_row(params.q_dtype, from, widened, params.head_dim);
    }
    char* to = q_t + r / layout.panel_rows * panel_bytes + r % layout.panel_rows * 4;
    for (int64_t step = 0; step < layout.q_steps; ++step, to += layout.panel_rows * 4) {
      __builtin_memcpy(to, units + 4 * step, 4);
    }
  }
}

// Rows of a block of keys as the tiles read them.
struct Block {
  int64_t first;       // key of k_rows[0]
  int64_t begin, end;  // keys held, relative to first; begin even for pairs
  const char** k_rows; // [n - first]
  const char** v_rows; // [n - first], or [(n - first) / 2] for pairs
};

// Keys [begin, end) of the block that begins at key `first`; other keys that a pair needs are zeros, never read.
TEGULA_INLINE Block load_block(const cpu::ForwardParams& params, const cpu::ForwardTask& task, int64_t first, int64_t begin,
                               int64_t end, char* scratch) {
  const cpu::ForwardLayout& layout = params.layout;
  float* const widened = reinterpret_cast<float*>(scratch + layout.widen);
  [[maybe_unused]] const char* const zeros = scratch + layout.zero_row;
  const char** const k_rows = reinterpret_cast<const char**>(scratch + layout.pointers);
  const char** const v_rows = k_rows + params.tile_n;
  Block block{first, begin - first, end - first, k_rows, v_rows};

  row_pointers(task.k, begin, end, k_rows + block.begin);
  row_pointers(task.v, begin, end, v_rows + block.begin);
  if (!params.k_in_place) {
    for (int64_t n = block.begin; n < block.end; ++n) {
      char* const to = scratch + layout.k_block + n * layout.q_steps * 4;
      if (params.pairs) {
        bf16_row(params.kv_dtype, k_rows[n], to, params.head_dim, widened);
      } else {
        widen_row(params.kv_dtype, k_rows[n], reinterpret_cast<float*>(to), params.head_dim);
      }
      k_rows[n] = to;
    }
  }
#ifdef TEGULA_PAIRS
  if (params.pairs) {
    if (block.begin % 2 != 0) k_rows[--block.begin] = zeros, v_rows[block.begin] = zeros;
    const bool odd_end = block.end % 2 != 0;
    if (odd_end) v_rows[block.end] = zeros;
    for (int64_t n = block.begin; n < block.end; n += 2) {
      float* const to = reinterpret_cast<float*>(scratch + layout.v_block) + n / 2 * layout.o_stride;
      const char* const even = v_rows[n];
      const char* const odd = v_rows[n + 1];
      int64_t d = 0;
      if (params.kv_dtype == TEGULA_BF16) {
        for (; d + kLanes <= params.head_dim_v; d += kLanes) vstore(to + d, vinterleave_bf16(even + 2 * d, odd + 2 * d));
        for (; d < params.head_dim_v; ++d) {
          __builtin_memcpy(to + d, even + 2 * d, 2);
          __builtin_memcpy(reinterpret_cast<char*>(to + d) + 2, odd + 2 * d, 2);
        }
      } else {
        float* const second = widened + layout.o_stride;
        widen_row(params.kv_dtype, even, widened, params.head_dim_v);
        widen_row(params.kv_dtype, odd, second, params.head_dim_v);
        for (; d < layout.o_stride; d += kLanes) vstore(to + d, vpack_pairs(vload(widened + d), vload(second + d)));
      }
      v_rows[n / 2] = reinterpret_cast<const char*>(to);  // n / 2 <= n: entries still to be read lie behind
    }
    return block;
  }
#endif
  if (!params.v_in_place) {
    for (int64_t n = block.begin; n < block.end; ++n) {
      float* const to = reinterpret_cast<float*>(scratch + layout.v_block) + n * layout.o_stride;
      widen_row(params.kv_dtype, v_rows[n], to, params.head_dim_v);
      v_rows[n] = reinterpret_cast<const char*>(to);
    }
  }
  return block;
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
