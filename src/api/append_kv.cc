// SPDX-License-Identifier: Apache-2.0
// tegula_append_kv's arguments (contract.md, 5). On the CPU everything is checked before the first
// row is written.
#include "src/api/append_kv.hpp"
#include "src/api/api.hpp"
#include "src/api/check.hpp"
#include "src/core/limits.hpp"

namespace tegula::api {
namespace {

template <class F>
Status for_each_tensor(const tegula_append_kv_args& a, F&& f) {
  const struct {
    const char* name;
    const tegula_tensor* tensor;
  } tensors[] = {{"k_new", a.k_new},
                 {"v_new", a.v_new},
                 {"k_cache", a.k_cache},
                 {"v_cache", a.v_cache},
                 {"cos", a.cos},
                 {"sin", a.sin},
                 {"q", a.q},
                 {"q_out", a.q_out},
                 {"descale_k", a.descale_k},
                 {"descale_v", a.descale_v}};
  const struct {
    const char* name;
    const tegula_index* index;
  } indices[] = {{"cu_seqlens_new", a.cu_seqlens_new},
                 {"seqused_k", a.seqused_k},
                 {"page_table", a.page_table},
                 {"page_indices", a.page_indices},
                 {"page_indptr", a.page_indptr},
                 {"slot_mapping", a.slot_mapping},
                 {"positions", a.positions}};
  for (const auto& entry : tensors) {
    if (entry.tensor != nullptr) TEGULA_RETURN_IF_ERROR(f(entry.name, *entry.tensor));
  }
  for (const auto& entry : indices) {
    if (entry.index != nullptr) TEGULA_RETURN_IF_ERROR(f(entry.name, entry.index->tensor));
  }
  return {};
}

// Which arguments go together.
Status check_presence(const tegula_append_kv_args& a) {
  const struct {
    const char* name;
    const tegula_tensor* tensor;
  } required[] = {
      {"k_new", a.k_new}, {"v_new", a.v_new}, {"k_cache", a.k_cache}, {"v_cache", a.v_cache}};
  for (const auto& entry : required) {
    if (entry.tensor == nullptr) return fail(TEGULA_INVALID_ARGUMENT, "%s: is NULL", entry.name);
  }
  const struct {
    const char* name;
    bool present;
    const char* other;
    bool needed;
  } pairs[] = {{"cos", a.cos != nullptr, "sin", a.sin != nullptr},
               {"sin", a.sin != nullptr, "cos", a.cos != nullptr},
               {"page_indices", a.page_indices != nullptr, "page_indptr", a.page_indptr != nullptr},
               {"page_indptr", a.page_indptr != nullptr, "page_indices", a.page_indices != nullptr},
               {"q", a.q != nullptr, "q_out", a.q_out != nullptr},
               {"q_out", a.q_out != nullptr, "q", a.q != nullptr},
               {"q", a.q != nullptr, "cos", a.cos != nullptr},
               {"positions", a.positions != nullptr, "cos", a.cos != nullptr}};
  for (const auto& pair : pairs) {
    if (pair.present && !pair.needed) {
      return fail(TEGULA_INVALID_ARGUMENT, "%s: is NULL, but %s is present", pair.other, pair.name);
    }
  }
  if (a.page_table != nullptr && a.page_indices != nullptr) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "page_indices: present beside page_table; at most one may be given");
  }
  if (a.slot_mapping != nullptr && (a.page_table != nullptr || a.page_indices != nullptr)) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "slot_mapping: present beside %s; at most one may be given",
                a.page_table != nullptr ? "page_table" : "page_indices");
  }
  if (a.seqused_k == nullptr &&
      (a.slot_mapping == nullptr || (a.cos != nullptr && a.positions == nullptr))) {
    return fail(
        TEGULA_INVALID_ARGUMENT, "seqused_k: is NULL, but %s",
        a.slot_mapping == nullptr ? "slot_mapping is too" : "cos is present and positions is not");
  }
  if (a.rotary_style != TEGULA_ROTARY_HALF_SPLIT && a.rotary_style != TEGULA_ROTARY_INTERLEAVED) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "rotary_style: %" PRId32 " is not 0 (half_split) or 1 (interleaved)",
                a.rotary_style);
  }
  return {};
}

