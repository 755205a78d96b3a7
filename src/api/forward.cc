// SPDX-License-Identifier: Apache-2.0
// What the shapes and types of tegula_forward's arguments say, as a problem.
#include "src/api/forward.hpp"
#include "src/api/api.hpp"
#include "src/api/check.hpp"

namespace tegula::api {
namespace {

Status check_required(const tegula_forward_args& a) {
  const struct {
    const char* name;
    const tegula_tensor* tensor;
  } required[] = {{"q", a.q}, {"k", a.k}, {"v", a.v}, {"o", a.o}};
  for (const auto& entry : required) {
    if (entry.tensor == nullptr) return fail(TEGULA_INVALID_ARGUMENT, "%s: is NULL", entry.name);
  }
  return {};
}

// k or v: types and layouts that are refused by name, then what holds for every tensor.
Status check_cache(const char* name, const tegula_tensor& tensor, tegula_dtype& dtype) {
  const bool integer = tensor.type_code <= 1 && tensor.type_bits <= 8;
  if (integer || tensor.type_bits == 4) {
    return fail(
        TEGULA_UNSUPPORTED,
        "%s: dtype %s is not supported (block-quantised caches; f32, f16, bf16, e4m3, e5m2 are)",
        name, type_text(tensor).text);
  }
  dtype = dtype_from_dlpack(tensor.type_code, tensor.type_bits);
  if (name[0] == 'v' && is_8bit_float(dtype) && (tensor.ndim == 3 || tensor.ndim == 4)) {
    const int32_t token = tensor.ndim - 3, dim = tensor.ndim - 1;
    if (tensor.shape[dim] > 1 && tensor.shape[token] > 1 && tensor.strides[token] == 1 &&
        tensor.strides[dim] != 1) {
      return fail(TEGULA_UNSUPPORTED,
                  "v: stride 1 along the keys with stride %" PRId64
                  " along head_dim_v is not supported yet (dtype %s)",
                  tensor.strides[dim], dtype_name(dtype));
    }
  }
  return check_tensor(name, tensor, LastStride::kOne, dtype);
}

Status describe_queries(const tegula_forward_args& a, tegula_problem& p) {
  tegula_dtype q_dtype, o_dtype;
  TEGULA_RETURN_IF_ERROR(check_tensor("q", *a.q, LastStride::kOne, q_dtype));
  TEGULA_RETURN_IF_ERROR(check_tensor("o", *a.o, LastStride::kOne, o_dtype));
  const tegula_tensor& q = *a.q;
  const tegula_tensor& o = *a.o;
  if (q.ndim != 3 && q.ndim != 4) {
    return fail(TEGULA_INVALID_ARGUMENT, "q: rank %" PRId32 " is not 4 (dense) or 3 (ragged)",
                q.ndim);
  }
  const bool ragged = q.ndim == 3;
  if (ragged != (a.cu_seqlens_q != nullptr)) {
    return fail(TEGULA_INVALID_ARGUMENT, "cu_seqlens_q: %s, but q: rank is %" PRId32 " (%s)",
                ragged ? "is NULL" : "present", q.ndim, ragged ? "ragged" : "dense");
  }
  p.q_dtype = q_dtype;
  p.o_dtype = o_dtype;
  p.layout_q = ragged ? TEGULA_RAGGED : TEGULA_DENSE;
  if (ragged) {
    TEGULA_RETURN_IF_ERROR(check_index("cu_seqlens_q", *a.cu_seqlens_q, 1));
    if (a.cu_seqlens_q->tensor.shape[0] < 1) {
      return fail(TEGULA_INVALID_ARGUMENT, "cu_seqlens_q: shape[0] 0 is less than 1 (batch + 1)");
    }
  }
  p.batch = ragged ? a.cu_seqlens_q->tensor.shape[0] - 1 : q.shape[0];
  p.seqlen_q = ragged ? 0 : q.shape[1];
  p.total_q = ragged ? q.shape[0] : 0;
  p.num_heads_q = q.shape[q.ndim - 2];
  p.head_dim = q.shape[q.ndim - 1];

  TEGULA_RETURN_IF_ERROR(check_rank("o", o, q.ndim));
  if (ragged) {
    TEGULA_RETURN_IF_ERROR(check_equal("o", "total_q", o.shape[0], "q", "total_q", q.shape[0]));
  } else {
    TEGULA_RETURN_IF_ERROR(check_equal("o", "batch", o.shape[0], "q", "batch", q.shape[0]));
    TEGULA_RETURN_IF_ERROR(check_equal("o", "seqlen_q", o.shape[1], "q", "seqlen_q", q.shape[1]));
  }
  TEGULA_RETURN_IF_ERROR(
      check_equal("o", "num_heads_q", o.shape[o.ndim - 2], "q", "num_heads_q", p.num_heads_q));
  return check_output("o", o);
}

// Batch of an operand, against q's.
Status check_batch(const char* name, const char* what, int64_t batch, const tegula_problem& p) {
  return check_equal(name, what, batch, p.layout_q == TEGULA_RAGGED ? "cu_seqlens_q" : "q", "batch",
                     p.batch);
}

// A [batch + 1] index tensor.
Status check_offsets_shape(const char* name, const tegula_index& index, const tegula_problem& p) {
  TEGULA_RETURN_IF_ERROR(check_index(name, index, 1));
  if (index.tensor.shape[0] < 1) {
    return fail(TEGULA_INVALID_ARGUMENT, "%s: shape[0] 0 is less than 1 (batch + 1)", name);
  }
  return check_batch(name, "batch (shape[0] - 1)", index.tensor.shape[0] - 1, p);
}

Status describe_pages(const tegula_forward_args& a, tegula_problem& p) {
  p.layout_k = TEGULA_PAGED;
  p.num_pages = a.k->shape[0];
  p.page_size = a.k->shape[1];
  if (p.page_size < 1)
    return fail(TEGULA_INVALID_ARGUMENT, "k: page_size %" PRId64 " is less than 1", p.page_size);
  int64_t pages;
  const char* name;
  if (a.page_table != nullptr) {
    name = "page_table";
    TEGULA_RETURN_IF_ERROR(check_index(name, *a.page_table, 2));
    TEGULA_RETURN_IF_ERROR(check_batch(name, "shape[0]", a.page_table->tensor.shape[0], p));
    pages = a.page_table->tensor.shape[1];
  } else {
    name = "page_indices";
    TEGULA_RETURN_IF_ERROR(check_index(name, *a.page_indices, 1));
    TEGULA_RETURN_IF_ERROR(check_offsets_shape("page_indptr", *a.page_indptr, p));
    p.operands |= TEGULA_HAS_PAGE_INDPTR;
    pages = a.page_indices->tensor.shape[0];
  }
  if (__builtin_mul_overflow(pages, p.page_size, &p.seqlen_k)) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "%s: %" PRId64 " pages of page_size %" PRId64 " are beyond 64-bit offsets", name,
                pages, p.page_size);
  }
  return {};
}

