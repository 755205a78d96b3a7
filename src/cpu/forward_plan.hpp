// SPDX-License-Identifier: Apache-2.0
// What is decided about a forward on the CPU before any tensor is seen: tiles, the way operands are
// read, splits and scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tegula/tegula.h>

#include "src/cpu/kernel_abi.hpp"

namespace tegula::cpu {

// Automatic splitting cuts a call into about so many pieces of equal work, whatever the thread
// count.
inline constexpr int64_t kTargetItems = 256;

inline constexpr int64_t kMaxItemHeads = 8;  // kv heads of a work item

struct ForwardPlan {
  const KernelFamily* family = nullptr;
  ForwardParams params{};
  int64_t tile_m = 0;        // packed query rows of an item
  int64_t max_splits = 1;    // of any sequence
  int64_t partial_rows = 0;  // room for split partials, in rows of head_dim_v + 1 floats
  int64_t least_split = 0;   // automatic: no split is shorter, in keys
  int32_t num_workers = 1;
  size_t worker_bytes = 0;
  size_t scratch_bytes = 0;  // all workers' tiles, then the partials

  // Whether a sequence of so many tokens goes to a kernel that takes several heads at once
  // (is_narrow, is_tile_decode in kernels/).
  bool has_few_rows(int64_t seqlen_q) const {
    const int64_t rows = seqlen_q * params.qheads_per_kvhead;
    if (params.use_tiles) return rows <= kFewTileRows;
    return rows <= family->narrow_rows && params.head_dim % family->lanes == 0;
  }
};

// problem is checked and resolved.
ForwardPlan plan_forward(const tegula_problem& problem, const KernelFamily& family,
                         int32_t num_workers);

}  // namespace tegula::cpu