Status check_types(const tegula_append_kv_args& a, AppendSizes& s) {
  tegula_dtype v_new, v_cache;
  TEGULA_RETURN_IF_ERROR(check_tensor("k_new", *a.k_new, LastStride::kOne, s.new_dtype));
  TEGULA_RETURN_IF_ERROR(check_tensor("v_new", *a.v_new, LastStride::kOne, v_new));
  TEGULA_RETURN_IF_ERROR(check_tensor("k_cache", *a.k_cache, LastStride::kOne, s.cache_dtype));
  TEGULA_RETURN_IF_ERROR(check_tensor("v_cache", *a.v_cache, LastStride::kOne, v_cache));
  if (v_new != s.new_dtype) {
    return fail(TEGULA_UNSUPPORTED, "v_new: dtype %s differs from k_new: dtype %s",
                dtype_name(v_new), dtype_name(s.new_dtype));
  }
  if (v_cache != s.cache_dtype) {
    return fail(TEGULA_UNSUPPORTED, "v_cache: dtype %s differs from k_cache: dtype %s",
                dtype_name(v_cache), dtype_name(s.cache_dtype));
  }
  if (!is_float(s.new_dtype)) {
    return fail(TEGULA_WRONG_TYPE, "k_new: dtype %s is not one of f32, f16, bf16, e4m3, e5m2",
                dtype_name(s.new_dtype));
  }
  if (!is_float(s.cache_dtype)) {
    return fail(TEGULA_WRONG_TYPE, "k_cache: dtype %s is not one of f32, f16, bf16, e4m3, e5m2",
                dtype_name(s.cache_dtype));
  }
  if (is_8bit_float(s.new_dtype) && s.new_dtype != s.cache_dtype) {
    return fail(TEGULA_UNSUPPORTED, "k_new: dtype %s with k_cache: dtype %s is not supported",
                dtype_name(s.new_dtype), dtype_name(s.cache_dtype));
  }
  if (is_8bit_float(s.new_dtype) && a.cos != nullptr) {
    return fail(TEGULA_UNSUPPORTED, "cos: present, but k_new: dtype %s is not f32, f16 or bf16",
                dtype_name(s.new_dtype));
  }
  return {};
}

