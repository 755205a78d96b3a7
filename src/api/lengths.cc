// SPDX-License-Identifier: Apache-2.0
#include "src/api/lengths.hpp"

#include <algorithm>
#include <cinttypes>

#include "src/core/integer.hpp"
#include "src/core/mask.hpp"

namespace tegula::api {

Status check_offsets(const char* name, const IndexView& offsets, int64_t batch,
                     const char* tensor_name, const char* what, int64_t total) {
  int64_t last = offsets.at(0);
  if (last != 0)
    return fail(TEGULA_INVALID_ARGUMENT, "%s: entry 0 is %" PRId64 ", not 0", name, last);
  for (int64_t b = 1; b <= batch; ++b) {
    const int64_t next = offsets.at(b);
    if (next < last) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "%s: entry %" PRId64 " is %" PRId64 ", less than %" PRId64 " before it", name, b,
                  next, last);
    }
    last = next;
  }
  if (last > total) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "%s: entry %" PRId64 " is %" PRId64 ", more than %s: %s %" PRId64, name, batch,
                last, tensor_name, what, total);
  }
  return {};
}

Status check_page_row(const PageTable& pages, int64_t batch_index, int64_t total_pages,
                      int64_t& row_pages) {
  if (!pages.indptr.present()) {
    row_pages = total_pages;
    return {};
  }
  const int64_t begin = pages.indptr.at(batch_index), end = pages.indptr.at(batch_index + 1);
  if (begin < 0 || end < begin) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "page_indptr: entries %" PRId64 " and %" PRId64 " of sequence %" PRId64 " decrease",
                begin, end, batch_index);
  }
  if (end > total_pages) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "page_indptr: entry %" PRId64 " is %" PRId64
                ", more than page_indices: shape[0] %" PRId64,
                batch_index + 1, end, total_pages);
  }
  row_pages = end - begin;
  return {};
}

Status check_page_ids(const PageTable& pages, int64_t batch_index, int64_t begin, int64_t end,
                      int64_t num_pages) {
  const bool table = pages.table.present();
  const IndexView& entries = table ? pages.table : pages.indices;
  const int64_t stride = entries.strides[table ? 1 : 0];
  const int64_t row =
      table ? batch_index * entries.strides[0] : pages.indptr.at(batch_index) * stride;
  const int32_t* ids = reinterpret_cast<const int32_t*>(entries.data) + row;
  for (int64_t n = begin; n < end; ++n) {
    const int64_t id = ids[n * stride];
    if (id < 0 || id >= num_pages) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "%s: page %" PRId64 " of sequence %" PRId64 " is %" PRId64
                  ", not within 0 and num_pages %" PRId64 " - 1",
                  table ? "page_table" : "page_indices", n, batch_index, id, num_pages);
    }
  }
  return {};
}

namespace {

Status check_query_length(const ForwardCall& call, int64_t b, const Sequence& sequence,
                          const tegula_tensor* bias) {
  const int64_t slot = call.cu_seqlens_q.present()
                           ? call.cu_seqlens_q.at(b + 1) - call.cu_seqlens_q.at(b)
                           : call.seqlen_q;
  const int64_t length = sequence.seqlen_q;
  if (length < 0 || length > slot) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "seqused_q: %" PRId64 " of sequence %" PRId64
                " is not within 0 and seqlen_q %" PRId64,
                length, b, slot);
  }
  if (length > call.problem->max_seqlen_q) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "max_seqlen_q: %" PRId64 " is less than %" PRId64
                ", the length of sequence %" PRId64,
                call.problem->max_seqlen_q, length, b);
  }
  if (bias != nullptr && length > bias->shape[2]) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "bias: shape[2] %" PRId64 " is less than %" PRId64
                ", seqlen_q of sequence %" PRId64,
                bias->shape[2], length, b);
  }
  return {};
}

