// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/forward_case.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/cases/forward_streams.hpp"
#include "tests/cases/random.hpp"

namespace tegula::cases {
namespace {

int log2_scale_q(Values values) {
  switch (values) {
    case Values::kLarge: return 5;
    case Values::kHuge: return 10;
    case Values::kGrowing: return 1;
    default: return 0;
  }
}

int log2_scale_k(Values values) {
  switch (values) {
    case Values::kLarge: return 3;
    case Values::kHuge: return 8;
    default: return 0;
  }
}

// A page id that must never be followed.
std::int64_t garbage_page(std::uint64_t seed, std::int64_t n) {
  constexpr std::int64_t kChoices[] = {-1, std::numeric_limits<std::int32_t>::max(),
                                       std::numeric_limits<std::int32_t>::min(), 123456789};
  return kChoices[splitmix64(seed, static_cast<std::uint64_t>(n)) % 4];
}

}  // namespace

using namespace forward_streams;

ForwardData::ForwardData(const Case& item, Placement placement, int output_fill)
    : item_(item), output_fill_(output_fill) {
  for (std::int64_t b = 0; b < item_.batch(); ++b) {
    const oracle::Attention shape = shape_of(b);
    std::vector<bool> seen(static_cast<std::size_t>(shape.seqlen_k), false);
    for (std::int64_t j = 0; j < shape.seqlen_k; ++j) {
      for (std::int64_t i = 0; i < shape.seqlen_q && !seen[static_cast<std::size_t>(j)]; ++i) {
        seen[static_cast<std::size_t>(j)] = oracle::visible(shape, i, j);
      }
    }
    seen_.push_back(std::move(seen));
  }
  make_queries(placement);
  if (item_.paged()) {
    make_pages(placement);
  } else {
    make_keys(placement);
  }
  fill_keys();
  make_extras(placement);
  make_bias(placement);
  make_descales(placement);
  connect();
}

ForwardData::Place ForwardData::place_q(std::int64_t b, std::int64_t i) const {
  if (item_.ragged_q) return {0, start_q_[static_cast<std::size_t>(b)] + i};
  return {b, i};
}

ForwardData::Place ForwardData::place_k(std::int64_t b, std::int64_t j) const {
  const auto index = static_cast<std::size_t>(b);
  if (item_.paged()) {
    return {pages_[index][static_cast<std::size_t>(j / item_.page_size)], j % item_.page_size};
  }
  if (item_.layout_k == LayoutK::kRagged) return {0, start_k_[index] + j};
  return {b, j};
}

void ForwardData::make_queries(Placement placement) {
  const std::int64_t batch = item_.batch();
  std::int64_t outer = batch;
  std::int64_t tokens = longest(item_.seqlens_q) + (item_.seqused_q ? item_.slack_q : 0);
  if (item_.ragged_q) {
    std::vector<std::int64_t> starts{0};
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t slot = used_q(b) + (item_.seqused_q ? item_.slack_q + b % 3 : 0);
      starts.push_back(starts.back() + slot);
    }
    cu_seqlens_q = make_index(starts, TEGULA_I32, placement);
    outer = -1;
    tokens = starts.back() + 2;  // rows past the last sequence: untouched
    start_q_ = std::move(starts);
  }
  if (item_.seqused_q) seqused_q = make_index(item_.seqlens_q, TEGULA_I32, placement);
  q = make_tokens(item_.q_dtype, outer, tokens, item_.num_heads_q, item_.head_dim, item_.strides_q,
                  placement, kPoison);
  out = make_tokens(item_.o_dtype, outer, tokens, item_.num_heads_q, item_.head_dim_v,
                    item_.strides_o, placement, output_fill_);
  if (item_.lse) {
    const std::int64_t row = item_.strides_lse == Strides::kPadded ? tokens + 5 : tokens;
    const std::int64_t heads = item_.num_heads_q;
    log_sum_exp = outer < 0 ? make_operand(TEGULA_F32, {heads, tokens}, {row, 1}, 0, placement,
                                           output_fill_)
                            : make_operand(TEGULA_F32, {batch, heads, tokens},
                                           {heads * row + row - tokens, row, 1}, 0, placement,
                                           output_fill_);
  }