Status check_new_rows(const tegula_append_kv_args& a, AppendSizes& s) {
  const tegula_tensor& k = *a.k_new;
  const tegula_tensor& v = *a.v_new;
  if (k.ndim != 4 && k.ndim != 3) {
    return fail(TEGULA_INVALID_ARGUMENT, "k_new: rank %" PRId32 " is not 4 (dense) or 3 (ragged)",
                k.ndim);
  }
  s.ragged = k.ndim == 3;
  if (!s.ragged && a.cu_seqlens_new != nullptr) {
    return fail(TEGULA_INVALID_ARGUMENT, "cu_seqlens_new: present, but k_new: rank is 4 (dense)");
  }
  if (s.ragged && a.cu_seqlens_new == nullptr &&
      (a.slot_mapping == nullptr || a.seqused_k != nullptr)) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "cu_seqlens_new: is NULL, but k_new: rank is 3 (ragged) and %s",
                a.slot_mapping == nullptr ? "slot_mapping is NULL" : "seqused_k is present");
  }
  TEGULA_RETURN_IF_ERROR(check_equal("v_new", "rank", v.ndim, "k_new", "rank", k.ndim));
  if (s.ragged) {
    TEGULA_RETURN_IF_ERROR(
        check_equal("v_new", "total_new", v.shape[0], "k_new", "total_new", k.shape[0]));
    s.batch = 1;  // without cu_seqlens_new each row stands for itself
    s.seqlen_new = s.total_new = k.shape[0];
    if (a.cu_seqlens_new != nullptr) {
      TEGULA_RETURN_IF_ERROR(check_index("cu_seqlens_new", *a.cu_seqlens_new, 1));
      s.batch = a.cu_seqlens_new->tensor.shape[0] - 1;
      s.seqlen_new = 0;
      if (s.batch < 0) {
        return fail(TEGULA_INVALID_ARGUMENT,
                    "cu_seqlens_new: shape[0] 0 is less than 1 (batch + 1)");
      }
    }
  } else {
    TEGULA_RETURN_IF_ERROR(check_equal("v_new", "batch", v.shape[0], "k_new", "batch", k.shape[0]));
    TEGULA_RETURN_IF_ERROR(
        check_equal("v_new", "seqlen_new", v.shape[1], "k_new", "seqlen_new", k.shape[1]));
    s.batch = k.shape[0];
    s.seqlen_new = k.shape[1];
    if (__builtin_mul_overflow(s.batch, s.seqlen_new, &s.total_new)) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "k_new: batch %" PRId64 " of seqlen_new %" PRId64 " is beyond 64-bit offsets",
                  s.batch, s.seqlen_new);
    }
  }
  s.num_heads_kv = k.shape[k.ndim - 2];
  s.head_dim = k.shape[k.ndim - 1];
  s.head_dim_v = v.shape[v.ndim - 1];
  TEGULA_RETURN_IF_ERROR(check_equal("v_new", "num_heads_kv", v.shape[v.ndim - 2], "k_new",
                                     "num_heads_kv", s.num_heads_kv));
  if (s.num_heads_kv < 1) {
    return fail(TEGULA_INVALID_ARGUMENT, "k_new: num_heads_kv %" PRId64 " is less than 1",
                s.num_heads_kv);
  }
  const struct {
    const char *name, *what;
    int64_t value;
  } dims[] = {{"k_new", "head_dim", s.head_dim}, {"v_new", "head_dim_v", s.head_dim_v}};
  for (const auto& dim : dims) {
    if (dim.value < 1) {
      return fail(TEGULA_INVALID_ARGUMENT, "%s: %s %" PRId64 " is less than 1", dim.name, dim.what,
                  dim.value);
    }
    if (dim.value > kMaxHeadDim) {
      return fail(TEGULA_UNSUPPORTED, "%s: %s %" PRId64 " is more than the supported %" PRId64,
                  dim.name, dim.what, dim.value, kMaxHeadDim);
    }
  }
  return {};
}

// A [batch + 1] or [batch] index tensor.
Status check_per_sequence(const char* name, const tegula_index* index, int64_t extra,
                          const AppendSizes& s) {
  if (index == nullptr) return {};
  TEGULA_RETURN_IF_ERROR(check_index(name, *index, 1));
  return check_equal(name, extra == 0 ? "shape[0]" : "batch (shape[0] - 1)",
                     index->tensor.shape[0] - extra, "k_new", "batch", s.batch);
}

