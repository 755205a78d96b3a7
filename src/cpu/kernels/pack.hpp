// SPDX-License-Identifier: Apache-2.0
// Operands of the wide kernel: rows of q transposed once an item, rows of k and v found (pages
// included), converted or copied where the tiles cannot read them as they lie, and prefetched.
#pragma once

#include "src/cpu/kernel_abi.hpp"
#include "src/cpu/kernels/block.hpp"
#include "src/cpu/kernels/score.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

// to[step][lane] = value `step` of rows[lane], 32 bits each.
template <tegula_dtype kType>
TEGULA_INLINE void transpose_rows(const char* const (&rows)[kLanes], int64_t count, int64_t stride,
                                  float* to) {
  int64_t step = 0;
  for (; step + kLanes <= count; step += kLanes) {
    vf value[kLanes];
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane)
      value[lane] = vwiden<kType>(rows[lane] + step * size_of(kType));
    vtranspose(value);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) vstore(to + (step + i) * stride, value[i]);
  }
  for (; step < count; ++step) {
    for (int lane = 0; lane < kLanes; ++lane)
      to[step * stride + lane] = widen<kType>(rows[lane] + step * size_of(kType));
  }
}

// Packs rows [first, end) of the task, a panel, into q_t[step][row]. Lanes past the last row repeat
// it.
TEGULA_INLINE void pack_queries(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                                int64_t first, int64_t end, float* q_t) {
  const int64_t stride = params.layout.panel_rows;
  const auto pack = [&]<tegula_dtype kType>(int64_t count) {
    PackedRow row(params, task, first);
    for (int64_t r = first; r < end; r += kLanes, q_t += kLanes) {
      const char* rows[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        rows[lane] = query_row(task, row);
        if (r + lane + 1 < end) row.next();
      }
      transpose_rows<kType>(rows, count, stride, q_t);
      if (params.pairs && params.head_dim % 2 != 0) {  // the last value and a zero
        for (int lane = 0; lane < kLanes; ++lane) {
          uint16_t last;
          __builtin_memcpy(&last, rows[lane] + 4 * count, sizeof last);
          q_t[count * stride + lane] = float_of(last);
        }
      }
    }
  };
  if (params.pairs) return pack.template operator()<TEGULA_F32>(params.head_dim / 2);
  with_type(params.q_dtype,
            [&]<tegula_dtype kType>() { pack.template operator()<kType>(params.head_dim); });
}

// Finds keys [begin, end) of the block that begins at key `first`; begin >= end: none. For pairs, a
// key before `begin` that completes a pair is a row of zeros; what lies there is not read.
TEGULA_INLINE Block find_rows(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                              int64_t first, int64_t begin, int64_t end, const char** k_rows,
                              const char** v_rows, const char* zeros) {
  Block block{first, begin - first, end - first, k_rows, v_rows};
  if (begin >= end) return block;
  row_pointers(task.k, begin, end, k_rows + block.begin);
  row_pointers(task.v, begin, end, v_rows + block.begin);
  for (int64_t n = 0; n < cpu::kRowPad; ++n) k_rows[block.end + n] = k_rows[block.end - 1];
  if (params.pairs) {
    if (block.begin % 2 != 0) {
      --block.begin;
      k_rows[block.begin] = v_rows[block.begin] = zeros;
    }
    v_rows[block.end] = zeros;  // used if the end is odd
  }
  return block;
}

// Brings the block's rows of k into the form that score tiles read, [n][q_steps] 32-bit units. Rows
// that have it are read where they lie: a tile needs a row once.
TEGULA_INLINE void load_keys(const cpu::ForwardParams& params, const Block& block, char* scratch) {
  const int64_t q_steps = params.layout.q_steps;
  const bool as_is = params.pairs ? params.kv_dtype == TEGULA_BF16 && params.head_dim % 2 == 0
                                  : params.kv_dtype == TEGULA_F32;
  if (as_is) return;
  float* const to = reinterpret_cast<float*>(scratch + params.layout.k_block);
  if (params.pairs) {
    for (int64_t n = block.begin; n < block.end; ++n) {
      bf16_row(params.kv_dtype, block.k_rows[n], reinterpret_cast<char*>(to + n * q_steps),
               params.head_dim, reinterpret_cast<float*>(scratch + params.layout.widen));
    }
  } else {
    with_type(params.kv_dtype, [&]<tegula_dtype kType>() {
      for (int64_t n = block.begin; n < block.end; ++n)
        widen_values<kType>(block.k_rows[n], to + n * q_steps, q_steps);
    });
  }
  for (int64_t n = block.begin; n < block.end + cpu::kRowPad; ++n) {
    block.k_rows[n] =
        reinterpret_cast<const char*>(to + (n < block.end ? n : block.end - 1) * q_steps);
  }
}

