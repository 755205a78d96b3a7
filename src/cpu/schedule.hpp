// SPDX-License-Identifier: Apache-2.0
// Cutting a forward call into work items: (sequence, kv head, block of packed query rows, range of
// keys). The cut depends on the problem and the lengths alone, never on the number of threads, so
// that bits do not depend on it either.
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/calls.hpp"
#include "src/cpu/forward_plan.hpp"

namespace tegula::cpu {

struct WorkItem {
  int64_t batch;
  int64_t kv_head;             // the first
  int64_t num_heads;           // kv heads, in few rows
  int64_t row_begin, row_end;  // packed rows
  int64_t key_begin, key_end;
  int64_t cost;     // heads x rows x keys
  int64_t partial;  // index into the partial rows' o and lse of this piece; -1: the item writes o
                    // itself
  int64_t partial_lse;
  int64_t partial_head;  // floats from one head's partials to the next one's
};

// Rows whose pieces are merged when all items are done.
struct MergeItem {
  int64_t batch;
  int64_t kv_head;
  int64_t row_begin, row_end;
  int64_t num_splits;
  int64_t
      partial;  // float offsets of the first piece; pieces follow each other, all o before all lse
  int64_t partial_lse;
};

struct Schedule {
  std::vector<WorkItem> items;  // most costly first
  std::vector<MergeItem> merges;
};

// Throws std::bad_alloc.
void make_schedule(const ForwardPlan& plan, const ForwardCall& call, Schedule& schedule);

}  // namespace tegula::cpu