  const std::uint64_t seed = stream_seed(item_.seed, kQ);
  std::int64_t row = 0;
  std::int64_t nan_sequence = -1;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::vector<bool>& seen = seen_[static_cast<std::size_t>(b)];
    if (used_q(b) > 0 && !seen.empty() && seen.back()) nan_sequence = b;
    for (std::int64_t i = 0; i < used_q(b); ++i, ++row) {
      const Place place = place_q(b, i);
      for (std::int64_t h = 0; h < item_.num_heads_q; ++h) {
        for (std::int64_t d = 0; d < item_.head_dim; ++d) {
          const std::int64_t index = (row * item_.num_heads_q + h) * item_.head_dim + d;
          const double x = item_.values == Values::kZeroQ
                               ? 0.0
                               : value(seed, static_cast<std::uint64_t>(index),
                                       log2_scale_q(item_.values));
          if (item_.ragged_q) {
            q.set(x, place.token, h, d);
          } else {
            q.set(x, place.outer, place.token, h, d);
          }
        }
      }
    }
  }
  if (item_.values == Values::kNanQ && nan_sequence >= 0) {
    // The first row that sees a key: keys that it must not see may follow in the same block.
    const oracle::Attention shape = shape_of(nan_sequence);
    const auto sees_a_key = [&](std::int64_t i) {
      std::int64_t j = 0;
      while (j < shape.seqlen_k && !oracle::visible(shape, i, j)) ++j;
      return j < shape.seqlen_k;
    };
    std::int64_t row_of_nan = 0;
    while (!sees_a_key(row_of_nan)) ++row_of_nan;  // the last row does: see nan_sequence
    const Place place = place_q(nan_sequence, row_of_nan);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const std::int64_t h = item_.num_heads_q / 2;
    if (item_.ragged_q) {
      q.set(nan, place.token, h, 0);
    } else {
      q.set(nan, place.outer, place.token, h, 0);
    }
  }
}

void ForwardData::make_keys(Placement placement) {
  const std::int64_t batch = item_.batch();
  std::int64_t outer = batch;
  std::int64_t tokens = longest(item_.seqlens_k) + (item_.seqused_k ? item_.slack_k : 0);
  if (item_.layout_k == LayoutK::kRagged) {
    std::vector<std::int64_t> starts{0};
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t used = item_.seqlens_k[static_cast<std::size_t>(b)];
      starts.push_back(starts.back() + used + (item_.seqused_k ? item_.slack_k + b % 2 : 0));
    }
    cu_seqlens_k = make_index(starts, TEGULA_I32, placement);
    outer = -1;
    tokens = starts.back() + 1;
    start_k_ = std::move(starts);
  }
  k = make_tokens(item_.kv_dtype, outer, tokens, item_.num_heads_kv, item_.head_dim,
                  item_.strides_k, placement, kPoison);
  v = make_tokens(item_.v_dtype == TEGULA_DTYPE_NONE ? item_.kv_dtype : item_.v_dtype, outer,
                  tokens, item_.num_heads_kv, item_.head_dim_v, item_.strides_v, placement, kPoison);
}

// Pages are dealt from a shuffled pool with spare pages; entries that must not be read are garbage.
void ForwardData::make_pages(Placement placement) {
  const std::int64_t batch = item_.batch();
  const std::uint64_t seed = stream_seed(item_.seed, kPages);
  const auto count_of = [this](std::int64_t b) {
    return (item_.seqlens_k[static_cast<std::size_t>(b)] + item_.page_size - 1) / item_.page_size;
  };
  std::int64_t num_pages = 3;
  std::int64_t max_pages = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    num_pages += count_of(b);
    max_pages = std::max(max_pages, count_of(b));
  }
  std::vector<std::int64_t> pool(static_cast<std::size_t>(num_pages));
  std::iota(pool.begin(), pool.end(), 0);
  for (std::size_t i = pool.size(); i-- > 1;) std::swap(pool[i], pool[splitmix64(seed, i) % (i + 1)]);
  std::size_t next = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::vector<std::int64_t> pages;
    for (std::int64_t n = 0; n < count_of(b); ++n) {
      const bool shared = item_.shared_pages && n == 0 && b > 0 && !pages_[0].empty();
      pages.push_back(shared ? pages_[0][0] : pool[next++]);
    }
    pages_.push_back(std::move(pages));
  }

  const auto entry = [&](std::int64_t b, std::int64_t n) {
    const std::vector<bool>& seen = seen_[static_cast<std::size_t>(b)];
    const auto first = static_cast<std::size_t>(n * item_.page_size);
    const auto last = std::min(seen.size(), first + static_cast<std::size_t>(item_.page_size));
    for (std::size_t j = first; j < last; ++j) {
      if (seen[j]) return pages_[static_cast<std::size_t>(b)][static_cast<std::size_t>(n)];
    }
    return garbage_page(seed, b * 1000 + n);
  };
  if (item_.layout_k == LayoutK::kPageTable) {
    max_pages += 2;
    const std::int64_t stride = max_pages + 3;
    const std::int64_t spare =
        item_.short_table && batch > 0 ? max_pages - count_of(batch - 1) : 0;
    page_table = make_operand(TEGULA_I32, {batch, max_pages}, {stride, 1}, 0, placement, kPoison,
                              spare);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t n = 0; n < max_pages; ++n) {
        if (b + 1 == batch && n >= max_pages - spare) break;
        page_table.set(static_cast<double>(entry(b, n)), b, n);
      }
    }
  } else {
    std::vector<std::int64_t> indptr{0};
    std::vector<std::int64_t> ids;
    for (std::int64_t b = 0; b < batch; ++b) {
      // Rows may be longer than their sequence; what follows is garbage, too.
      const std::int64_t row = count_of(b) + b % 2;
      for (std::int64_t n = 0; n < row; ++n) ids.push_back(entry(b, n));
      indptr.push_back(static_cast<std::int64_t>(ids.size()));
    }
    page_indptr = make_index(indptr, TEGULA_I32, placement);
    page_indices = make_index(ids, TEGULA_I32, placement);
  }
  k = make_tokens(item_.kv_dtype, num_pages, item_.page_size, item_.num_heads_kv, item_.head_dim,
                  item_.strides_k, placement, kPoison);
  v = make_tokens(item_.kv_dtype, num_pages, item_.page_size, item_.num_heads_kv, item_.head_dim_v,
                  item_.strides_v, placement, kPoison);
}