Status describe_keys(const tegula_forward_args& a, tegula_problem& p) {
  tegula_dtype k_dtype, v_dtype;
  TEGULA_RETURN_IF_ERROR(check_cache("k", *a.k, k_dtype));
  TEGULA_RETURN_IF_ERROR(check_cache("v", *a.v, v_dtype));
  const tegula_tensor& k = *a.k;
  const tegula_tensor& v = *a.v;
  if (k_dtype != v_dtype) {
    return fail(TEGULA_UNSUPPORTED, "v: dtype %s differs from k: dtype %s", dtype_name(v_dtype),
                dtype_name(k_dtype));
  }
  p.kv_dtype = k_dtype;
  if (k.ndim != 3 && k.ndim != 4) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "k: rank %" PRId32 " is not 4 (dense or paged) or 3 (ragged)", k.ndim);
  }
  TEGULA_RETURN_IF_ERROR(check_equal("v", "rank", v.ndim, "k", "rank", k.ndim));
  const bool ragged = k.ndim == 3;
  if (ragged != (a.cu_seqlens_k != nullptr)) {
    return fail(TEGULA_INVALID_ARGUMENT, "cu_seqlens_k: %s, but k: rank is %" PRId32 " (%s)",
                ragged ? "is NULL" : "present", k.ndim, ragged ? "ragged" : "dense or paged");
  }
  if ((a.page_indices != nullptr) != (a.page_indptr != nullptr)) {
    const bool indptr = a.page_indices != nullptr;
    return fail(TEGULA_INVALID_ARGUMENT, "%s: is NULL, but %s is present",
                indptr ? "page_indptr" : "page_indices", indptr ? "page_indices" : "page_indptr");
  }
  if (a.page_table != nullptr && a.page_indices != nullptr) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "page_indices: present beside page_table; at most one may be given");
  }
  const bool paged = a.page_table != nullptr || a.page_indices != nullptr;
  if (paged && ragged) {
    return fail(TEGULA_INVALID_ARGUMENT, "%s: present, but k: rank is 3 (ragged)",
                a.page_table != nullptr ? "page_table" : "page_indices");
  }
  if (ragged) {
    TEGULA_RETURN_IF_ERROR(check_offsets_shape("cu_seqlens_k", *a.cu_seqlens_k, p));
    TEGULA_RETURN_IF_ERROR(check_equal("v", "total_k", v.shape[0], "k", "total_k", k.shape[0]));
    p.layout_k = TEGULA_RAGGED;
    p.seqlen_k = 0;
    p.total_k = k.shape[0];
  } else {
    const char* outer = paged ? "num_pages" : "batch";
    const char* inner = paged ? "page_size" : "seqlen_k";
    TEGULA_RETURN_IF_ERROR(check_equal("v", outer, v.shape[0], "k", outer, k.shape[0]));
    TEGULA_RETURN_IF_ERROR(check_equal("v", inner, v.shape[1], "k", inner, k.shape[1]));
    p.total_k = 0;
  }
  p.num_pages = p.page_size = 0;
  if (paged) {
    TEGULA_RETURN_IF_ERROR(describe_pages(a, p));
  } else if (!ragged) {
    TEGULA_RETURN_IF_ERROR(check_batch("k", "batch", k.shape[0], p));
    p.layout_k = TEGULA_DENSE;
    p.seqlen_k = k.shape[1];
  }
  p.num_heads_kv = k.shape[k.ndim - 2];
  p.head_dim_v = v.shape[v.ndim - 1];
  TEGULA_RETURN_IF_ERROR(
      check_equal("v", "num_heads_kv", v.shape[v.ndim - 2], "k", "num_heads_kv", p.num_heads_kv));
  TEGULA_RETURN_IF_ERROR(
      check_equal("k", "head_dim", k.shape[k.ndim - 1], "q", "head_dim", p.head_dim));
  return check_equal("o", "head_dim_v", a.o->shape[a.o->ndim - 1], "v", "head_dim_v", p.head_dim_v);
}

