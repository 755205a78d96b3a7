// SPDX-License-Identifier: Apache-2.0
// Rows of q, k and v: where they lie (pages included), and conversions of one row or a block.
#pragma once

#include "src/cpu/kernel_abi.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

// count values of a row to fp32. Nothing past the row is read.
template <tegula_dtype kType>
TEGULA_INLINE void widen_values(const char* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) vstore(to + i, vwiden<kType>(from + i * size_of(kType)));
  for (; i < count; ++i) to[i] = widen<kType>(from + i * size_of(kType));
}
TEGULA_INLINE void widen_row(tegula_dtype type, const char* from, float* to, int64_t count) {
  with_type(type, [&]<tegula_dtype kType>() { widen_values<kType>(from, to, count); });
}

// count values times factor, rounded to `type` (never 8-bit).
TEGULA_INLINE void narrow_row(tegula_dtype type, const float* from, char* to, int64_t count,
                              float factor = 1.0f) {
  const auto convert = [&]<tegula_dtype kType>() {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      vnarrow<kType>(to + i * size_of(kType), vmul(vload(from + i), vset(factor)));
    for (; i < count; ++i) narrow<kType>(to + i * size_of(kType), from[i] * factor);
  };
  switch (type) {
    case TEGULA_F32: return convert.template operator()<TEGULA_F32>();
    case TEGULA_F16: return convert.template operator()<TEGULA_F16>();
    default: return convert.template operator()<TEGULA_BF16>();
  }
}

// A row as bf16, an odd end padded with a zero: exact for bf16 and 8-bit values. widened: room for
// the row in fp32.
TEGULA_INLINE void bf16_row(tegula_dtype type, const char* from, char* to, int64_t count,
                            float* widened) {
  if (type == TEGULA_BF16) {
    __builtin_memcpy(to, from, static_cast<size_t>(2 * count));
  } else {
    widen_row(type, from, widened, count);
    narrow_row(TEGULA_BF16, widened, to, count);
  }
  if (count % 2 != 0) __builtin_memset(to + 2 * count, 0, 2);
}

// Addresses of rows [begin, end). Pages are looked up once each.
TEGULA_INLINE void row_pointers(const cpu::KvRows& rows, int64_t begin, int64_t end,
                                const char** out) {
  if (rows.pages == nullptr) {
    for (int64_t n = begin; n < end; ++n) *out++ = rows.base + n * rows.token_stride;
    return;
  }
  int64_t page = begin / rows.page_size;
  for (int64_t n = begin; n < end; ++page) {
    const int64_t page_begin = page * rows.page_size, page_end = page_begin + rows.page_size;
    const char* row =
        rows.base + static_cast<int64_t>(rows.pages[page * rows.pages_stride]) * rows.page_stride +
        (n - page_begin) * rows.token_stride;
    for (; n < end && n < page_end; ++n, row += rows.token_stride) *out++ = row;
  }
}

// Walks the packed rows of a task: token and head of the group, without a division a row.
struct PackedRow {
  int64_t token, head, heads;

  TEGULA_INLINE PackedRow(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                          int64_t first_row = 0)
      : token((task.row_begin + first_row) / params.qheads_per_kvhead),
        head((task.row_begin + first_row) % params.qheads_per_kvhead),
        heads(params.qheads_per_kvhead) {}
  TEGULA_INLINE void next() {
    if (++head == heads) {
      head = 0;
      ++token;
    }
  }
};

TEGULA_INLINE const char* query_row(const cpu::ForwardTask& task, const PackedRow& row) {
  return task.q + row.token * task.q_token_stride + row.head * task.q_head_stride;
}

// Lists of tile_n + kRowPad row addresses in the worker's scratch.
enum class RowList { kK, kV, kVisible, kConverted, kNextK, kNextV };

TEGULA_INLINE const char** row_list(const cpu::ForwardParams& params, char* scratch,
                                    RowList which) {
  return reinterpret_cast<const char**>(scratch + params.layout.pointers) +
         static_cast<int>(which) * (params.tile_n + cpu::kRowPad);
}

// Rows of a block of keys as the tiles read them.
struct Block {
  int64_t first;        // key of k_rows[0]
  int64_t begin, end;   // keys held, relative to first; begin even for pairs
  const char** k_rows;  // [n - first]
  const char** v_rows;  // [n - first], or [(n - first) / 2] for pairs
};

// Two rows of v as pairs (even[d], odd[d]) of bf16.
TEGULA_INLINE void pair_rows([[maybe_unused]] const cpu::ForwardParams& params,
                             [[maybe_unused]] const char* even, [[maybe_unused]] const char* odd,
                             [[maybe_unused]] float* to, [[maybe_unused]] float* widened) {
#ifdef TEGULA_PAIRS
  const int64_t count = params.head_dim_v;
  int64_t d = 0;
  if (params.kv_dtype == TEGULA_BF16) {
    for (; d + 2 * kLanes <= count; d += 2 * kLanes) {
      interleave_words(even + 2 * d, odd + 2 * d, reinterpret_cast<char*>(to + d),
                       reinterpret_cast<char*>(to + d + kLanes));
    }
    for (; d < count; ++d) {
      __builtin_memcpy(to + d, even + 2 * d, 2);
      __builtin_memcpy(reinterpret_cast<char*>(to + d) + 2, odd + 2 * d, 2);
    }
    return;
  }
  float* const second = widened + params.layout.o_stride;
  widen_row(params.kv_dtype, even, widened, count);
  widen_row(params.kv_dtype, odd, second, count);
  for (; d < count; d += kLanes) vstore(to + d, vpack_pairs(vload(widened + d), vload(second + d)));
#endif
}

// Converts the block's rows of v.
TEGULA_INLINE void load_v(const cpu::ForwardParams& params, const Block& block, char* scratch) {
  const int64_t step = params.pairs ? 2 : 1;
  float* to = reinterpret_cast<float*>(scratch + params.layout.v_block) +
              block.begin / step * params.layout.o_stride;
  for (int64_t n = block.begin; n < block.end; n += step, to += params.layout.o_stride) {
    if (params.pairs) {
      pair_rows(params, block.v_rows[n], block.v_rows[n + 1], to,
                reinterpret_cast<float*>(scratch + params.layout.widen));
    } else {
      widen_row(params.kv_dtype, block.v_rows[n], to, params.head_dim_v);
    }
    block.v_rows[n / step] =
        reinterpret_cast<const char*>(to);  // n / step <= n: entries still to be read lie behind
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