void ForwardData::fill_keys() {
  const bool ragged = item_.layout_k == LayoutK::kRagged;
  const std::uint64_t seed_k = stream_seed(item_.seed, kK);
  const std::uint64_t seed_v = stream_seed(item_.seed, kV);
  const auto put = [ragged](const Operand& operand, const Place& place, std::int64_t h,
                            std::int64_t d, double x) {
    if (ragged) {
      operand.set(x, place.token, h, d);
    } else {
      operand.set(x, place.outer, place.token, h, d);
    }
  };
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < item_.batch(); ++b) {
    const std::vector<bool>& seen = seen_[static_cast<std::size_t>(b)];
    const auto length = static_cast<std::int64_t>(seen.size());
    bool nan_pending = item_.values == Values::kNanK && b == 0;
    for (std::int64_t j = 0; j < length; ++j, ++row) {
      if (!seen[static_cast<std::size_t>(j)]) continue;
      const Place place = place_k(b, j);
      for (std::int64_t h = 0; h < item_.num_heads_kv; ++h) {
        const bool growing = item_.values == Values::kGrowing;
        // Growing: one direction per head, longer with every sixteenth of the sequence.
        const std::int64_t key = growing ? h : row * item_.num_heads_kv + h;
        const int factor = growing ? 1 + static_cast<int>(16 * j / length) : 1;
        for (std::int64_t d = 0; d < item_.head_dim; ++d) {
          put(k, place, h, d,
              value(seed_k, static_cast<std::uint64_t>(key * item_.head_dim + d),
                    log2_scale_k(item_.values), factor));
        }
        for (std::int64_t d = 0; d < item_.head_dim_v; ++d) {
          const auto index = static_cast<std::uint64_t>(
              (row * item_.num_heads_kv + h) * item_.head_dim_v + d);
          double x = value(seed_v, index, 0);
          if (item_.values == Values::kZeroQ) x = 1.0;
          if (item_.values == Values::kHeads) x = static_cast<double>(h % 16 + 1);
          put(v, place, h, d, x);
        }
      }
      if (nan_pending) {
        put(k, place, item_.num_heads_kv - 1, 0, std::numeric_limits<double>::quiet_NaN());
        nan_pending = false;
      }
    }
  }
}

void ForwardData::connect() {
  tegula_forward_args_init(&args_);
  args_.q = q.pointer();
  args_.k = k.pointer();
  args_.v = v.pointer();
  args_.o = out.pointer();
  args_.lse = log_sum_exp.pointer();
  args_.sink = sink.pointer();
  args_.alibi_slopes = alibi_slopes.pointer();
  args_.bias = bias.pointer();
  args_.descale_q = descale_q.pointer();
  args_.descale_k = descale_k.pointer();
  args_.descale_v = descale_v.pointer();
  if (item_.new_tokens == NewTokens::kNumber && !item_.seqlens_new.empty()) {
    args_.seqlen_new = item_.seqlens_new[0];
  }
  const std::pair<const Operand*, const tegula_index**> links[] = {
      {&cu_seqlens_q, &args_.cu_seqlens_q}, {&cu_seqlens_k, &args_.cu_seqlens_k},
      {&seqused_q, &args_.seqused_q},       {&seqused_k, &args_.seqused_k},
      {&leftpad_k, &args_.leftpad_k},       {&page_table, &args_.page_table},
      {&page_indices, &args_.page_indices}, {&page_indptr, &args_.page_indptr},
      {&cu_seqlens_new, &args_.cu_seqlens_new}};
  indices_.reserve(std::size(links));
  for (const auto& [operand, slot] : links) {
    if (!operand->present()) continue;
    indices_.push_back({operand->tensor, nullptr});
    *slot = &indices_.back();
  }
}

