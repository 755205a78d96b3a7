// SPDX-License-Identifier: Apache-2.0
// tegula_combine's arguments (contract.md, 6).
#include "src/api/api.hpp"
#include "src/api/check.hpp"
#include "src/core/limits.hpp"

namespace tegula::api {
namespace {

Status check_float(const char* name, const tegula_tensor& tensor) {
  tegula_dtype dtype;
  TEGULA_RETURN_IF_ERROR(check_tensor(name, tensor, LastStride::kOne, dtype));
  if (!is_wide_float(dtype)) {
    return fail(TEGULA_WRONG_TYPE, "%s: dtype %s is not one of f32, f16, bf16", name,
                dtype_name(dtype));
  }
  return {};
}

// lse [batch, head, token] or [head, token] against o [batch, token, head, dim] or [token, head,
// dim]; `skip` leading dimensions (the splits) are not compared.
Status check_lse_shape(const char* name, const tegula_tensor& lse, int32_t skip,
                       const tegula_tensor& o) {
  TEGULA_RETURN_IF_ERROR(check_rank(name, lse, o.ndim - 1 + skip));
  const bool ragged = o.ndim == 3;
  const int64_t* shape = lse.shape + skip;
  if (!ragged)
    TEGULA_RETURN_IF_ERROR(check_equal(name, "batch", *shape++, "o", "batch", o.shape[0]));
  const int32_t token = o.ndim - 3;
  TEGULA_RETURN_IF_ERROR(
      check_equal(name, "num_heads_q", shape[0], "o", "num_heads_q", o.shape[token + 1]));
  const char* tokens = ragged ? "total_q" : "seqlen_q";
  return check_equal(name, tokens, shape[1], "o", tokens, o.shape[token]);
}

StridedView lse_view(const tegula_tensor& lse, int32_t skip) {
  StridedView view;
  view.data = address_of(lse);
  view.dtype = TEGULA_F32;
  const int32_t count = lse.ndim - skip;  // 3, or 2: no batch
  for (int32_t i = 0; i < count; ++i) view.strides[3 - count + i] = stride_of(lse, skip + i);
  return view;
}

Status check_shapes(const tegula_combine_args& a) {
  const tegula_tensor& o = *a.o;
  const tegula_tensor& o_partial = *a.o_partial;
  if (o.ndim != 4 && o.ndim != 3) {
    return fail(TEGULA_INVALID_ARGUMENT, "o: rank %" PRId32 " is not 4 (dense) or 3 (ragged)",
                o.ndim);
  }
  TEGULA_RETURN_IF_ERROR(check_rank("o_partial", o_partial, o.ndim + 1));
  const int64_t num_splits = o_partial.shape[0];
  if (num_splits < 1 || num_splits > kMaxSplits) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "o_partial: num_splits %" PRId64 " is not within 1 and %" PRId64, num_splits,
                kMaxSplits);
  }
  constexpr const char* kNames[] = {"batch", "seqlen_q", "num_heads_q", "head_dim_v"};
  for (int32_t i = 0; i < o.ndim; ++i) {
    const char* what = o.ndim == 3 && i == 0 ? "total_q" : kNames[4 - o.ndim + i];
    TEGULA_RETURN_IF_ERROR(
        check_equal("o_partial", what, o_partial.shape[i + 1], "o", what, o.shape[i]));
  }
  const int64_t num_heads = o.shape[o.ndim - 2], head_dim_v = o.shape[o.ndim - 1];
  if (num_heads < 1)
    return fail(TEGULA_INVALID_ARGUMENT, "o: num_heads_q %" PRId64 " is less than 1", num_heads);
  if (head_dim_v < 1)
    return fail(TEGULA_INVALID_ARGUMENT, "o: head_dim_v %" PRId64 " is less than 1", head_dim_v);
  if (head_dim_v > kMaxHeadDim) {
    return fail(TEGULA_UNSUPPORTED, "o: head_dim_v %" PRId64 " is more than the supported %" PRId64,
                head_dim_v, kMaxHeadDim);
  }
  TEGULA_RETURN_IF_ERROR(check_typed("lse_partial", *a.lse_partial, LastStride::kFree, TEGULA_F32));
  TEGULA_RETURN_IF_ERROR(check_lse_shape("lse_partial", *a.lse_partial, 1, o));
  TEGULA_RETURN_IF_ERROR(check_equal("lse_partial", "num_splits", a.lse_partial->shape[0],
                                     "o_partial", "num_splits", num_splits));
  TEGULA_RETURN_IF_ERROR(check_output("o", o));
  if (a.lse != nullptr) {
    TEGULA_RETURN_IF_ERROR(check_typed("lse", *a.lse, LastStride::kOne, TEGULA_F32));
    TEGULA_RETURN_IF_ERROR(check_lse_shape("lse", *a.lse, 0, o));
    TEGULA_RETURN_IF_ERROR(check_output("lse", *a.lse));
    TEGULA_RETURN_IF_ERROR(check_distinct("lse", *a.lse, "o", o));
  }
  if (a.sink != nullptr) {
    TEGULA_RETURN_IF_ERROR(check_typed("sink", *a.sink, LastStride::kOne, TEGULA_F32));
    TEGULA_RETURN_IF_ERROR(check_rank("sink", *a.sink, 1));
    TEGULA_RETURN_IF_ERROR(
        check_equal("sink", "shape[0]", a.sink->shape[0], "o", "num_heads_q", num_heads));
  }
  return {};
}

}  // namespace

