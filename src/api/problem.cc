// SPDX-License-Identifier: Apache-2.0
// The limits of a problem that hold on every device (contract.md, 2 to 4), and its defaults.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "src/api/api.hpp"
#include "src/api/check.hpp"
#include "src/core/integer.hpp"
#include "src/core/limits.hpp"

namespace tegula::api {
namespace {

// Sizes up to this, and rows of q below it in all, keep every product of two of them within 64
// bits.
constexpr int64_t kMaxSize = int64_t{1} << 40;
constexpr int64_t kMaxRows = int64_t{1} << 47;
constexpr int64_t kSplitGranule = 64;

constexpr uint32_t kAllOperands = (TEGULA_HAS_PAGE_INDPTR << 1) - 1;
constexpr uint32_t kAllUnaligned = (TEGULA_UNALIGNED_O << 1) - 1;

Status check_types(const tegula_problem& given, tegula_problem& p) {
  if (!is_float(p.q_dtype)) {
    return fail(TEGULA_WRONG_TYPE, "q: dtype %s is not one of f32, f16, bf16, e4m3, e5m2",
                dtype_name(p.q_dtype));
  }
  if (!is_float(p.kv_dtype)) {
    return fail(TEGULA_WRONG_TYPE, "k, v: dtype %s is not one of f32, f16, bf16, e4m3, e5m2",
                dtype_name(p.kv_dtype));
  }
  const bool served =
      p.q_dtype == p.kv_dtype ||
      (is_wide_float(p.q_dtype) && (p.kv_dtype == TEGULA_F16 || p.kv_dtype == TEGULA_BF16)) ||
      (p.q_dtype != TEGULA_F32 && is_8bit_float(p.kv_dtype));
  if (!served) {
    return fail(TEGULA_UNSUPPORTED, "q: dtype %s with k, v: dtype %s is not supported",
                dtype_name(p.q_dtype), dtype_name(p.kv_dtype));
  }
  if (p.o_dtype == TEGULA_DTYPE_NONE)
    p.o_dtype = is_8bit_float(p.q_dtype) ? TEGULA_BF16 : p.q_dtype;
  if (!is_wide_float(p.o_dtype)) {
    return fail(TEGULA_WRONG_TYPE, "o: dtype %s is not one of f32, f16, bf16",
                dtype_name(p.o_dtype));
  }
  const bool has_bias = (given.operands & TEGULA_HAS_BIAS) != 0;
  if (has_bias != (p.bias_dtype != TEGULA_DTYPE_NONE)) {
    return fail(TEGULA_INVALID_ARGUMENT, "bias: dtype %s, but operands says %s",
                dtype_name(p.bias_dtype), has_bias ? "TEGULA_HAS_BIAS" : "no bias");
  }
  if (has_bias && p.bias_dtype != TEGULA_BOOL && p.bias_dtype != TEGULA_F32 &&
      p.bias_dtype != p.q_dtype) {
    return fail(TEGULA_WRONG_TYPE, "bias: dtype %s is not bool, f32 or q: dtype %s",
                dtype_name(p.bias_dtype), dtype_name(p.q_dtype));
  }
  if (has_bias && is_8bit_float(p.bias_dtype)) {
    return fail(TEGULA_UNSUPPORTED,
                "bias: dtype %s is not supported (f32 or bool with q: dtype %s)",
                dtype_name(p.bias_dtype), dtype_name(p.q_dtype));
  }
  return {};
}

// Operands that ask for others, or for types.
Status check_operands(const tegula_problem& p) {
  if (p.operands & ~kAllOperands) {
    return fail(TEGULA_UNSUPPORTED, "operands: 0x%" PRIx32 " has bits beyond the known 0x%" PRIx32,
                p.operands, kAllOperands);
  }
  if (p.unaligned & ~kAllUnaligned) {
    return fail(TEGULA_UNSUPPORTED, "unaligned: 0x%" PRIx32 " has bits beyond the known 0x%" PRIx32,
                p.unaligned, kAllUnaligned);
  }
  const auto has = [&](uint32_t operand) { return (p.operands & operand) != 0; };
  if (p.layout_k == TEGULA_PAGED && !has(TEGULA_HAS_SEQUSED_K)) {
    return fail(TEGULA_INVALID_ARGUMENT, "seqused_k: absent, but k: layout is paged");
  }
  if (has(TEGULA_HAS_NEW_TOKENS) && !has(TEGULA_HAS_SEQUSED_K)) {
    return fail(TEGULA_INVALID_ARGUMENT, "seqused_k: absent, but new tokens are to be added to it");
  }
  if (has(TEGULA_HAS_PAGE_INDPTR) && p.layout_k != TEGULA_PAGED) {
    return fail(TEGULA_INVALID_ARGUMENT, "page_indptr: present, but k: layout is not paged");
  }
  if (has(TEGULA_HAS_DESCALE_Q) && !is_8bit_float(p.q_dtype)) {
    return fail(TEGULA_WRONG_TYPE, "descale_q: present, but q: dtype %s is not e4m3 or e5m2",
                dtype_name(p.q_dtype));
  }
  if (has(TEGULA_HAS_DESCALE_K) && !is_8bit_float(p.kv_dtype)) {
    return fail(TEGULA_WRONG_TYPE, "descale_k: present, but k: dtype %s is not e4m3 or e5m2",
                dtype_name(p.kv_dtype));
  }
  if (has(TEGULA_HAS_DESCALE_V) && !is_8bit_float(p.kv_dtype)) {
    return fail(TEGULA_WRONG_TYPE, "descale_v: present, but v: dtype %s is not e4m3 or e5m2",
                dtype_name(p.kv_dtype));
  }
  return {};
}

Status check_sizes(tegula_problem& p) {
  const struct {
    const char* name;
    int64_t value, least;
  } sizes[] = {
      {"batch", p.batch, 0},
      {"seqlen_q", p.seqlen_q, 0},
      {"seqlen_k", p.seqlen_k, 0},
      {"total_q", p.total_q, 0},
      {"total_k", p.total_k, 0},
      {"num_heads_q", p.num_heads_q, 1},
      {"num_heads_kv", p.num_heads_kv, 1},
      {"head_dim", p.head_dim, 1},
      {"head_dim_v", p.head_dim_v, 1},
      {"num_pages", p.num_pages, 0},
      {"page_size", p.page_size, p.layout_k == TEGULA_PAGED ? 1 : 0},
      {"max_seqlen_q", p.max_seqlen_q, 0},
      {"max_seqlen_k", p.max_seqlen_k, 0},
  };
  for (const auto& size : sizes) {
    if (size.value < size.least || size.value > kMaxSize) {
      return fail(TEGULA_INVALID_ARGUMENT, "%s: %" PRId64 " is not within %" PRId64 " and 2^40",
                  size.name, size.value, size.least);
    }
  }
  if (p.num_heads_q % p.num_heads_kv != 0) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "k: num_heads_kv %" PRId64 " does not divide q: num_heads_q %" PRId64,
                p.num_heads_kv, p.num_heads_q);
  }
  if (p.head_dim > kMaxHeadDim) {
    return fail(TEGULA_UNSUPPORTED,
                "q, k: head_dim %" PRId64 " is more than the supported %" PRId64, p.head_dim,
                kMaxHeadDim);
  }
  if (p.head_dim_v > kMaxHeadDim) {
    return fail(TEGULA_UNSUPPORTED, "v: head_dim_v %" PRId64 " is more than the supported %" PRId64,
                p.head_dim_v, kMaxHeadDim);
  }
  return {};
}

