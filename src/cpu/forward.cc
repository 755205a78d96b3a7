// SPDX-License-Identifier: Apache-2.0
// Running a forward: a schedule of work items, one task each, then the merge of split rows.
#include <algorithm>
#include <new>
#include <utility>

#include "src/core/dtype.hpp"
#include "src/core/mask.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/executor/scratch_pool.hpp"
#include "src/cpu/schedule.hpp"
#include "src/cpu/tasks.hpp"

namespace tegula::cpu {
namespace {

constexpr int64_t kMaxTokens = kMaxTileRows;  // of an item: tile_m is at most so many rows

const char* bytes_of(const std::byte* data) {
  return reinterpret_cast<const char*>(data);
}

const float* head_pointer(const StridedView& view, int64_t batch, int64_t head) {
  if (!view.present()) return nullptr;
  return reinterpret_cast<const float*>(view.data) + batch * view.strides[0] +
         head * view.strides[1];
}

KvRows kv_rows(const TokenView& view, const ForwardCall& call, const Sequence& sequence,
               int64_t batch, int64_t head) {
  const int64_t size = static_cast<int64_t>(dtype_size(view.dtype));
  KvRows rows{};
  rows.base = bytes_of(view.data) + head * view.head_stride * size;
  rows.token_stride = view.token_stride * size;
  if (call.problem->layout_k != TEGULA_PAGED) {
    rows.base +=
        (sequence.k_batch * view.batch_stride + sequence.k_token * view.token_stride) * size;
    return rows;
  }
  const PageTable& pages = call.pages;
  const bool table = pages.table.present();
  const IndexView& entries = table ? pages.table : pages.indices;
  const int64_t first =
      table ? batch * entries.strides[0] : pages.indptr.at(batch) * entries.strides[0];
  rows.pages = reinterpret_cast<const int32_t*>(entries.data) + first;
  rows.pages_stride = table ? entries.strides[1] : entries.strides[0];
  rows.page_stride = view.batch_stride * size;
  rows.page_size = call.problem->page_size;
  return rows;
}

float descale(const StridedView& view, int64_t batch, int64_t kv_head) {
  return view.present() ? view.f32(batch, kv_head) : 1.0f;
}

// Everything about an item that its sequence and head decide.
ForwardTask make_task(const ForwardPlan& plan, const ForwardCall& call, int64_t batch,
                      int64_t kv_head) {
  const Sequence sequence = call.sequence(batch);
  const int64_t first_head = kv_head * plan.params.qheads_per_kvhead;
  const auto locate = [&](const TokenView& view) {
    return view.data + (sequence.q_batch * view.batch_stride +
                        sequence.q_token * view.token_stride + first_head * view.head_stride) *
                           static_cast<int64_t>(dtype_size(view.dtype));
  };
  ForwardTask task{};
  task.head = batch * call.problem->num_heads_kv + kv_head;
  const auto q_size = static_cast<int64_t>(dtype_size(call.q.dtype));
  const auto o_size = static_cast<int64_t>(dtype_size(call.o.dtype));
  task.q = bytes_of(locate(call.q));
  task.q_token_stride = call.q.token_stride * q_size;
  task.q_head_stride = call.q.head_stride * q_size;
  task.o = reinterpret_cast<char*>(locate(call.o));
  task.o_token_stride = call.o.token_stride * o_size;
  task.o_head_stride = call.o.head_stride * o_size;
  if (call.lse.present()) {
    task.lse = reinterpret_cast<float*>(call.lse.data) + sequence.q_batch * call.lse.strides[0] +
               first_head * call.lse.strides[1] + sequence.q_token * call.lse.strides[2];
    task.lse_head_stride = call.lse.strides[1];
    task.lse_token_stride = call.lse.strides[2];
  }
  task.k = kv_rows(call.k, call, sequence, batch, kv_head);
  task.v = kv_rows(call.v, call, sequence, batch, kv_head);
  task.seqlen_q = sequence.seqlen_q;
  task.seqlen_k = sequence.seqlen_k;
  task.scale =
      static_cast<float>(call.problem->softmax_scale * descale(call.descale_q, batch, kv_head) *
                         descale(call.descale_k, batch, kv_head));
  // Descales may be 0 or negative, which turns the order of the scores around.
  task.cooked = plan.params.cooked || !(task.scale > 0.0f && task.scale < 0x1p100f);
  task.v_scale = descale(call.descale_v, batch, kv_head);
  if (call.sink.present()) {
    task.sink = reinterpret_cast<const float*>(call.sink.data) + first_head * call.sink.strides[0];
    task.sink_stride = call.sink.strides[0];
  }
  task.alibi_slopes = head_pointer(call.alibi_slopes, batch, first_head);
  task.alibi_stride = call.alibi_slopes.strides[1];
  if (call.bias.present()) {
    const auto size = static_cast<int64_t>(dtype_size(call.bias.dtype));
    const int64_t* const strides = call.bias.strides;
    task.bias = bytes_of(call.bias.data) + (batch * strides[0] + first_head * strides[1]) * size;
    task.bias_head_stride = strides[1] * size;
    task.bias_token_stride = strides[2] * size;
    task.bias_key_stride = strides[3] * size;
  }
  return task;
}

void run_item(const ForwardPlan& plan, const ForwardCall& call, const WorkItem& item,
              float* partials, char* scratch) {
  int64_t range_begin[kMaxTokens], range_end[kMaxTokens];
  const Mask mask(*call.problem, call.sequence(item.batch));
  const int64_t first_token = item.row_begin / plan.params.qheads_per_kvhead;
  const int64_t last_token = (item.row_end - 1) / plan.params.qheads_per_kvhead;
  for (int64_t i = first_token; i <= last_token; ++i) {
    const KeyRange keys = mask.keys(i);
    range_begin[i - first_token] = keys.begin;
    range_end[i - first_token] = keys.end;
  }
  ForwardTask tasks[kMaxItemHeads];
  for (int64_t h = 0; h < item.num_heads; ++h) {
    ForwardTask& task = tasks[h];
    task = make_task(plan, call, item.batch, item.kv_head + h);
    task.row_begin = item.row_begin;
    task.row_end = item.row_end;
    task.key_begin = item.key_begin;
    task.key_end = item.key_end;
    if (item.partial >= 0) {
      task.o_partial = partials + item.partial + h * item.partial_head;
      task.lse_partial = partials + item.partial_lse + h * item.partial_head;
    }
    task.range_begin = range_begin;
    task.range_end = range_end;
  }
  plan.family->forward(plan.params, tasks, item.num_heads, scratch);
}

void run_merge(const ForwardPlan& plan, const ForwardCall& call, const MergeItem& merge,
               const float* partials) {
  const ForwardTask task = make_task(plan, call, merge.batch, merge.kv_head);
  const int64_t head_dim_v = plan.params.head_dim_v;
  const int64_t rows = merge.row_end - merge.row_begin;
  CombineRow row{};
  row.partial_dtype = TEGULA_F32;
  row.o_dtype = plan.params.o_dtype;
  row.num_splits = merge.num_splits;
  row.head_dim_v = head_dim_v;
  row.o_split_stride = rows * head_dim_v * 4;
  row.lse_split_stride = rows;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = (merge.row_begin + r) / plan.params.qheads_per_kvhead;
    const int64_t head = merge.row_begin + r - token * plan.params.qheads_per_kvhead;
    row.o_partial = reinterpret_cast<const char*>(partials + merge.partial + r * head_dim_v);
    row.lse_partial = partials + merge.partial_lse + r;
    row.sink = task.sink != nullptr ? task.sink + head * task.sink_stride : nullptr;
    row.o = task.o + token * task.o_token_stride + head * task.o_head_stride;
    row.lse = task.lse != nullptr
                  ? task.lse + token * task.lse_token_stride + head * task.lse_head_stride
                  : nullptr;
    plan.family->combine(row);
  }
}

// One schedule a thread keeps its memory between calls. A call takes it away while it runs: an
// executor may let the same thread begin another call in the meantime.
struct SpareSchedule {
  Schedule schedule;
  ~SpareSchedule();
};
thread_local SpareSchedule spare;
// Not a part of it: exit handlers and static destructors may call when the thread's objects are
// gone, and find out by this.
constinit thread_local bool spare_is_gone = false;
SpareSchedule::~SpareSchedule() {
  spare_is_gone = true;
}

Schedule take_schedule() {
  return spare_is_gone ? Schedule{} : std::exchange(spare.schedule, {});
}
void keep_schedule(Schedule&& schedule) {
  if (!spare_is_gone) spare.schedule = std::move(schedule);
}

}  // namespace

