// SPDX-License-Identifier: Apache-2.0
// Appending to a cache: one task for a few rows.
#include <algorithm>
#include <cstring>

#include "src/core/dtype.hpp"
#include "src/core/integer.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/rows.hpp"
#include "src/cpu/tasks.hpp"

namespace tegula::cpu {
namespace {

constexpr int64_t kTasksOfWorker = 4;

struct Place {
  int64_t batch;  // or page
  int64_t token;
};

// Where row t of sequence b goes; batch < 0: nowhere.
Place place_of(const AppendCall& call, int64_t b, int64_t t) {
  if (call.slot_mapping.present()) {
    const int64_t slot = call.slot_mapping.at(call.new_begin(b) + t);
    return slot < 0 ? Place{-1, 0} : Place{slot / call.page_size, slot % call.page_size};
  }
  const int64_t position = call.seqused_k.at(b) + t;
  if (!call.paged) return {b, position};
  return {call.pages.page(b, position / call.page_size), position % call.page_size};
}

// Tokens of one sequence that go to neighbouring places.
struct Run {
  int64_t batch;  // sequence
  int64_t first, count;
  Place place;  // of the first
};

// The run from token t on, below `end` and about kRunBytes long: k and v of a few KiB in turn are
// copied faster than one after the other (fp32, 4 KiB a row, on Zen 4: 213 against 270 us).
constexpr int64_t kRunBytes = 4 << 10;
Run run_from(const AppendCall& call, int64_t b, int64_t t, int64_t end) {
  const int64_t row_bytes = std::max<int64_t>(
      1, static_cast<int64_t>(dtype_size(call.k_cache.dtype)) * call.num_heads_kv * call.head_dim);
  end = std::min(end, t + std::max<int64_t>(1, kRunBytes / row_bytes));
  Run run{b, t, 1, place_of(call, b, t)};
  while (t + run.count < end) {
    const Place next = place_of(call, b, t + run.count);
    if (next.batch != run.place.batch || next.token != run.place.token + run.count) break;
    ++run.count;
  }
  return run;
}

// Rows that keep their bits. What lies side by side on both sides, heads and then tokens, is one
// copy.
void copy_rows(const TokenView& from, int64_t from_batch, int64_t from_token, const TokenView& to,
               const Place& place, int64_t tokens, int64_t heads, int64_t dim) {
  const auto beside = [](int64_t count, int64_t from_stride, int64_t to_stride, int64_t length) {
    return count == 1 || (from_stride == length && to_stride == length);
  };
  int64_t length = dim;
  if (beside(heads, from.head_stride, to.head_stride, length)) {
    length *= heads;
    heads = 1;
    if (beside(tokens, from.token_stride, to.token_stride, length)) {
      length *= tokens;
      tokens = 1;
    }
  }
  const size_t bytes = static_cast<size_t>(length) * dtype_size(from.dtype);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t head = 0; head < heads; ++head) {
      std::memmove(const_cast<std::byte*>(row_at(to, place.batch, place.token + t, head)),
                   row_at(from, from_batch, from_token + t, head), bytes);
    }
  }
}

// A run's rows of k, v or q.
class Rows {
 public:
  Rows(const KernelFamily& family, const AppendCall& call, const Run& run)
      : family_(family), call_(call), run_(run) {
    const bool ragged = call.cu_seqlens_new.present();
    index_ = call.new_begin(run.batch) + run.first;
    from_ = {ragged ? 0 : run.batch, ragged ? index_ : run.first};
  }

  // Where they come from.
  const Place& from() const { return from_; }

  void write(const TokenView& from, const TokenView& to, const Place& place, int64_t heads,
             int64_t dim, int64_t rotary_dim, const StridedView& descale) const {
    if (rotary_dim == 0 && from.dtype == to.dtype)
      return copy_rows(from, from_.batch, from_.token, to, place, run_.count, heads, dim);
    AppendRow row{};
    row.from_dtype = from.dtype;
    row.to_dtype = to.dtype;
    row.dim = dim;
    row.rotary_dim = rotary_dim;
    for (int64_t t = 0; t < run_.count; ++t) {
      if (rotary_dim > 0) rotate(row, t);
      for (int64_t head = 0; head < heads; ++head) {
        row.from = reinterpret_cast<const char*>(row_at(from, from_.batch, from_.token + t, head));
        row.to = reinterpret_cast<char*>(
            const_cast<std::byte*>(row_at(to, place.batch, place.token + t, head)));
        row.descale = descale.present() ? descale.f32(run_.batch, head) : 1.0f;
        family_.append(row);
      }
    }
  }