Status resolve_combine(const tegula_combine_args& args, CombineCall& call) {
  const struct {
    const char* name;
    const tegula_tensor* tensor;
    bool required;
  } tensors[] = {{"o_partial", args.o_partial, true},
                 {"lse_partial", args.lse_partial, true},
                 {"o", args.o, true},
                 {"lse", args.lse, false},
                 {"sink", args.sink, false}};
  for (const auto& entry : tensors) {
    if (entry.tensor == nullptr && entry.required)
      return fail(TEGULA_INVALID_ARGUMENT, "%s: is NULL", entry.name);
  }
  TEGULA_RETURN_IF_ERROR(check_float("o_partial", *args.o_partial));
  TEGULA_RETURN_IF_ERROR(check_float("o", *args.o));
  TEGULA_RETURN_IF_ERROR(check_shapes(args));
  for (const auto& entry : tensors) {
    if (entry.tensor == nullptr) continue;
    TEGULA_RETURN_IF_ERROR(
        check_same_device(entry.name, *entry.tensor, "o_partial", *args.o_partial));
  }
  TEGULA_RETURN_IF_ERROR(check_cpu("combine", *args.o_partial));
  for (const auto& entry : tensors) {
    if (entry.tensor != nullptr) TEGULA_RETURN_IF_ERROR(check_address(entry.name, *entry.tensor));
  }

  const tegula_tensor& o = *args.o;
  const bool ragged = o.ndim == 3;
  call = CombineCall{};
  call.num_splits = args.o_partial->shape[0];
  call.batch = ragged ? 1 : o.shape[0];
  call.tokens = o.shape[o.ndim - 3];
  call.num_heads = o.shape[o.ndim - 2];
  call.head_dim_v = o.shape[o.ndim - 1];
  call.o_partial = token_view(*args.o_partial);
  if (ragged) call.o_partial.batch_stride = 0;
  call.o_split_stride = stride_of(*args.o_partial, 0);
  call.lse_partial = lse_view(*args.lse_partial, 1);
  call.lse_split_stride = stride_of(*args.lse_partial, 0);
  call.o = token_view(o);
  if (args.lse != nullptr) call.lse = lse_view(*args.lse, 0);
  if (args.sink != nullptr) {
    call.sink.data = address_of(*args.sink);
    call.sink.dtype = TEGULA_F32;
    call.sink.strides[0] = stride_of(*args.sink, 0);
  }
  return {};
}

}  // namespace tegula::api