// Likewise v: rows of o_stride floats, or of pairs of neighbouring keys. A row is read again for
// every few query rows, so rows are copied unless they lie one after another: at the usual strides,
// powers of two, a block falls on a few sets of the L1 (1.1 to 1.5 times slower, 8 heads of 128).
TEGULA_INLINE void load_values(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                               const Block& block, char* scratch) {
  const int64_t stride = params.layout.o_stride;
  if (!params.pairs && params.kv_dtype == TEGULA_F32 && stride == params.head_dim_v &&
      task.v.token_stride == 4 * stride) {
    return;
  }
  float* const to = reinterpret_cast<float*>(scratch + params.layout.v_block);
  const auto set = [&](int64_t n, float* row) {
    block.v_rows[n] = reinterpret_cast<const char*>(row);
  };
  if (params.pairs) {
    for (int64_t n = block.begin; n < block.end; n += 2) {
      pair_rows(params, block.v_rows[n], block.v_rows[n + 1], to + n / 2 * stride,
                reinterpret_cast<float*>(scratch + params.layout.widen));
      set(n / 2, to + n / 2 * stride);  // n / 2 <= n: entries still to be read lie behind
    }
    return;
  }
  with_type(params.kv_dtype, [&]<tegula_dtype kType>() {
    for (int64_t n = block.begin; n < block.end; ++n) {
      widen_values<kType>(block.v_rows[n], to + n * stride, params.head_dim_v);
      set(n, to + n * stride);
    }
  });
}

// Prefetches rows to the L2, a few beside each score tile: those of the next block of keys, and of
// q before they are packed. The hardware does not follow short rows at a large stride (without it 5
// to 8 % slower, head_dim 64 of 8 heads).
class BlockAhead {
 public:
  // tiles: that it is called beside.
  BlockAhead(const cpu::ForwardParams& params, const cpu::ForwardTask& task, const Block& next,
             int64_t tiles)
      : k_rows_(next.k_rows + next.begin),
        v_rows_(next.v_rows + next.begin),
        k_bytes_(params.head_dim * size_of(params.kv_dtype)),
        v_bytes_(params.head_dim_v * size_of(params.kv_dtype)),
        keys_(next.end > next.begin ? next.end - next.begin : 0),
        step_((keys_ + tiles - 1) / tiles),
        task_(task),
        query_(params, task),
        q_bytes_(params.head_dim * size_of(params.q_dtype)) {}

  // Rows [first, end) of q, too.
  void add_queries(const cpu::ForwardParams& params, int64_t first, int64_t end) {
    query_ = PackedRow(params, task_, first);
    queries_ = end - first;
  }

  TEGULA_INLINE void operator()() {
    for (int64_t i = 0; i < step_ && keys_ > 0; ++i, --keys_) {
      fetch(*k_rows_++, k_bytes_);
      fetch(*v_rows_++, v_bytes_);
    }
    for (int64_t i = 0; i < 2 && queries_ > 0; ++i, --queries_, query_.next())
      fetch(query_row(task_, query_), q_bytes_);
  }

 private:
  static TEGULA_INLINE void fetch(const char* row, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
  }

  const char* const* k_rows_;
  const char* const* v_rows_;
  int64_t k_bytes_, v_bytes_, keys_, step_;
  const cpu::ForwardTask& task_;
  PackedRow query_;
  int64_t q_bytes_, queries_ = 0;
};

}  // namespace tegula::TEGULA_ISA_NAMESPACE