Status describe_lengths(const tegula_forward_args& a, tegula_problem& p) {
  const struct {
    const char* name;
    const tegula_index* index;
    uint32_t operand;
  } lengths[] = {{"seqused_q", a.seqused_q, TEGULA_HAS_SEQUSED_Q},
                 {"seqused_k", a.seqused_k, TEGULA_HAS_SEQUSED_K},
                 {"leftpad_k", a.leftpad_k, TEGULA_HAS_LEFTPAD_K}};
  for (const auto& length : lengths) {
    if (length.index == nullptr) continue;
    TEGULA_RETURN_IF_ERROR(check_index(length.name, *length.index, 1));
    TEGULA_RETURN_IF_ERROR(check_batch(length.name, "shape[0]", length.index->tensor.shape[0], p));
    p.operands |= length.operand;
  }
  if (a.seqlen_new < 0) {
    return fail(TEGULA_INVALID_ARGUMENT, "seqlen_new: %" PRId64 " is less than 0", a.seqlen_new);
  }
  if (a.cu_seqlens_new != nullptr) {
    if (a.seqlen_new != 0) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "seqlen_new: %" PRId64 " beside cu_seqlens_new; at most one may be given",
                  a.seqlen_new);
    }
    TEGULA_RETURN_IF_ERROR(check_offsets_shape("cu_seqlens_new", *a.cu_seqlens_new, p));
  }
  if (a.cu_seqlens_new != nullptr || a.seqlen_new != 0) p.operands |= TEGULA_HAS_NEW_TOKENS;
  if (a.seqused_k == nullptr && p.layout_k == TEGULA_PAGED) {
    return fail(TEGULA_INVALID_ARGUMENT, "seqused_k: is NULL, but %s is present",
                a.page_table != nullptr ? "page_table" : "page_indices");
  }
  if (a.seqused_k == nullptr && (p.operands & TEGULA_HAS_NEW_TOKENS)) {
    return fail(TEGULA_INVALID_ARGUMENT, "seqused_k: is NULL, but %s is present",
                a.cu_seqlens_new != nullptr ? "cu_seqlens_new" : "seqlen_new");
  }
  return {};
}