tegula_status ForwardData::problem(const tegula_forward_args& args, tegula_problem* made) const {
  tegula_problem_init(made);
  const tegula_status status = tegula_describe_forward(&args, made);
  if (status != TEGULA_OK) return status;
  made->causal = item_.causal ? 1 : 0;
  made->window_left = item_.window_left;
  made->window_right = item_.window_right;
  made->attention_chunk = item_.attention_chunk;
  made->softmax_scale = item_.softmax_scale;
  made->softcap = item_.softcap;
  made->num_splits = item_.num_splits;
  made->fixed_split = item_.fixed_split;
  return TEGULA_OK;
}

oracle::Attention ForwardData::shape_of(std::int64_t b) const {
  const auto index = static_cast<std::size_t>(b);
  oracle::Attention call;
  call.seqlen_q = item_.seqlens_q[index];
  call.seqlen_k = item_.seqlens_k[index];
  call.num_heads_q = item_.num_heads_q;
  call.num_heads_kv = item_.num_heads_kv;
  call.head_dim = item_.head_dim;
  call.head_dim_v = item_.head_dim_v;
  call.softmax_scale = item_.softmax_scale > 0.0
                           ? item_.softmax_scale
                           : 1.0 / std::sqrt(static_cast<double>(item_.head_dim));
  call.softcap = item_.softcap;
  call.causal = item_.causal;
  call.window_left = item_.window_left;
  call.window_right = item_.window_right;
  call.attention_chunk = item_.attention_chunk;
  if (!item_.leftpad_k.empty()) call.leftpad_k = item_.leftpad_k[index];
  return call;
}

double ForwardData::descale(const Operand& operand, std::int64_t b, std::int64_t head_kv) const {
  if (!operand.present()) return 1.0;
  if (item_.descale == PerHead::kBatchHeads) return operand.get(b, head_kv);
  return item_.descale == PerHead::kHeads ? operand.get(head_kv) : operand.get(0);
}

oracle::Attention ForwardData::attention(std::int64_t b, double p_underflow) const {
  oracle::Attention call = shape_of(b);
  call.p_underflow = p_underflow;
  const std::int64_t ratio = item_.num_heads_q / item_.num_heads_kv;
  for (std::int64_t i = 0; i < call.seqlen_q; ++i) {
    const Place place = place_q(b, i);
    for (std::int64_t h = 0; h < call.num_heads_q; ++h) {
      const double factor = descale(descale_q, b, h / ratio);
      for (std::int64_t d = 0; d < call.head_dim; ++d) {
        call.q.push_back(factor * (item_.ragged_q ? q.get(place.token, h, d)
                                                  : q.get(place.outer, place.token, h, d)));
      }
    }
  }
  const bool ragged = item_.layout_k == LayoutK::kRagged;
  const auto gather = [&](const Operand& operand, const Operand& scale, std::int64_t dims,
                          std::vector<double>& rows) {
    rows.assign(static_cast<std::size_t>(call.seqlen_k * call.num_heads_kv * dims),
                std::numeric_limits<double>::quiet_NaN());
    for (std::int64_t j = 0; j < call.seqlen_k; ++j) {
      if (!seen_[static_cast<std::size_t>(b)][static_cast<std::size_t>(j)]) continue;
      const Place place = place_k(b, j);
      for (std::int64_t h = 0; h < call.num_heads_kv; ++h) {
        const double factor = descale(scale, b, h);
        for (std::int64_t d = 0; d < dims; ++d) {
          rows[static_cast<std::size_t>((j * call.num_heads_kv + h) * dims + d)] =
              factor * (ragged ? operand.get(place.token, h, d)
                               : operand.get(place.outer, place.token, h, d));
        }
      }
    }
  };
  gather(k, descale_k, call.head_dim, call.k);
  gather(v, descale_v, call.head_dim_v, call.v);
  for (std::int64_t h = 0; h < call.num_heads_q; ++h) {
    if (sink.present()) call.sink.push_back(sink.get(h));
    if (alibi_slopes.present()) {
      call.alibi_slopes.push_back(item_.alibi == PerHead::kBatchHeads ? alibi_slopes.get(b, h)
                                                                      : alibi_slopes.get(h));
    }
  }
  if (bias.present()) {
    call.bias = [this, b](std::int64_t h, std::int64_t i, std::int64_t j) {
      const double x = bias.get(b, h, i, j);
      if (item_.bias_dtype != TEGULA_BOOL) return x;
      return x != 0.0 ? 0.0 : -std::numeric_limits<double>::infinity();
    };
  }
  return call;
}

}  // namespace tegula::cases
