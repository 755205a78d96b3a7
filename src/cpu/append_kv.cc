// SPDX-License-Identifier: Apache-2.0
// Appending to a cache: one task for a few rows.
#include <algorithm>

#include "src/core/dtype.hpp"
#include "src/core/integer.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/rows.hpp"
#include "src/cpu/tasks.hpp"

namespace tegula::cpu {
namespace {

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

// One token of one sequence: every head of k, v and q.
void append_token(const KernelFamily& family, const AppendCall& call, int64_t b, int64_t t) {
  const bool ragged = call.cu_seqlens_new.present();
  const int64_t index = call.new_begin(b) + t;  // among all new tokens
  const int64_t from_batch = ragged ? 0 : b;
  const int64_t from_token = ragged ? index : t;
  const Place place = place_of(call, b, t);

  AppendRow row{};
  if (call.rotary_dim > 0) {
    const int64_t position =
        call.positions.present() ? call.positions.at(index) : call.seqused_k.at(b) + t;
    const auto size = static_cast<int64_t>(dtype_size(call.cos.dtype));
    row.rotary_dtype = call.cos.dtype;
    row.interleaved = call.interleaved;
    row.cos = reinterpret_cast<const char*>(call.cos.data) + position * call.cos.strides[0] * size;
    row.sin = reinterpret_cast<const char*>(call.sin.data) + position * call.sin.strides[0] * size;
  }
  const auto write = [&](const TokenView& from, const TokenView& to, int64_t to_batch,
                         int64_t to_token, int64_t head, int64_t dim, int64_t rotary_dim,
                         const StridedView& descale) {
    row.from_dtype = from.dtype;
    row.to_dtype = to.dtype;
    row.dim = dim;
    row.rotary_dim = rotary_dim;
    row.from = reinterpret_cast<const char*>(row_at(from, from_batch, from_token, head));
    row.to = reinterpret_cast<char*>(const_cast<std::byte*>(row_at(to, to_batch, to_token, head)));
    row.descale = descale.present() ? descale.f32(b, head) : 1.0f;
    family.append(row);
  };
  if (place.batch >= 0) {
    for (int64_t head = 0; head < call.num_heads_kv; ++head) {
      write(call.k_new, call.k_cache, place.batch, place.token, head, call.head_dim,
            call.rotary_dim, call.descale_k);
      write(call.v_new, call.v_cache, place.batch, place.token, head, call.head_dim_v, 0,
            call.descale_v);
    }
  }
  if (call.q.present()) {
    for (int64_t head = 0; head < call.num_heads_q; ++head) {
      write(call.q, call.q_out, from_batch, from_token, head, call.head_dim, call.rotary_dim,
            StridedView{});
    }
  }
}

}  // namespace

Status append_kv(const KernelFamily& family, const AppendCall& call, const Execution& execution) {
  int64_t longest = 0;
  for (int64_t b = 0; b < call.batch; ++b) longest = std::max(longest, call.new_count(b));
  if (longest == 0) return {};
  const int64_t token_bytes = static_cast<int64_t>(dtype_size(call.k_new.dtype)) *
                                  call.num_heads_kv * (call.head_dim + call.head_dim_v) +
                              (call.q.present() ? static_cast<int64_t>(dtype_size(call.q.dtype)) *
                                                      call.num_heads_q * call.head_dim
                                                : 0);
  // A task is a run of tokens of one sequence, or a run of sequences of one or few new tokens.
  const int64_t tokens =
      std::clamp<int64_t>(kTaskBytes / std::max<int64_t>(1, token_bytes), 1, longest);
  const int64_t runs = ceil_div(longest, tokens);
  const int64_t sequences =
      std::max<int64_t>(1, kTaskBytes / std::max<int64_t>(1, token_bytes * tokens));
  const int64_t groups = ceil_div(call.batch, sequences);
  run_tasks(execution, num_workers_of(execution), groups * runs, [&](int64_t task, int32_t) {
    const int64_t run = task % runs;
    const int64_t first = task / runs * sequences;
    for (int64_t b = first; b < std::min(first + sequences, call.batch); ++b) {
      const int64_t end = std::min((run + 1) * tokens, call.new_count(b));
      for (int64_t t = run * tokens; t < end; ++t) append_token(family, call, b, t);
    }
  });
  return {};
}

}  // namespace tegula::cpu
