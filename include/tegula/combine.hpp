// SPDX-License-Identifier: Apache-2.0
// combine: merge partial results of the same rows over disjoint keys.
#pragma once

#include <tegula/tegula.h>
#include <tegula/error.hpp>
#include <tegula/executor.hpp>
#include <tegula/tensor.hpp>

namespace tegula {
inline namespace v1 {

// B = batch, Hq = heads, Dv = head_dim_v; ragged: total_q in place of B and seqlen_q.
struct CombineArgs {
  Tensor o_partial = {};    // [num_splits, B, seqlen_q, Hq, Dv] or [num_splits, total_q, Hq, Dv]
  Tensor lse_partial = {};  // f32 [num_splits, B, Hq, seqlen_q] or [num_splits, Hq, total_q]
  Tensor o = {};            // output, [B, seqlen_q, Hq, Dv] or [total_q, Hq, Dv]
  Tensor lse = {};          // optional output, f32 [B, Hq, seqlen_q] or [Hq, total_q]
  Tensor sink = {};         // f32 [Hq]; enters once, here

  // The same as a C structure; it points into this one.
  tegula_combine_args c() const {
    tegula_combine_args args;
    check(tegula_combine_args_init(&args));
    args.o_partial = o_partial.c_or_null();
    args.lse_partial = lse_partial.c_or_null();
    args.o = o.c_or_null();
    args.lse = lse.c_or_null();
    args.sink = sink.c_or_null();
    return args;
  }
};

inline void combine(const CombineArgs& args, const Execution& execution = {}) {
  const tegula_combine_args c_args = args.c();
  const tegula_execution c_execution = execution.c();
  check(tegula_combine(&c_args, &c_execution));
}

}  // namespace v1
}  // namespace tegula