// Longest lengths: what the tensors allow, and within it what the caller promised.
Status resolve_lengths(tegula_problem& p) {
  if (p.layout_q == TEGULA_RAGGED) {
    p.seqlen_q = p.seqlen_q == 0 ? p.total_q : std::min(p.seqlen_q, p.total_q);
  } else {
    p.total_q = 0;
  }
  if (p.layout_k == TEGULA_RAGGED) {
    p.seqlen_k = p.seqlen_k == 0 ? p.total_k : std::min(p.seqlen_k, p.total_k);
  } else {
    p.total_k = 0;
  }
  if (p.layout_k != TEGULA_PAGED) p.num_pages = p.page_size = 0;
  p.max_seqlen_q = p.max_seqlen_q == 0 ? p.seqlen_q : std::min(p.max_seqlen_q, p.seqlen_q);
  p.max_seqlen_k = p.max_seqlen_k == 0 ? p.seqlen_k : std::min(p.max_seqlen_k, p.seqlen_k);

  const int64_t tokens = p.layout_q == TEGULA_RAGGED ? p.total_q : p.seqlen_q;
  int64_t rows;
  if (__builtin_mul_overflow(p.layout_q == TEGULA_RAGGED ? 1 : p.batch, tokens, &rows) ||
      __builtin_mul_overflow(rows, p.num_heads_q, &rows) || rows > kMaxRows) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "q: %" PRId64 " tokens a sequence, batch %" PRId64 " and num_heads_q %" PRId64
                " are more than 2^47 rows",
                tokens, p.batch, p.num_heads_q);
  }
  return {};
}

Status resolve_mask(tegula_problem& p) {
  if (p.causal != 0 && p.causal != 1) {
    return fail(TEGULA_INVALID_ARGUMENT, "causal: %" PRId32 " is not 0 or 1", p.causal);
  }
  if (p.window_left < -1) {
    return fail(TEGULA_INVALID_ARGUMENT, "window_left: %" PRId64 " is less than -1 (unlimited)",
                p.window_left);
  }
  if (p.window_right < -1) {
    return fail(TEGULA_INVALID_ARGUMENT, "window_right: %" PRId64 " is less than -1 (unlimited)",
                p.window_right);
  }
  if (p.causal == 1 && p.window_right > 0) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "window_right: %" PRId64 " is more than 0, but causal is 1", p.window_right);
  }
  if (p.causal == 1) p.window_right = 0;
  if (p.attention_chunk < 0) {
    return fail(TEGULA_INVALID_ARGUMENT, "attention_chunk: %" PRId64 " is less than 0 (none)",
                p.attention_chunk);
  }
  return {};
}