Status describe_bias(const tegula_tensor& bias, tegula_problem& p) {
  tegula_dtype dtype;
  TEGULA_RETURN_IF_ERROR(check_tensor("bias", bias, LastStride::kOneOrZero, dtype));
  p.bias_dtype = dtype;
  TEGULA_RETURN_IF_ERROR(check_rank("bias", bias, 4));
  TEGULA_RETURN_IF_ERROR(check_batch("bias", "shape[0]", bias.shape[0], p));
  TEGULA_RETURN_IF_ERROR(
      check_equal("bias", "shape[1]", bias.shape[1], "q", "num_heads_q", p.num_heads_q));
  // Ragged and paged lengths are data: check_lengths() holds each sequence against shape[2] and
  // shape[3].
  if (p.layout_q == TEGULA_DENSE) {
    TEGULA_RETURN_IF_ERROR(
        check_equal("bias", "shape[2]", bias.shape[2], "q", "seqlen_q", p.seqlen_q));
  }
  if (p.layout_k == TEGULA_DENSE) {
    TEGULA_RETURN_IF_ERROR(
        check_equal("bias", "shape[3]", bias.shape[3], "k", "seqlen_k", p.seqlen_k));
  }
  p.operands |= TEGULA_HAS_BIAS;
  return {};
}

