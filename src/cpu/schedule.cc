// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/schedule.hpp"

#include <algorithm>
#include <tuple>

#include "src/core/integer.hpp"
#include "src/core/mask.hpp"

namespace tegula::cpu {
namespace {

constexpr int64_t kNoSplit = int64_t{1} << 60;
constexpr int64_t kItemsOfWorker = 8;  // at least, before the heads of items are joined

// Calls visit(batch, sequence, row_begin, row_end, keys) for each block of packed query rows of one
// kv head.
template <class Visit>
void for_each_row_block(const ForwardPlan& plan, const ForwardCall& call, Visit&& visit) {
  const int64_t group = plan.params.qheads_per_kvhead;
  for (int64_t b = 0; b < call.batch; ++b) {
    const Sequence sequence = call.sequence(b);
    const Mask mask(*call.problem, sequence);
    const int64_t rows = sequence.seqlen_q * group;
    for (int64_t row = 0; row < rows; row += plan.tile_m) {
      const int64_t row_end = std::min(row + plan.tile_m, rows);
      visit(b, sequence, row, row_end, mask.keys(row / group, (row_end - 1) / group + 1));
    }
  }
}

// Pieces of a range: the cells of a grid of `split` keys from key 0 that it touches; an empty range
// is one (empty) piece.
int64_t num_pieces(KeyRange keys, int64_t split) {
  return keys.empty() ? 1 : ceil_div(keys.end, split) - keys.begin / split;
}

// Keys of a split of one sequence.
int64_t split_length(const ForwardPlan& plan, const tegula_problem& problem,
                     const Sequence& sequence, int64_t automatic) {
  if (problem.fixed_split > 0) return problem.fixed_split;
  if (problem.num_splits == 0) return automatic;
  const int64_t blocks = std::max<int64_t>(1, ceil_div(sequence.seqlen_k, plan.params.tile_n));
  return ceil_div(blocks, problem.num_splits) * plan.params.tile_n;
}

// Automatic splitting: pieces of about 1 / kTargetItems of all work, so that one long sequence
// cannot hold up the call, and no more of them than the plan has room for.
int64_t automatic_split(const ForwardPlan& plan, const ForwardCall& call) {
  if (plan.max_splits == 1) return kNoSplit;
  int64_t total = 0, longest = 0;
  for_each_row_block(plan, call, [&](int64_t, const Sequence&, int64_t, int64_t, KeyRange keys) {
    total += keys.size();
    longest = std::max(longest, keys.size());
  });
  total *= call.problem->num_heads_kv;
  int64_t split =
      std::max(plan.least_split, round_up(ceil_div(total, kTargetItems), plan.params.tile_n));
  for (; split < longest; split *= 2) {
    int64_t rows = 0;
    for_each_row_block(plan, call,
                       [&](int64_t, const Sequence&, int64_t begin, int64_t end, KeyRange keys) {
                         const int64_t pieces = num_pieces(keys, split);
                         if (pieces > 1) rows += pieces * (end - begin);
                       });
    if (rows * call.problem->num_heads_kv <= plan.partial_rows) return split;
  }
  return kNoSplit;
}

// Joins items of few rows that differ in the head alone, where the heads lie beside each other in
// memory: read together, their rows are one stream. No bit depends on it, so it may depend on the
// number of workers, each of which is to have many items.
void join_heads(const ForwardPlan& plan, const ForwardCall& call, std::vector<WorkItem>& items) {
  const ForwardParams& params = plan.params;
  if (call.k.head_stride != params.head_dim || call.v.head_stride != params.head_dim_v) return;
  const auto num_items = static_cast<int64_t>(items.size());
  int64_t heads = params.narrow_heads;
  while (heads > 1 && num_items < heads * kItemsOfWorker * plan.num_workers) heads /= 2;
  if (heads == 1) return;
  size_t kept = 0;
  for (const WorkItem& item : items) {
    WorkItem* const last = kept > 0 ? &items[kept - 1] : nullptr;
    if (last != nullptr && last->num_heads < heads && last->batch == item.batch &&
        last->row_begin == item.row_begin && last->key_begin == item.key_begin &&
        last->kv_head + last->num_heads == item.kv_head &&
        plan.has_few_rows(call.sequence(item.batch).seqlen_q)) {
      ++last->num_heads;
      last->cost += item.cost;
    } else {
      items[kept++] = item;
    }
  }
  items.resize(kept);
}

// Whether the items of a head should follow each other: matrix tiles pack k and v, and an item
// finds what the one before it has packed (few rows read them as they lie). Only with enough items
// that the last ones do not leave workers idle. (The order changes no bit.)
bool items_share_keys(const ForwardPlan& plan, const ForwardCall& call, const Schedule& schedule) {
  return plan.params.use_tiles && !plan.has_few_rows(call.problem->max_seqlen_q) &&
         static_cast<int64_t>(schedule.items.size()) >= 4 * int64_t{plan.num_workers};
}

}  // namespace

void make_schedule(const ForwardPlan& plan, const ForwardCall& call, Schedule& schedule) {
  schedule.items.clear();
  schedule.merges.clear();
  const tegula_problem& problem = *call.problem;
  const int64_t automatic =
      problem.num_splits == 0 && problem.fixed_split == 0 ? automatic_split(plan, call) : kNoSplit;
  const int64_t head_dim_v = plan.params.head_dim_v;
  int64_t partial = 0;  // floats used so far

  for_each_row_block(
      plan, call,
      [&](int64_t b, const Sequence& sequence, int64_t begin, int64_t end, KeyRange keys) {
        const int64_t split = split_length(plan, problem, sequence, automatic);
        const int64_t pieces = num_pieces(keys, split);
        const int64_t rows = end - begin;
        // The heads of a range of keys follow each other: in the usual layouts they share its
        // memory pages (decode from DRAM: 1.2 to 1.7 times faster than each head by itself).
        const int64_t floats = pieces * rows * (head_dim_v + 1);  // of a head's partials
        for (int64_t piece = 0; piece < pieces; ++piece) {
          WorkItem item{b, 0, 1, begin, end, 0, 0, 0, -1, -1, floats};
          if (!keys.empty()) {
            // The grid cell, not the visible part of it: blocks of keys must not depend on which
            // rows share an item.
            item.key_begin = (keys.begin / split + piece) * split;
            item.key_end = std::min(item.key_begin + split, keys.end);
            item.cost = rows * (item.key_end - std::max(item.key_begin, keys.begin));
          }
          for (; item.kv_head < problem.num_heads_kv; ++item.kv_head) {
            if (pieces > 1) {
              const int64_t first = partial + item.kv_head * floats;
              item.partial = first + piece * rows * head_dim_v;
              item.partial_lse = first + pieces * rows * head_dim_v + piece * rows;
            }
            schedule.items.push_back(item);
          }
        }
        for (int64_t head = 0; pieces > 1 && head < problem.num_heads_kv; ++head) {
          schedule.merges.push_back(
              {b, head, begin, end, pieces, partial, partial + pieces * rows * head_dim_v});
          partial += floats;
        }
      });
  join_heads(plan, call, schedule.items);
  const auto heavier = [](const WorkItem& a, const WorkItem& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return std::tie(a.batch, a.key_begin, a.row_begin, a.kv_head) <
           std::tie(b.batch, b.key_begin, b.row_begin, b.kv_head);
  };
  if (items_share_keys(plan, call, schedule)) {
    // As many heads at a time as there are workers: each then packs one and uses it again.
    const auto group = [&](const WorkItem& item) {
      return (item.batch * problem.num_heads_kv + item.kv_head) / plan.num_workers;
    };
    std::sort(schedule.items.begin(), schedule.items.end(),
              [&](const WorkItem& a, const WorkItem& b) {
                if (group(a) != group(b)) return group(a) < group(b);
                return heavier(a, b);
              });
    return;
  }
  if (!std::is_sorted(schedule.items.begin(), schedule.items.end(), heavier)) {
    std::sort(schedule.items.begin(), schedule.items.end(), heavier);
  }
}

}  // namespace tegula::cpu
