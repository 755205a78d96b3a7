// SPDX-License-Identifier: Apache-2.0
// What a call is: its tensors (ForwardArgs), its meaning (Options), and what a plan needs to know
// of both (Problem).
#pragma once

#include <tegula/tegula.h>
#include <tegula/error.hpp>
#include <tegula/tensor.hpp>

#include <cstdint>

namespace tegula {
inline namespace v1 {

// Tensors of one forward; those that stay default-constructed are absent.
// B = batch, Hq and Hkv = heads, D = head_dim, Dv = head_dim_v.
struct ForwardArgs {
  Tensor q = {};  // [B, seqlen_q, Hq, D], or ragged [total_q, Hq, D]
  Tensor k =
      {};  // [B, seqlen_k, Hkv, D], ragged [total_k, Hkv, D], pages [num_pages, page_size, Hkv, D]
  Tensor v = {};    // as k, with Dv
  Tensor o = {};    // output, as q, with Dv
  Tensor lse = {};  // optional output, f32 natural log: [B, Hq, seqlen_q], or ragged [Hq, total_q]

  Index cu_seqlens_q = {};  // [B + 1], ragged q
  Index cu_seqlens_k = {};  // [B + 1], ragged k
  Index seqused_q = {};     // [B], shortens sequences inside their slots
  Index seqused_k = {};     // [B], required with pages
  Index leftpad_k = {};     // [B], keys before it are unseen
  Index page_table = {};    // [B, max_pages], or instead:
  Index page_indices = {};  // [total_pages]
  Index page_indptr = {};   // [B + 1]

  // Tokens that append_kv has written behind seqused_k: a number for all, or offsets [B + 1].
  int64_t seqlen_new = 0;
  Index cu_seqlens_new = {};

  Tensor sink = {};          // f32 [Hq]
  Tensor alibi_slopes = {};  // f32 [Hq] or [B, Hq]
  Tensor bias = {};          // [B, Hq, seqlen_q, seqlen_k], q's type, f32 or bool; strides may be 0
  Tensor descale_q = {};     // 8-bit operands: f32 [1], [Hkv] or [B, Hkv]
  Tensor descale_k = {};
  Tensor descale_v = {};

  // The same as a C structure; it points into this one.
  tegula_forward_args c() const {
    tegula_forward_args args;
    check(tegula_forward_args_init(&args));
    args.q = q.c_or_null();
    args.k = k.c_or_null();
    args.v = v.c_or_null();
    args.o = o.c_or_null();
    args.lse = lse.c_or_null();
    args.cu_seqlens_q = cu_seqlens_q.c_or_null();
    args.cu_seqlens_k = cu_seqlens_k.c_or_null();
    args.seqused_q = seqused_q.c_or_null();
    args.seqused_k = seqused_k.c_or_null();
    args.leftpad_k = leftpad_k.c_or_null();
    args.page_table = page_table.c_or_null();
    args.page_indices = page_indices.c_or_null();
    args.page_indptr = page_indptr.c_or_null();
    args.seqlen_new = seqlen_new;
    args.cu_seqlens_new = cu_seqlens_new.c_or_null();
    args.sink = sink.c_or_null();
    args.alibi_slopes = alibi_slopes.c_or_null();
    args.bias = bias.c_or_null();
    args.descale_q = descale_q.c_or_null();
    args.descale_k = descale_k.c_or_null();
    args.descale_v = descale_v.c_or_null();
    return args;
  }
};

// The meaning of a forward; the defaults are plain attention.
struct Options {
  bool causal = false;        // token i sees keys up to i + seqlen_k - seqlen_q
  int64_t window_left = -1;   // keys p - window_left ... p + window_right, inclusive; -1: unlimited
  int64_t window_right = -1;  // p = i + seqlen_k - seqlen_q
  int64_t attention_chunk = 0;  // keys of the token's own chunk only; 0: none
  double softmax_scale = 0;     // 0: head_dim^-1/2
  double softcap = 0;           // s <- softcap * tanh(s / softcap); 0: none
  int64_t num_splits = 0;       // ranges of keys: 0 automatic, 1 none, at most 1024
  int64_t fixed_split = 0;   // tokens per split: a sequence's bits depend on itself alone; 0: off
  int64_t max_seqlen_q = 0;  // longest used length; 0: not known
  int64_t max_seqlen_k = 0;
  bool fast_accumulate = false;
};

// Maxima of shapes, types, mask and layout: all that planning looks at. A plan made from it serves
// every call with the same types and layout and sizes up to these.
class Problem {
 public:
  // Nothing set but the defaults; c() is filled by hand.
  Problem() { check(tegula_problem_init(&problem_)); }

  // Sizes, types and layout from the tensors, whose data may still be null.
  explicit Problem(const ForwardArgs& args, const Options& options = {}) : Problem() {
    const tegula_forward_args c_args = args.c();
    check(tegula_describe_forward(&c_args, &problem_));
    problem_.causal = options.causal ? 1 : 0;
    problem_.window_left = options.window_left;
    problem_.window_right = options.window_right;
    problem_.attention_chunk = options.attention_chunk;
    problem_.softmax_scale = options.softmax_scale;
    problem_.softcap = options.softcap;
    problem_.num_splits = options.num_splits;
    problem_.fixed_split = options.fixed_split;
    problem_.max_seqlen_q = options.max_seqlen_q;
    problem_.max_seqlen_k = options.max_seqlen_k;
    problem_.fast_accumulate = options.fast_accumulate ? 1 : 0;
  }

  tegula_problem& c() { return problem_; }
  const tegula_problem& c() const { return problem_; }

 private:
  tegula_problem problem_;
};

}  // namespace v1
}  // namespace tegula
