// SPDX-License-Identifier: Apache-2.0
// append_kv: write new keys and values into a cache.
#pragma once

#include <tegula/tegula.h>
#include <tegula/error.hpp>
#include <tegula/executor.hpp>
#include <tegula/tensor.hpp>

namespace tegula {
inline namespace v1 {

enum class RotaryStyle : int32_t {
  kHalfSplit = TEGULA_ROTARY_HALF_SPLIT,     // pairs (i, i + rotary_dim / 2)
  kInterleaved = TEGULA_ROTARY_INTERLEAVED,  // pairs (2 i, 2 i + 1)
};

// Row t of sequence b goes to position seqused_k[b] + t, through the page table where there is one,
// or to the slot that slot_mapping names. B = batch, H = heads, D = head_dim, Dv = head_dim_v.
struct AppendKvArgs {
  Tensor k_new = {};    // [B, seqlen_new, Hkv, D], or ragged [total_new, Hkv, D]
  Tensor v_new = {};    // as k_new, with Dv
  Tensor k_cache = {};  // output, [B, capacity, Hkv, D], or pages [num_pages, page_size, Hkv, D]
  Tensor v_cache = {};  // output, as k_cache, with Dv

  Index cu_seqlens_new = {};  // [B + 1], ragged rows
  Index seqused_k = {};       // [B], lengths before this call; never modified
  Index page_table = {};      // [B, max_pages], or instead:
  Index page_indices = {};    // [total_pages]
  Index page_indptr = {};     // [B + 1]
  Index slot_mapping = {};  // int64 [total_new]: page * page_size + offset, negative: skip the row

  Tensor cos = {};       // [max_pos, rotary_dim / 2], f32 or k_new's type
  Tensor sin = {};       // as cos
  Index positions = {};  // [total_new], in place of seqused_k[b] + t
  RotaryStyle rotary_style = RotaryStyle::kHalfSplit;
  Tensor q = {};      // [B, seqlen_new, Hq, D] or [total_new, Hq, D], rotated too
  Tensor q_out = {};  // output; may be q itself

  Tensor descale_k = {};  // 8-bit caches: f32 [1], [Hkv] or [B, Hkv]; stored = x / descale
  Tensor descale_v = {};

  // The same as a C structure; it points into this one.
  tegula_append_kv_args c() const {
    tegula_append_kv_args args;
    check(tegula_append_kv_args_init(&args));
    args.k_new = k_new.c_or_null();
    args.v_new = v_new.c_or_null();
    args.k_cache = k_cache.c_or_null();
    args.v_cache = v_cache.c_or_null();
    args.cu_seqlens_new = cu_seqlens_new.c_or_null();
    args.seqused_k = seqused_k.c_or_null();
    args.page_table = page_table.c_or_null();
    args.page_indices = page_indices.c_or_null();
    args.page_indptr = page_indptr.c_or_null();
    args.slot_mapping = slot_mapping.c_or_null();
    args.positions = positions.c_or_null();
    args.cos = cos.c_or_null();
    args.sin = sin.c_or_null();
    args.rotary_style = static_cast<int32_t>(rotary_style);
    args.q = q.c_or_null();
    args.q_out = q_out.c_or_null();
    args.descale_k = descale_k.c_or_null();
    args.descale_v = descale_v.c_or_null();
    return args;
  }
};

inline void append_kv(const AppendKvArgs& args, const Execution& execution = {}) {
  const tegula_append_kv_args c_args = args.c();
  const tegula_execution c_execution = execution.c();
  check(tegula_append_kv(&c_args, &c_execution));
}

}  // namespace v1
}  // namespace tegula