Status check_caches(const tegula_append_kv_args& a, AppendSizes& s) {
  const tegula_tensor& k = *a.k_cache;
  const tegula_tensor& v = *a.v_cache;
  TEGULA_RETURN_IF_ERROR(check_rank("k_cache", k, 4));
  TEGULA_RETURN_IF_ERROR(check_rank("v_cache", v, 4));
  s.paged = a.page_table != nullptr || a.page_indices != nullptr || a.slot_mapping != nullptr;
  const char* outer = s.paged ? "num_pages" : "batch";
  const char* inner = s.paged ? "page_size" : "seqlen_k";
  TEGULA_RETURN_IF_ERROR(check_equal("v_cache", outer, v.shape[0], "k_cache", outer, k.shape[0]));
  TEGULA_RETURN_IF_ERROR(check_equal("v_cache", inner, v.shape[1], "k_cache", inner, k.shape[1]));
  s.cache_outer = k.shape[0];
  s.cache_inner = k.shape[1];
  if (!s.paged)
    TEGULA_RETURN_IF_ERROR(
        check_equal("k_cache", "batch", s.cache_outer, "k_new", "batch", s.batch));
  if (s.paged && s.cache_inner < 1) {
    return fail(TEGULA_INVALID_ARGUMENT, "k_cache: page_size %" PRId64 " is less than 1",
                s.cache_inner);
  }
  TEGULA_RETURN_IF_ERROR(
      check_equal("k_cache", "num_heads_kv", k.shape[2], "k_new", "num_heads_kv", s.num_heads_kv));
  TEGULA_RETURN_IF_ERROR(
      check_equal("v_cache", "num_heads_kv", v.shape[2], "v_new", "num_heads_kv", s.num_heads_kv));
  TEGULA_RETURN_IF_ERROR(
      check_equal("k_cache", "head_dim", k.shape[3], "k_new", "head_dim", s.head_dim));
  TEGULA_RETURN_IF_ERROR(
      check_equal("v_cache", "head_dim_v", v.shape[3], "v_new", "head_dim_v", s.head_dim_v));
  TEGULA_RETURN_IF_ERROR(check_output("k_cache", k));
  TEGULA_RETURN_IF_ERROR(check_output("v_cache", v));

  TEGULA_RETURN_IF_ERROR(check_per_sequence("cu_seqlens_new", a.cu_seqlens_new, 1, s));
  TEGULA_RETURN_IF_ERROR(check_per_sequence("seqused_k", a.seqused_k, 0, s));
  TEGULA_RETURN_IF_ERROR(check_per_sequence("page_indptr", a.page_indptr, 1, s));
  if (a.page_table != nullptr) {
    TEGULA_RETURN_IF_ERROR(check_index("page_table", *a.page_table, 2));
    TEGULA_RETURN_IF_ERROR(check_equal("page_table", "shape[0]", a.page_table->tensor.shape[0],
                                       "k_new", "batch", s.batch));
  }
  if (a.page_indices != nullptr)
    TEGULA_RETURN_IF_ERROR(check_index("page_indices", *a.page_indices, 1));
  if (a.slot_mapping != nullptr) {
    TEGULA_RETURN_IF_ERROR(check_index("slot_mapping", *a.slot_mapping, 1, TEGULA_I64));
    TEGULA_RETURN_IF_ERROR(check_equal("slot_mapping", "shape[0]", a.slot_mapping->tensor.shape[0],
                                       "k_new", "total_new", s.total_new));
  }
  return {};
}