 private:
  void rotate(AppendRow& row, int64_t t) const {
    const int64_t position = call_.positions.present()
                                 ? call_.positions.at(index_ + t)
                                 : call_.seqused_k.at(run_.batch) + run_.first + t;
    const auto size = static_cast<int64_t>(dtype_size(call_.cos.dtype));
    row.rotary_dtype = call_.cos.dtype;
    row.interleaved = call_.interleaved;
    row.cos =
        reinterpret_cast<const char*>(call_.cos.data) + position * call_.cos.strides[0] * size;
    row.sin =
        reinterpret_cast<const char*>(call_.sin.data) + position * call_.sin.strides[0] * size;
  }

  const KernelFamily& family_;
  const AppendCall& call_;
  const Run& run_;
  int64_t index_;  // of the run's first token among all new ones
  Place from_;
};

// Every head of k, v and q.
void append_run(const KernelFamily& family, const AppendCall& call, const Run& run) {
  const Rows rows(family, call, run);
  if (run.place.batch >= 0) {
    rows.write(call.k_new, call.k_cache, run.place, call.num_heads_kv, call.head_dim,
               call.rotary_dim, call.descale_k);
    rows.write(call.v_new, call.v_cache, run.place, call.num_heads_kv, call.head_dim_v, 0,
               call.descale_v);
  }
  if (call.q.present()) {
    rows.write(call.q, call.q_out, rows.from(), call.num_heads_q, call.head_dim, call.rotary_dim,
               StridedView{});
  }
}

}  // namespace

Status append_kv(const KernelFamily& family, const AppendCall& call, const Execution& execution) {
  int64_t longest = 0, total = 0;
  for (int64_t b = 0; b < call.batch; ++b) {
    longest = std::max(longest, call.new_count(b));
    total += call.new_count(b);
  }
  if (longest == 0) return {};
  const int64_t token_bytes =
      std::max<int64_t>(1, static_cast<int64_t>(dtype_size(call.k_new.dtype)) * call.num_heads_kv *
                                   (call.head_dim + call.head_dim_v) +
                               (call.q.present() ? static_cast<int64_t>(dtype_size(call.q.dtype)) *
                                                       call.num_heads_q * call.head_dim
                                                 : 0));
  // A task is a run of tokens of one sequence, or a run of sequences of one or few new tokens. Long
  // ones: threads that write next to each other slow each other down (fp32, 8 MiB on two Zen 4
  // cores: tasks of 64 KiB 344 us, of 512 KiB 248, a half each 213).
  const int32_t workers = num_workers_of(execution);
  const int64_t task_bytes =
      std::max(kTaskBytes, total * token_bytes / (int64_t{workers} * kTasksOfWorker));
  const int64_t tokens = std::clamp<int64_t>(task_bytes / token_bytes, 1, longest);
  const int64_t runs = ceil_div(longest, tokens);
  const int64_t sequences = std::max<int64_t>(1, task_bytes / (token_bytes * tokens));
  const int64_t groups = ceil_div(call.batch, sequences);
  run_tasks(execution, workers, groups * runs, [&](int64_t task, int32_t) {
    const int64_t run = task % runs;
    const int64_t first = task / runs * sequences;
    for (int64_t b = first; b < std::min(first + sequences, call.batch); ++b) {
      const int64_t end = std::min((run + 1) * tokens, call.new_count(b));
      for (int64_t t = run * tokens; t < end;) {
        const Run next = run_from(call, b, t, end);
        append_run(family, call, next);
        t += next.count;
      }
    }
  });
  return {};
}

}  // namespace tegula::cpu