Status check_key_length(const ForwardCall& call, int64_t b, int64_t capacity,
                        const Sequence& sequence, const tegula_tensor* bias) {
  const int64_t length = sequence.seqlen_k;
  if (call.seqused_k.present()) {
    const int64_t used = call.seqused_k.at(b);
    if (used < 0) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "seqused_k: %" PRId64 " of sequence %" PRId64 " is less than 0", used, b);
    }
    if (length > capacity) {
      if (length == used) {
        return fail(TEGULA_INVALID_ARGUMENT,
                    "seqused_k: %" PRId64 " of sequence %" PRId64
                    " is more than its capacity %" PRId64,
                    used, b, capacity);
      }
      return fail(TEGULA_INVALID_ARGUMENT,
                  "seqused_k: %" PRId64 " of sequence %" PRId64 " and %" PRId64
                  " new tokens are more than its capacity %" PRId64,
                  used, b, length - used, capacity);
    }
  }
  if (length > call.problem->max_seqlen_k) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "max_seqlen_k: %" PRId64 " is less than %" PRId64
                ", the length of sequence %" PRId64,
                call.problem->max_seqlen_k, length, b);
  }
  if (bias != nullptr && length > bias->shape[3]) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "bias: shape[3] %" PRId64 " is less than %" PRId64
                ", seqlen_k of sequence %" PRId64,
                bias->shape[3], length, b);
  }
  if (sequence.leftpad < 0 || sequence.leftpad > capacity) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "leftpad_k: %" PRId64 " of sequence %" PRId64
                " is not within 0 and its capacity %" PRId64,
                sequence.leftpad, b, capacity);
  }
  return {};
}

}  // namespace

Status check_visible_offsets(const tegula_problem& here, const ForwardCall& call) {
  if (call.cu_seqlens_q.present()) {
    TEGULA_RETURN_IF_ERROR(
        check_offsets("cu_seqlens_q", call.cu_seqlens_q, here.batch, "q", "total_q", here.total_q));
  }
  if (call.cu_seqlens_k.present()) {
    TEGULA_RETURN_IF_ERROR(
        check_offsets("cu_seqlens_k", call.cu_seqlens_k, here.batch, "k", "total_k", here.total_k));
  }
  if (call.cu_seqlens_new.present()) {
    TEGULA_RETURN_IF_ERROR(check_offsets("cu_seqlens_new", call.cu_seqlens_new, here.batch,
                                         "the indices", "largest", INT32_MAX));
  }
  const int64_t bound = here.layout_k == TEGULA_RAGGED ? here.total_k : here.seqlen_k;
  if (call.seqlen_new > bound) {  // also keeps the sums below within 64 bits
    return fail(TEGULA_INVALID_ARGUMENT,
                "seqlen_new: %" PRId64 " is more than the capacity %" PRId64, call.seqlen_new,
                bound);
  }
  return {};
}

Status check_lengths(const tegula_problem& here, const tegula_tensor* bias,
                     const ForwardCall& call) {
  TEGULA_RETURN_IF_ERROR(check_visible_offsets(here, call));
  const bool paged = here.layout_k == TEGULA_PAGED;
  const bool ids_seen = call.pages.table.present() || call.pages.indices.present();
  const int64_t total_pages = paged ? here.seqlen_k / here.page_size : 0;
  // Without an index tensor all sequences are alike, and no memory of the caller's bounds the
  // batch.
  const bool alike = !call.cu_seqlens_q.present() && !call.cu_seqlens_k.present() &&
                     !call.seqused_q.present() && !call.seqused_k.present() &&
                     !call.leftpad_k.present();
  const int64_t batch = alike ? std::min<int64_t>(here.batch, 1) : here.batch;
  for (int64_t b = 0; b < batch; ++b) {
    const Sequence sequence = call.sequence(b);
    TEGULA_RETURN_IF_ERROR(check_query_length(call, b, sequence, bias));
    int64_t capacity = here.seqlen_k;
    if (here.layout_k == TEGULA_RAGGED) {
      capacity = call.cu_seqlens_k.at(b + 1) - call.cu_seqlens_k.at(b);
    } else if (paged) {
      int64_t row_pages = 0;
      TEGULA_RETURN_IF_ERROR(check_page_row(call.pages, b, total_pages, row_pages));
      capacity = row_pages * here.page_size;
    }
    TEGULA_RETURN_IF_ERROR(check_key_length(call, b, capacity, sequence, bias));
    if (!ids_seen || sequence.seqlen_q == 0) continue;
    // Entries that no query row sees may be anything (contract.md, 10).
    const KeyRange seen = Mask(*call.problem, sequence).keys(0, sequence.seqlen_q);
    if (seen.empty()) continue;
    TEGULA_RETURN_IF_ERROR(check_page_ids(call.pages, b, seen.begin / here.page_size,
                                          ceil_div(seen.end, here.page_size), here.num_pages));
  }
  return {};
}

}  // namespace tegula::api