Status check_rotary(const tegula_append_kv_args& a, const AppendSizes& s) {
  if (a.cos == nullptr) return {};
  tegula_dtype cos_dtype, sin_dtype;
  TEGULA_RETURN_IF_ERROR(check_tensor("cos", *a.cos, LastStride::kOne, cos_dtype));
  TEGULA_RETURN_IF_ERROR(check_tensor("sin", *a.sin, LastStride::kOne, sin_dtype));
  if (cos_dtype != TEGULA_F32 && cos_dtype != s.new_dtype) {
    return fail(TEGULA_WRONG_TYPE, "cos: dtype %s is not f32 or k_new: dtype %s",
                dtype_name(cos_dtype), dtype_name(s.new_dtype));
  }
  if (sin_dtype != cos_dtype) {
    return fail(TEGULA_WRONG_TYPE, "sin: dtype %s differs from cos: dtype %s",
                dtype_name(sin_dtype), dtype_name(cos_dtype));
  }
  TEGULA_RETURN_IF_ERROR(check_rank("cos", *a.cos, 2));
  TEGULA_RETURN_IF_ERROR(check_rank("sin", *a.sin, 2));
  TEGULA_RETURN_IF_ERROR(
      check_equal("sin", "shape[0]", a.sin->shape[0], "cos", "shape[0]", a.cos->shape[0]));
  TEGULA_RETURN_IF_ERROR(
      check_equal("sin", "shape[1]", a.sin->shape[1], "cos", "shape[1]", a.cos->shape[1]));
  const int64_t pairs = a.cos->shape[1];
  if (pairs < 1 || pairs > s.head_dim / 2) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "cos: shape[1] %" PRId64
                " (rotary_dim / 2) is not within 1 and half of head_dim %" PRId64,
                pairs, s.head_dim);
  }
  if (a.positions != nullptr) {
    TEGULA_RETURN_IF_ERROR(check_index("positions", *a.positions, 1));
    TEGULA_RETURN_IF_ERROR(check_equal("positions", "shape[0]", a.positions->tensor.shape[0],
                                       "k_new", "total_new", s.total_new));
  }
  if (a.q == nullptr) return {};
  const struct {
    const char* name;
    const tegula_tensor* tensor;
  } queries[] = {{"q", a.q}, {"q_out", a.q_out}};
  for (const auto& entry : queries) {
    const tegula_tensor& tensor = *entry.tensor;
    TEGULA_RETURN_IF_ERROR(check_typed(entry.name, tensor, LastStride::kOne, s.new_dtype));
    TEGULA_RETURN_IF_ERROR(
        check_equal(entry.name, "rank", tensor.ndim, "k_new", "rank", a.k_new->ndim));
    for (int32_t i = 0; i < tensor.ndim - 2; ++i) {
      const char* what = s.ragged ? "total_new" : i == 0 ? "batch" : "seqlen_new";
      TEGULA_RETURN_IF_ERROR(
          check_equal(entry.name, what, tensor.shape[i], "k_new", what, a.k_new->shape[i]));
    }
    TEGULA_RETURN_IF_ERROR(check_equal(entry.name, "head_dim", tensor.shape[tensor.ndim - 1],
                                       "k_new", "head_dim", s.head_dim));
  }
  const int64_t num_heads_q = a.q->shape[a.q->ndim - 2];
  TEGULA_RETURN_IF_ERROR(check_equal("q_out", "num_heads_q", a.q_out->shape[a.q_out->ndim - 2], "q",
                                     "num_heads_q", num_heads_q));
  if (num_heads_q < 1 || num_heads_q % s.num_heads_kv != 0) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "k_new: num_heads_kv %" PRId64 " does not divide q: num_heads_q %" PRId64,
                s.num_heads_kv, num_heads_q);
  }
  return check_output("q_out", *a.q_out);
}

Status check_scales(const tegula_append_kv_args& a, const AppendSizes& s) {
  const struct {
    const char* name;
    const tegula_tensor* tensor;
  } scales[] = {{"descale_k", a.descale_k}, {"descale_v", a.descale_v}};
  for (const auto& scale : scales) {
    if (scale.tensor == nullptr) continue;
    if (!is_8bit_float(s.cache_dtype) || is_8bit_float(s.new_dtype)) {
      return fail(
          TEGULA_WRONG_TYPE,
          "%s: present, but rows of dtype %s are not rounded to 8 bits in a cache of dtype %s",
          scale.name, dtype_name(s.new_dtype), dtype_name(s.cache_dtype));
    }
    TEGULA_RETURN_IF_ERROR(check_head_scale(scale.name, *scale.tensor, s.batch, s.num_heads_kv));
  }
  return {};
}

