// SPDX-License-Identifier: Apache-2.0
// What the two halves of append_kv's checks share: shapes first, then the values of its index
// tensors.
#pragma once

#include <cstdint>

#include <tegula/tegula.h>

#include "src/core/calls.hpp"
#include "src/core/status.hpp"

namespace tegula::api {

struct AppendSizes {
  int64_t batch, seqlen_new, total_new, num_heads_kv, head_dim, head_dim_v;
  int64_t cache_outer, cache_inner;  // batch and capacity, or num_pages and page_size
  tegula_dtype new_dtype, cache_dtype;
  bool ragged, paged;
};

// Offsets, capacities, pages, slots, positions and scales; the shapes are right already.
Status check_append_values(const tegula_append_kv_args& args, const AppendSizes& sizes,
                           const AppendCall& call);

}  // namespace tegula::api
