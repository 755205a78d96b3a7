// SPDX-License-Identifier: Apache-2.0
#include "src/core/calls.hpp"

namespace tegula {

Sequence ForwardCall::sequence(int64_t b) const {
  Sequence s{};
  if (cu_seqlens_q.present()) {
    s.q_token = cu_seqlens_q.at(b);
    s.seqlen_q = cu_seqlens_q.at(b + 1) - s.q_token;
  } else {
    s.q_batch = b;
    s.seqlen_q = seqlen_q;
  }
  if (seqused_q.present()) s.seqlen_q = seqused_q.at(b);
  if (cu_seqlens_k.present()) {
    s.k_token = cu_seqlens_k.at(b);
    s.seqlen_k = cu_seqlens_k.at(b + 1) - s.k_token;
  } else {
    s.k_batch = b;
    s.seqlen_k = seqlen_k;
  }
  if (seqused_k.present()) {
    s.seqlen_k = seqused_k.at(b) + seqlen_new;
    if (cu_seqlens_new.present()) s.seqlen_k += cu_seqlens_new.at(b + 1) - cu_seqlens_new.at(b);
  }
  if (leftpad_k.present()) s.leftpad = leftpad_k.at(b);
  return s;
}

}  // namespace tegula