// Two outputs never begin at one place, nor an output at an input, except q_out at q with q's
// strides.
Status check_places(const tegula_append_kv_args& a) {
  TEGULA_RETURN_IF_ERROR(check_distinct("v_cache", *a.v_cache, "k_cache", *a.k_cache));
  TEGULA_RETURN_IF_ERROR(check_distinct("k_cache", *a.k_cache, "k_new", *a.k_new));
  TEGULA_RETURN_IF_ERROR(check_distinct("v_cache", *a.v_cache, "v_new", *a.v_new));
  if (a.q == nullptr || !has_elements(*a.q) || address_of(*a.q) != address_of(*a.q_out)) return {};
  for (int32_t i = 0; i < a.q->ndim; ++i) {
    if (stride_of(*a.q, i) != stride_of(*a.q_out, i)) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "q_out: has the address of q, but strides[%" PRId32 "] %" PRId64
                  " differs from q's %" PRId64,
                  i, a.q_out->strides[i], a.q->strides[i]);
    }
  }
  return {};
}

StridedView table_view(const tegula_tensor& tensor) {
  StridedView view;
  view.data = address_of(tensor);
  view.dtype = dtype_from_dlpack(tensor.type_code, tensor.type_bits);
  for (int32_t i = 0; i < tensor.ndim; ++i) view.strides[i] = stride_of(tensor, i);
  return view;
}

void resolve_views(const tegula_append_kv_args& a, const AppendSizes& s, AppendCall& call) {
  call = AppendCall{};
  call.batch = s.batch;
  call.seqlen_new = s.seqlen_new;
  call.num_heads_kv = s.num_heads_kv;
  call.head_dim = s.head_dim;
  call.head_dim_v = s.head_dim_v;
  call.paged = s.paged;
  call.page_size = s.paged ? s.cache_inner : 0;
  call.interleaved = a.rotary_style == TEGULA_ROTARY_INTERLEAVED;
  call.k_new = token_view(*a.k_new);
  call.v_new = token_view(*a.v_new);
  call.k_cache = token_view(*a.k_cache);
  call.v_cache = token_view(*a.v_cache);
  call.cu_seqlens_new = index_view(a.cu_seqlens_new);
  call.seqused_k = index_view(a.seqused_k);
  call.slot_mapping = index_view(a.slot_mapping);
  call.positions = index_view(a.positions);
  call.pages = {index_view(a.page_table), index_view(a.page_indices), index_view(a.page_indptr)};
  if (a.cos != nullptr) {
    call.rotary_dim = 2 * a.cos->shape[1];
    call.cos = table_view(*a.cos);
    call.sin = table_view(*a.sin);
  }
  if (a.q != nullptr) {
    call.num_heads_q = a.q->shape[a.q->ndim - 2];
    call.q = token_view(*a.q);
    call.q_out = token_view(*a.q_out);
  }
  if (a.descale_k != nullptr) call.descale_k = head_scale_view(*a.descale_k);
  if (a.descale_v != nullptr) call.descale_v = head_scale_view(*a.descale_v);
}

}  // namespace

Status resolve_append_kv(const tegula_append_kv_args& args, AppendCall& call) {
  AppendSizes sizes{};
  TEGULA_RETURN_IF_ERROR(check_presence(args));
  TEGULA_RETURN_IF_ERROR(check_types(args, sizes));
  TEGULA_RETURN_IF_ERROR(check_new_rows(args, sizes));
  TEGULA_RETURN_IF_ERROR(check_caches(args, sizes));
  TEGULA_RETURN_IF_ERROR(check_rotary(args, sizes));
  TEGULA_RETURN_IF_ERROR(check_scales(args, sizes));
  TEGULA_RETURN_IF_ERROR(for_each_tensor(args, [&](const char* name, const tegula_tensor& tensor) {
    return check_same_device(name, tensor, "k_new", *args.k_new);
  }));
  TEGULA_RETURN_IF_ERROR(check_cpu("append_kv", *args.k_new));
  TEGULA_RETURN_IF_ERROR(for_each_tensor(args, check_address));
  TEGULA_RETURN_IF_ERROR(check_places(args));
  resolve_views(args, sizes, call);
  return check_append_values(args, sizes, call);
}

}  // namespace tegula::api
