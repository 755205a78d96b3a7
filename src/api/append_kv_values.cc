// SPDX-License-Identifier: Apache-2.0
// Index values of append_kv. All are checked before the first row is written, so that an error
// leaves the cache as it was.
#include <cinttypes>
#include <cmath>

#include "src/api/append_kv.hpp"
#include "src/api/check.hpp"
#include "src/api/lengths.hpp"
#include "src/core/float_environment.hpp"

namespace tegula::api {
namespace {

Status check_scale_values(const char* name, const StridedView& scale, const tegula_tensor* tensor,
                          const AppendSizes& s) {
  if (tensor == nullptr || !has_elements(*tensor)) return {};
  const FloatEnvironment environment;  // a denormal descale is more than 0 whatever the caller set
  // A broadcast value is looked at once.
  const int64_t batch = scale.strides[0] != 0 ? s.batch : 1;
  const int64_t heads = scale.strides[1] != 0 ? s.num_heads_kv : 1;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const float value = scale.f32(b, h);
      if (!std::isfinite(value) || value <= 0) {
        return fail(TEGULA_INVALID_ARGUMENT,
                    "%s: %g of sequence %" PRId64 ", head %" PRId64
                    " is not finite and more than 0",
                    name, double{value}, b, h);
      }
    }
  }
  return {};
}

Status check_position(const tegula_append_kv_args& a, const AppendCall& call, int64_t b,
                      int64_t row, int64_t position) {
  const int64_t limit = a.cos->shape[0];
  if (position >= 0 && position < limit) return {};
  if (call.positions.present()) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "positions: entry %" PRId64 " is %" PRId64
                ", not within 0 and cos: shape[0] %" PRId64 " - 1",
                row, position, limit);
  }
  return fail(TEGULA_INVALID_ARGUMENT,
              "cos: shape[0] %" PRId64 " is not more than %" PRId64
              ", a position of sequence %" PRId64,
              limit, position, b);
}

// Rows [begin, begin + count) of sequence b.
Status check_rows(const tegula_append_kv_args& a, const AppendSizes& s, const AppendCall& call,
                  int64_t b, int64_t begin, int64_t count) {
  const int64_t used = call.seqused_k.present() ? call.seqused_k.at(b) : 0;
  if (used < 0)
    return fail(TEGULA_INVALID_ARGUMENT,
                "seqused_k: %" PRId64 " of sequence %" PRId64 " is less than 0", used, b);
  if (count == 0) return {};
  if (call.slot_mapping.present()) {
    const int64_t slots = s.cache_outer * s.cache_inner;  // check_append_values() tried the product
    for (int64_t row = begin; row < begin + count; ++row) {
      if (const int64_t slot = call.slot_mapping.at(row); slot >= slots) {
        return fail(TEGULA_INVALID_ARGUMENT,
                    "slot_mapping: entry %" PRId64 " is %" PRId64
                    ", not less than num_pages %" PRId64 " x page_size %" PRId64,
                    row, slot, s.cache_outer, s.cache_inner);
      }
    }
  } else {
    int64_t capacity = s.cache_inner;
    if (s.paged) {
      const tegula_index& pages = a.page_table != nullptr ? *a.page_table : *a.page_indices;
      int64_t row_pages;
      TEGULA_RETURN_IF_ERROR(
          check_page_row(call.pages, b, pages.tensor.shape[pages.tensor.ndim - 1], row_pages));
      if (__builtin_mul_overflow(row_pages, s.cache_inner, &capacity)) capacity = INT64_MAX;
    }
    if (count > capacity || used > capacity - count) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "seqused_k: %" PRId64 " of sequence %" PRId64 " and %" PRId64
                  " new tokens are more than its capacity %" PRId64,
                  used, b, count, capacity);
    }
    if (s.paged) {
      TEGULA_RETURN_IF_ERROR(check_page_ids(call.pages, b, used / s.cache_inner,
                                            (used + count - 1) / s.cache_inner + 1, s.cache_outer));
    }
  }
  if (a.cos == nullptr) return {};
  if (!call.positions.present() && !call.slot_mapping.present()) {
    return check_position(a, call, b, begin, used + count - 1);  // the largest
  }
  for (int64_t row = begin; row < begin + count; ++row) {
    // A skipped row's position is used for q alone.
    if (a.q == nullptr && call.slot_mapping.present() && call.slot_mapping.at(row) < 0) continue;
    const int64_t position = call.positions.present() ? call.positions.at(row) : used + row - begin;
    TEGULA_RETURN_IF_ERROR(check_position(a, call, b, row, position));
  }
  return {};
}

}  // namespace

Status check_append_values(const tegula_append_kv_args& a, const AppendSizes& s,
                           const AppendCall& call) {
  TEGULA_RETURN_IF_ERROR(check_scale_values("descale_k", call.descale_k, a.descale_k, s));
  TEGULA_RETURN_IF_ERROR(check_scale_values("descale_v", call.descale_v, a.descale_v, s));
  int64_t slots;
  if (__builtin_mul_overflow(s.cache_outer, s.cache_inner, &slots)) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "k_cache: num_pages %" PRId64 " of page_size %" PRId64 " is beyond 64-bit offsets",
                s.cache_outer, s.cache_inner);
  }
  if (call.cu_seqlens_new.present()) {
    TEGULA_RETURN_IF_ERROR(check_offsets("cu_seqlens_new", call.cu_seqlens_new, s.batch, "k_new",
                                         "total_new", s.total_new));
  }
  // Without rows and without lengths nothing bounds the batch, and nothing is to be checked.
  const int64_t batch = s.total_new == 0 && !call.seqused_k.present() ? 0 : s.batch;
  for (int64_t b = 0; b < batch; ++b) {
    TEGULA_RETURN_IF_ERROR(check_rows(a, s, call, b, call.new_begin(b), call.new_count(b)));
  }
  return {};
}

}  // namespace tegula::api
