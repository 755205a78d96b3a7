// SPDX-License-Identifier: Apache-2.0
// One call of an operation, checked and resolved: what src/api hands to a back end.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tegula/tegula.h>

#include "src/core/tensor.hpp"

namespace tegula {

// Shapes of one sequence of a call, with the used lengths of contract.md, 3.
struct Sequence {
  int64_t q_batch;   // batch index into q and o (0 if ragged)
  int64_t q_token;   // first token in q and o
  int64_t seqlen_q;  // used
  int64_t k_batch;   // batch index into dense k and v (0 if ragged; unused if paged)
  int64_t k_token;   // first token in k and v (unused if paged)
  int64_t seqlen_k;  // used, new tokens included
  int64_t leftpad;
};

struct ForwardCall {
  const tegula_problem* problem = nullptr;  // the plan's: checked, defaults resolved
  int64_t batch = 0;                        // this call's
  int64_t seqlen_q = 0, seqlen_k = 0;  // dense: the tensors' (0 otherwise)
  int64_t total_q = 0, total_k = 0;    // ragged: rows of the tensors (0 otherwise)
  TokenView q, k, v, o;
  StridedView lse;  // [batch, head, token], ragged: [0, head, token]
  IndexView cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, cu_seqlens_new;
  int64_t seqlen_new = 0;
  PageTable pages;
  StridedView sink;                             // [head]
  StridedView alibi_slopes;                     // [batch, head]
  StridedView bias;                             // [batch, head, i, j]
  StridedView descale_q, descale_k, descale_v;  // [batch, kv head]

  Sequence sequence(int64_t b) const;
};

struct AppendCall {
  int64_t batch = 0;
  int64_t seqlen_new = 0;  // dense: the tensor's
  int64_t num_heads_q = 0, num_heads_kv = 0, head_dim = 0, head_dim_v = 0, page_size = 0,
          rotary_dim = 0;
  TokenView k_new, v_new, k_cache, v_cache, q, q_out;
  IndexView cu_seqlens_new, seqused_k, slot_mapping, positions;
  PageTable pages;  // absent: dense cache, or slot_mapping
  bool paged = false;
  bool interleaved = false;
  StridedView cos, sin;              // [position, pair]
  StridedView descale_k, descale_v;  // [batch, kv head]

  int64_t new_begin(int64_t b) const {
    return cu_seqlens_new.present() ? cu_seqlens_new.at(b) : b * seqlen_new;
  }
  int64_t new_count(int64_t b) const {
    return cu_seqlens_new.present() ? cu_seqlens_new.at(b + 1) - cu_seqlens_new.at(b) : seqlen_new;
  }
};

struct CombineCall {
  int64_t num_splits = 0, batch = 0, tokens = 0, num_heads = 0,
          head_dim_v = 0;  // ragged: batch = 1, tokens = total_q
  TokenView o_partial;     // split s begins at data + s * split_stride * dtype size
  int64_t o_split_stride = 0;
  StridedView lse_partial;  // [batch, head, token], split s at data + s * lse_split_stride * 4
  int64_t lse_split_stride = 0;
  TokenView o;
  StridedView lse;   // [batch, head, token]; may be absent
  StridedView sink;  // [head]; may be absent
};

// The caller's wishes for one call; members of tegula_execution that make sense on the CPU and
// CUDA, checked.
struct Execution {
  const tegula_executor* executor = nullptr;  // nullptr: the library's pool
  void* stream = nullptr;
  void* workspace = nullptr;  // nullptr: from the process-wide pool
  size_t workspace_size = 0;
  int32_t* error_word = nullptr;
};

}  // namespace tegula