// A number that is kept in fp32 must stay itself there.
bool fits_float(double value) {
  return std::isfinite(value) && value >= FLT_MIN && value <= FLT_MAX;
}

Status resolve_scores(tegula_problem& p) {
  if (p.softmax_scale == 0) p.softmax_scale = 1.0 / std::sqrt(static_cast<double>(p.head_dim));
  if (!fits_float(p.softmax_scale)) {
    return fail(TEGULA_INVALID_ARGUMENT, "softmax_scale: %g is not within %g and %g",
                p.softmax_scale, double{FLT_MIN}, double{FLT_MAX});
  }
  if (p.softcap != 0 && !fits_float(p.softcap)) {
    return fail(TEGULA_INVALID_ARGUMENT, "softcap: %g is not 0 (none) or within %g and %g",
                p.softcap, double{FLT_MIN}, double{FLT_MAX});
  }
  if (p.fast_accumulate != 0 && p.fast_accumulate != 1) {
    return fail(TEGULA_INVALID_ARGUMENT, "fast_accumulate: %" PRId32 " is not 0 or 1",
                p.fast_accumulate);
  }
  return {};
}

Status resolve_splits(tegula_problem& p) {
  if (p.num_splits < 0 || p.num_splits > kMaxSplits) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "num_splits: %" PRId64 " is not within 0 (automatic) and %" PRId64, p.num_splits,
                kMaxSplits);
  }
  if (p.fixed_split < 0 || p.fixed_split > kMaxSize) {
    return fail(TEGULA_INVALID_ARGUMENT, "fixed_split: %" PRId64 " is not within 0 (off) and 2^40",
                p.fixed_split);
  }
  if (p.num_splits != 0 && p.fixed_split != 0) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "num_splits: %" PRId64 " beside fixed_split: %" PRId64 "; at most one may be given",
                p.num_splits, p.fixed_split);
  }
  p.fixed_split = round_up(p.fixed_split, kSplitGranule);
  int64_t splits = p.num_splits;
  if (p.fixed_split != 0) {
    // By the capacity: max_seqlen_k is only a hint on some devices.
    splits = ceil_div(p.seqlen_k, p.fixed_split);
    if (splits > kMaxSplits) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "fixed_split: %" PRId64 " cuts seqlen_k %" PRId64 " into %" PRId64
                  " splits, more than %" PRId64,
                  p.fixed_split, p.seqlen_k, splits, kMaxSplits);
    }
  }
  if (splits > 1) {
    const int64_t tokens = p.layout_q == TEGULA_RAGGED ? p.total_q : p.batch * p.seqlen_q;
    const int64_t rows = tokens * p.num_heads_q;  // <= kMaxRows
    int64_t bytes;
    if (__builtin_mul_overflow(rows, splits * (p.head_dim_v + 1) * 4, &bytes) || bytes > kMaxRows) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "%s: %" PRId64 " partial results of %" PRId64 " rows with head_dim_v %" PRId64
                  " are more than 2^47 bytes",
                  p.fixed_split != 0 ? "fixed_split" : "num_splits", splits, rows, p.head_dim_v);
    }
  }
  return {};
}

}  // namespace

Status resolve_problem(const tegula_problem& given, tegula_problem& resolved) {
  resolved = given;
  tegula_problem& p = resolved;
  switch (p.operation) {
    case TEGULA_OP_FORWARD: break;
    case TEGULA_OP_BACKWARD:
      return fail(TEGULA_UNSUPPORTED, "operation: backward is not supported by version %d.%d",
                  TEGULA_VERSION_MAJOR, TEGULA_VERSION_MINOR);
    case TEGULA_OP_APPEND_KV:
      return fail(TEGULA_INVALID_ARGUMENT,
                  "operation: append_kv takes no plan; call tegula_append_kv");
    case TEGULA_OP_COMBINE:
      return fail(TEGULA_INVALID_ARGUMENT, "operation: combine takes no plan; call tegula_combine");
    default:
      return fail(TEGULA_INVALID_ARGUMENT, "operation: %" PRId32 " is not within 0 and %d",
                  p.operation, TEGULA_OP_COMBINE);
  }
  if (p.layout_q != TEGULA_DENSE && p.layout_q != TEGULA_RAGGED) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "layout_q: %" PRId32 " is not TEGULA_DENSE (0) or TEGULA_RAGGED (1)", p.layout_q);
  }
  if (p.layout_k < TEGULA_DENSE || p.layout_k > TEGULA_PAGED) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "layout_k: %" PRId32 " is not within TEGULA_DENSE (0) and TEGULA_PAGED (2)",
                p.layout_k);
  }
  TEGULA_RETURN_IF_ERROR(check_types(given, p));
  TEGULA_RETURN_IF_ERROR(check_operands(p));
  TEGULA_RETURN_IF_ERROR(check_sizes(p));
  TEGULA_RETURN_IF_ERROR(resolve_lengths(p));
  TEGULA_RETURN_IF_ERROR(resolve_mask(p));
  TEGULA_RETURN_IF_ERROR(resolve_scores(p));
  return resolve_splits(p);
}

}  // namespace tegula::api