Status forward(const ForwardPlan& plan, const ForwardCall& call, const Execution& execution) try {
  Schedule schedule = take_schedule();
  make_schedule(plan, call, schedule);

  char* scratch = static_cast<char*>(execution.workspace);
  const ScratchLease lease(scratch == nullptr ? static_cast<int64_t>(plan.scratch_bytes) : 0);
  if (scratch == nullptr) scratch = static_cast<char*>(lease.data());
  if (scratch == nullptr) {
    keep_schedule(std::move(schedule));
    return fail(TEGULA_OUT_OF_MEMORY, "workspace: %zu bytes of scratch could not be allocated",
                plan.scratch_bytes);
  }
  float* const partials =
      reinterpret_cast<float*>(scratch + plan.worker_bytes * static_cast<size_t>(plan.num_workers));

  for (int32_t worker = 0; plan.params.use_tiles && worker < plan.num_workers; ++worker) {
    new (scratch + plan.worker_bytes * static_cast<size_t>(worker) + plan.params.tiles.packed)
        PackedBlock{-1, 0, 0, 0};
  }
  run_tasks(execution, plan.num_workers, static_cast<int64_t>(schedule.items.size()),
            [&](int64_t task, int32_t worker) {
              run_item(plan, call, schedule.items[static_cast<size_t>(task)], partials,
                       scratch + plan.worker_bytes * static_cast<size_t>(worker));
            });
  if (!schedule.merges.empty()) {
    run_tasks(execution, plan.num_workers, static_cast<int64_t>(schedule.merges.size()),
              [&](int64_t task, int32_t) {
                run_merge(plan, call, schedule.merges[static_cast<size_t>(task)], partials);
              });
  }
  keep_schedule(std::move(schedule));
  return {};
} catch (const std::bad_alloc&) {
  return fail(TEGULA_OUT_OF_MEMORY, "the schedule of batch %lld could not be allocated",
              static_cast<long long>(call.batch));
}

}  // namespace tegula::cpu