Status describe_extras(const tegula_forward_args& a, tegula_problem& p) {
  if (a.lse != nullptr) {
    const tegula_tensor& lse = *a.lse;
    const bool ragged = p.layout_q == TEGULA_RAGGED;
    TEGULA_RETURN_IF_ERROR(check_typed("lse", lse, LastStride::kOne, TEGULA_F32));
    TEGULA_RETURN_IF_ERROR(check_rank("lse", lse, ragged ? 2 : 3));
    if (!ragged)
      TEGULA_RETURN_IF_ERROR(check_equal("lse", "shape[0]", lse.shape[0], "q", "batch", p.batch));
    TEGULA_RETURN_IF_ERROR(check_equal("lse", ragged ? "shape[0]" : "shape[1]",
                                       lse.shape[lse.ndim - 2], "q", "num_heads_q", p.num_heads_q));
    TEGULA_RETURN_IF_ERROR(
        check_equal("lse", ragged ? "shape[1]" : "shape[2]", lse.shape[lse.ndim - 1], "q",
                    ragged ? "total_q" : "seqlen_q", ragged ? p.total_q : p.seqlen_q));
    TEGULA_RETURN_IF_ERROR(check_output("lse", lse));
    p.operands |= TEGULA_HAS_LSE;
  }
  if (a.sink != nullptr) {
    TEGULA_RETURN_IF_ERROR(check_typed("sink", *a.sink, LastStride::kOne, TEGULA_F32));
    TEGULA_RETURN_IF_ERROR(check_rank("sink", *a.sink, 1));
    TEGULA_RETURN_IF_ERROR(
        check_equal("sink", "shape[0]", a.sink->shape[0], "q", "num_heads_q", p.num_heads_q));
    p.operands |= TEGULA_HAS_SINK;
  }
  if (a.alibi_slopes != nullptr) {
    const tegula_tensor& slopes = *a.alibi_slopes;
    TEGULA_RETURN_IF_ERROR(check_typed("alibi_slopes", slopes, LastStride::kOne, TEGULA_F32));
    if (slopes.ndim != 1 && slopes.ndim != 2) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "alibi_slopes: rank %" PRId32
                  " is not 1 ([num_heads_q]) or 2 ([batch, num_heads_q])",
                  slopes.ndim);
    }
    if (slopes.ndim == 2)
      TEGULA_RETURN_IF_ERROR(check_batch("alibi_slopes", "shape[0]", slopes.shape[0], p));
    TEGULA_RETURN_IF_ERROR(check_equal("alibi_slopes", slopes.ndim == 2 ? "shape[1]" : "shape[0]",
                                       slopes.shape[slopes.ndim - 1], "q", "num_heads_q",
                                       p.num_heads_q));
    p.operands |= TEGULA_HAS_ALIBI;
  }
  if (a.bias != nullptr) TEGULA_RETURN_IF_ERROR(describe_bias(*a.bias, p));
  const struct {
    const char* name;
    const tegula_tensor* tensor;
    uint32_t operand;
  } scales[] = {{"descale_q", a.descale_q, TEGULA_HAS_DESCALE_Q},
                {"descale_k", a.descale_k, TEGULA_HAS_DESCALE_K},
                {"descale_v", a.descale_v, TEGULA_HAS_DESCALE_V}};
  for (const auto& scale : scales) {
    if (scale.tensor == nullptr) continue;
    TEGULA_RETURN_IF_ERROR(check_head_scale(scale.name, *scale.tensor, p.batch, p.num_heads_kv));
    p.operands |= scale.operand;
  }
  return {};
}

uint32_t unaligned_operands(const tegula_forward_args& a) {
  return (fits_tma(*a.q) ? 0 : TEGULA_UNALIGNED_Q) | (fits_tma(*a.k) ? 0 : TEGULA_UNALIGNED_K) |
         (fits_tma(*a.v) ? 0 : TEGULA_UNALIGNED_V) | (fits_tma(*a.o) ? 0 : TEGULA_UNALIGNED_O);
}

}  // namespace

Status describe_forward(const tegula_forward_args& args, tegula_problem& problem) {
  tegula_problem p = problem;  // nothing of the caller's changes unless all of it is right
  p.operation = TEGULA_OP_FORWARD;
  p.bias_dtype = TEGULA_DTYPE_NONE;
  p.operands = 0;
  TEGULA_RETURN_IF_ERROR(check_required(args));
  TEGULA_RETURN_IF_ERROR(describe_queries(args, p));
  TEGULA_RETURN_IF_ERROR(describe_keys(args, p));
  TEGULA_RETURN_IF_ERROR(describe_lengths(args, p));
  TEGULA_RETURN_IF_ERROR(describe_extras(args, p));
  TEGULA_RETURN_IF_ERROR(for_each_tensor(args, [&](const char* name, const tegula_tensor& tensor) {
    return check_same_device(name, tensor, "q", *args.q);
  }));
  p.unaligned = args.q->device_kind == TEGULA_CUDA ? unaligned_operands(args) : 0;
  problem = p;
  return {};
}

}  // namespace tegula::api
