// SPDX-License-Identifier: Apache-2.0
// One call of tegula_forward: whether the plan's problem covers it, whether every length and page
// that the host can see is in bounds, and where everything lies.
#include "src/api/api.hpp"
#include "src/api/check.hpp"
#include "src/api/forward.hpp"
#include "src/api/lengths.hpp"
#include "src/plan/plan.hpp"

namespace tegula::api {
namespace {

Status check_plan_types(const tegula_problem& plan, const tegula_problem& call) {
  const struct {
    const char* name;
    int32_t plan, call;
  } types[] = {{"q", plan.q_dtype, call.q_dtype},
               {"k, v", plan.kv_dtype, call.kv_dtype},
               {"o", plan.o_dtype, call.o_dtype},
               {"bias", plan.bias_dtype, call.bias_dtype}};
  for (const auto& type : types) {
    if (type.plan != type.call) {
      return fail(TEGULA_WRONG_TYPE, "%s: dtype %s differs from the plan's %s", type.name,
                  dtype_name(type.call), dtype_name(type.plan));
    }
  }
  constexpr const char* kLayouts[] = {"dense", "ragged", "paged"};
  if (plan.layout_q != call.layout_q) {
    return fail(TEGULA_INVALID_ARGUMENT, "q: layout %s differs from the plan's %s",
                kLayouts[call.layout_q], kLayouts[plan.layout_q]);
  }
  if (plan.layout_k != call.layout_k) {
    return fail(TEGULA_INVALID_ARGUMENT, "k: layout %s differs from the plan's %s",
                kLayouts[call.layout_k], kLayouts[plan.layout_k]);
  }
  constexpr const char* kOperands[] = {"lse",       "seqused_q",    "seqused_k",  "leftpad_k",
                                       "sink",      "alibi_slopes", "bias",       "descale_q",
                                       "descale_k", "descale_v",    "new tokens", "page_indptr"};
  // A step without new tokens may use the plan of those that have some.
  const uint32_t wanted =
      plan.operands &
      ~(call.operands & TEGULA_HAS_NEW_TOKENS ? 0u : uint32_t{TEGULA_HAS_NEW_TOKENS});
  if (const uint32_t differing = wanted ^ call.operands; differing != 0) {
    const int bit = __builtin_ctz(differing);
    const bool in_call = (call.operands >> bit & 1) != 0;
    return fail(TEGULA_INVALID_ARGUMENT, "%s: %s in the call, but %s in the plan's problem",
                kOperands[bit], in_call ? "present" : "absent", in_call ? "absent" : "present");
  }
  return {};
}

Status check_plan_sizes(const tegula_problem& plan, const tegula_problem& call) {
  // page_indices say nothing about a single sequence's capacity; check_lengths holds each sequence
  // against the plan's max_seqlen_k.
  const bool ragged_pages = (call.operands & TEGULA_HAS_PAGE_INDPTR) != 0;
  const struct {
    const char *name, *what;
    int64_t plan, call;
    bool equal;  // otherwise at most the plan's
  } sizes[] = {
      {"q", "num_heads_q", plan.num_heads_q, call.num_heads_q, true},
      {"k", "num_heads_kv", plan.num_heads_kv, call.num_heads_kv, true},
      {"q", "head_dim", plan.head_dim, call.head_dim, true},
      {"v", "head_dim_v", plan.head_dim_v, call.head_dim_v, true},
      {"k", "page_size", plan.page_size, call.page_size, true},
      {"q", "batch", plan.batch, call.batch, false},
      {"q", "seqlen_q", plan.seqlen_q, call.seqlen_q, false},
      {"q", "total_q", plan.total_q, call.total_q, false},
      {"k", "total_k", plan.total_k, call.total_k, false},
      {"k", "num_pages", plan.num_pages, call.num_pages, false},
      {call.layout_k == TEGULA_PAGED ? "page_table" : "k", "seqlen_k", plan.seqlen_k,
       ragged_pages ? 0 : call.seqlen_k, false},
  };
  for (const auto& size : sizes) {
    if (size.equal && size.call != size.plan) {
      return fail(TEGULA_INVALID_ARGUMENT, "%s: %s %" PRId64 " differs from the plan's %" PRId64,
                  size.name, size.what, size.call, size.plan);
    }
    if (!size.equal && size.call > size.plan) {
      return fail(TEGULA_INVALID_ARGUMENT, "%s: %s %" PRId64 " is more than the plan's %" PRId64,
                  size.name, size.what, size.call, size.plan);
    }
  }
  return {};
}

// What the plan's loads can move (TEGULA_UNALIGNED_*).
Status check_plan_alignment(const tegula_problem& plan, const tegula_problem& call,
                            const tegula_forward_args& args) {
  const uint32_t beyond = call.unaligned & ~plan.unaligned;
  if (beyond == 0) return {};
  const struct {
    const char* name;
    const tegula_tensor* tensor;
  } operands[] = {{"q", args.q}, {"k", args.k}, {"v", args.v}, {"o", args.o}};
  const int bit = __builtin_ctz(beyond);
  const tegula_tensor& tensor = *operands[bit].tensor;
  return fail(
      TEGULA_INVALID_ARGUMENT,
      "%s: the address is %zu past a multiple of 16 bytes, strides are [%" PRId64 ", %" PRId64
      ", %" PRId64
      "] of %s: below the class of the plan's problem (unaligned "
      "0x%" PRIx32 " lacks 0x%x)",
      operands[bit].name, static_cast<size_t>(reinterpret_cast<uintptr_t>(address_of(tensor)) % 16),
      tensor.ndim > 3 ? stride_of(tensor, 0) : 0, stride_of(tensor, tensor.ndim - 3),
      stride_of(tensor, tensor.ndim - 2), type_text(tensor).text, plan.unaligned, 1u << bit);
}

StridedView strided_view(const tegula_tensor& tensor, int32_t first) {
  StridedView view;
  view.data = address_of(tensor);
  view.dtype = dtype_from_dlpack(tensor.type_code, tensor.type_bits);
  for (int32_t i = 0; i < tensor.ndim; ++i) view.strides[first + i] = stride_of(tensor, i);
  return view;
}

void resolve_views(const tegula_forward_args& a, const tegula_problem& here, ForwardCall& call) {
  call.batch = here.batch;
  call.seqlen_q = here.layout_q == TEGULA_DENSE ? here.seqlen_q : 0;
  call.seqlen_k = here.layout_k == TEGULA_DENSE ? here.seqlen_k : 0;
  call.total_q = here.total_q;
  call.total_k = here.total_k;
  call.q = token_view(*a.q);
  call.k = token_view(*a.k);
  call.v = token_view(*a.v);
  call.o = token_view(*a.o);
  if (a.lse != nullptr) call.lse = strided_view(*a.lse, 3 - a.lse->ndim);
  call.cu_seqlens_q = index_view(a.cu_seqlens_q);
  call.cu_seqlens_k = index_view(a.cu_seqlens_k);
  call.seqused_q = index_view(a.seqused_q);
  call.seqused_k = index_view(a.seqused_k);
  call.leftpad_k = index_view(a.leftpad_k);
  call.cu_seqlens_new = index_view(a.cu_seqlens_new);
  call.seqlen_new = a.seqlen_new;
  call.pages = {index_view(a.page_table), index_view(a.page_indices), index_view(a.page_indptr)};
  if (a.sink != nullptr) call.sink = strided_view(*a.sink, 0);
  if (a.alibi_slopes != nullptr)
    call.alibi_slopes = strided_view(*a.alibi_slopes, 2 - a.alibi_slopes->ndim);
  if (a.bias != nullptr) call.bias = strided_view(*a.bias, 0);
  if (a.descale_q != nullptr) call.descale_q = head_scale_view(*a.descale_q);
  if (a.descale_k != nullptr) call.descale_k = head_scale_view(*a.descale_k);
  if (a.descale_v != nullptr) call.descale_v = head_scale_view(*a.descale_v);
}

// The packed copy in host memory of a device tensor; absent if the caller gave none.
IndexView host_view(const tegula_index* index) {
  IndexView view;
  if (index == nullptr || index->host == nullptr) return view;
  view = index_view(index);
  view.data = static_cast<const std::byte*>(index->host);
  const int32_t last = index->tensor.ndim - 1;
  view.strides[last] = 1;
  if (last == 1) view.strides[0] = index->tensor.shape[1];
  return view;
}

// What the host can see of a CUDA call's lengths: all of them are checked as the CPU's are, or,
// where one has no copy, each array of offsets alone.
Status check_host_copies(const tegula_problem& here, const tegula_forward_args& a,
                         const ForwardCall& call) {
  ForwardCall seen = call;
  const struct {
    const char* name;
    const tegula_index* index;
    IndexView* view;
  } lengths[] = {{"cu_seqlens_q", a.cu_seqlens_q, &seen.cu_seqlens_q},
                 {"cu_seqlens_k", a.cu_seqlens_k, &seen.cu_seqlens_k},
                 {"cu_seqlens_new", a.cu_seqlens_new, &seen.cu_seqlens_new},
                 {"seqused_q", a.seqused_q, &seen.seqused_q},
                 {"seqused_k", a.seqused_k, &seen.seqused_k},
                 {"leftpad_k", a.leftpad_k, &seen.leftpad_k},
                 {"page_indptr", a.page_indptr, &seen.pages.indptr}};
  bool all = true;
  for (const auto& length : lengths) {
    *length.view = host_view(length.index);
    all = all && (length.index == nullptr || length.view->present());
  }
  seen.pages.table = host_view(a.page_table);
  seen.pages.indices = host_view(a.page_indices);
  if (all) return check_lengths(here, a.bias, seen);
  return check_visible_offsets(here, seen);
}

}  // namespace

Status resolve_forward(const tegula_problem& problem, const tegula_device& device,
                       const tegula_forward_args& args, ForwardCall& call) {
  tegula_problem here{};
  TEGULA_RETURN_IF_ERROR(describe_forward(args, here));
  TEGULA_RETURN_IF_ERROR(check_device("q", *args.q, device.kind, device.index));
  TEGULA_RETURN_IF_ERROR(check_plan_types(problem, here));
  TEGULA_RETURN_IF_ERROR(check_plan_sizes(problem, here));
  TEGULA_RETURN_IF_ERROR(for_each_tensor(args, check_address));
  TEGULA_RETURN_IF_ERROR(check_distinct("o", *args.o, "q", *args.q));
  TEGULA_RETURN_IF_ERROR(check_distinct("o", *args.o, "k", *args.k));
  TEGULA_RETURN_IF_ERROR(check_distinct("o", *args.o, "v", *args.v));
  if (args.lse != nullptr) TEGULA_RETURN_IF_ERROR(check_distinct("lse", *args.lse, "o", *args.o));

  call = ForwardCall{};
  call.problem = &problem;
  resolve_views(args, here, call);
  if (device.kind == TEGULA_CPU) return check_lengths(here, args.bias, call);
  TEGULA_RETURN_IF_ERROR(check_plan_alignment(problem, here, args));
  TEGULA_RETURN_IF_ERROR(for_each_tensor(args, [&](const char* name, const tegula_tensor& tensor) {
    return has_elements(tensor) ? check_cuda_address(name, address_of(tensor), device) : Status{};
  }));
  return check_host_copies(here, args, call);
}

}  // namespace tegula::api
