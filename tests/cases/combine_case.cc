// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/combine_case.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>

#include "tests/cases/random.hpp"

namespace tegula::cases {
namespace {

enum Stream : std::uint64_t { kO = 41, kLse, kSink, kEmpty };

constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace

void CombineData::claim_gpu(std::int32_t index) {
  for (Operand* operand : {&o_partial, &lse_partial, &out, &log_sum_exp, &sink}) {
    operand->tensor.device_kind = TEGULA_CUDA;
    operand->tensor.device_index = index;
  }
}

CombineData::CombineData(const Case& item, Placement placement, int output_fill)
    : item_(item), output_fill_(output_fill) {
  const std::int64_t splits = item_.num_splits;
  const std::int64_t heads = item_.num_heads_q;
  const std::int64_t dim = item_.head_dim_v;
  const std::int64_t batch = item_.batch();
  tokens_ = item_.ragged_q
                ? std::accumulate(item_.seqlens_q.begin(), item_.seqlens_q.end(), std::int64_t{0})
                : (batch > 0 ? item_.seqlens_q[0] : 0);
  // The inner strides of one split, then a gap before the next one.
  const Operand inner =
      make_tokens(item_.q_dtype, item_.ragged_q ? -1 : batch, tokens_, heads, dim, item_.strides_q,
                  Placement::kAligned, 0);
  std::vector<std::int64_t> shape{splits};
  std::int64_t extent = 13;
  for (int n = 0; n < inner.tensor.ndim; ++n) {
    shape.push_back(inner.tensor.shape[n]);
    if (inner.tensor.shape[n] > 1) extent += (inner.tensor.shape[n] - 1) * inner.tensor.strides[n];
  }
  std::vector<std::int64_t> strides{extent};
  for (int n = 0; n < inner.tensor.ndim; ++n) strides.push_back(inner.tensor.strides[n]);
  o_partial = make_operand(item_.q_dtype, shape, strides, inner.offset, placement, kPoison);

  const std::int64_t row = item_.strides_lse == Strides::kPadded ? tokens_ + 3 : tokens_;
  if (item_.ragged_q) {
    lse_partial = make_operand(TEGULA_F32, {splits, heads, tokens_}, {heads * row + 2, row, 1}, 0,
                               placement, kPoison);
  } else {
    lse_partial =
        make_operand(TEGULA_F32, {splits, batch, heads, tokens_},
                     {batch * heads * row + 2, heads * row, row, 1}, 0, placement, kPoison);
  }
  out = make_tokens(item_.o_dtype, item_.ragged_q ? -1 : batch, tokens_, heads, dim,
                    item_.strides_o, placement, output_fill);
  if (item_.lse) {
    log_sum_exp = make_packed(TEGULA_F32,
                              item_.ragged_q ? std::vector<std::int64_t>{heads, tokens_}
                                             : std::vector<std::int64_t>{batch, heads, tokens_},
                              placement, output_fill);
  }
  if (item_.sink) {
    std::vector<double> values;
    for (std::int64_t h = 0; h < heads; ++h) {
      values.push_back(h % 3 == 2 ? -kInf
                                  : value(stream_seed(item_.seed, kSink),
                                          static_cast<std::uint64_t>(h), 1));
    }
    sink = make_floats(values, {heads}, {1}, placement);
  }

  each_row([&](std::int64_t b, std::int64_t i, std::int64_t h) {
    for (std::int64_t s = 0; s < splits; ++s) {
      const auto index =
          static_cast<std::uint64_t>(((s * outer() + b) * tokens_ + i) * heads + h);
      const std::uint64_t draw = splitmix64(stream_seed(item_.seed, kEmpty), index);
      const bool empty = item_.empty_partials == "all" ||
                         (!item_.empty_partials.empty() && draw % 3 == 0);
      const double empty_lse = item_.empty_partials == "plus_inf" && draw % 2 == 0 ? kInf : -kInf;
      const double lse = empty ? empty_lse : value(stream_seed(item_.seed, kLse), index, 2);
      if (item_.ragged_q) {
        lse_partial.set(lse, s, h, i);
      } else {
        lse_partial.set(lse, s, b, h, i);
      }
      if (empty) continue;  // its o stays NaN
      for (std::int64_t d = 0; d < dim; ++d) {
        const double x = value(stream_seed(item_.seed, kO),
                               index * static_cast<std::uint64_t>(dim) +
                                   static_cast<std::uint64_t>(d), 0);
        if (item_.ragged_q) {
          o_partial.set(x, s, i, h, d);
        } else {
          o_partial.set(x, s, b, i, h, d);
        }
      }
    }
  });

  tegula_combine_args_init(&args_);
  args_.o_partial = o_partial.pointer();
  args_.lse_partial = lse_partial.pointer();
  args_.o = out.pointer();
  args_.lse = log_sum_exp.pointer();
  args_.sink = sink.pointer();
}

template <typename Visit>
void CombineData::each_row(Visit visit) const {
  for (std::int64_t b = 0; b < outer(); ++b) {
    for (std::int64_t i = 0; i < tokens_; ++i) {
      for (std::int64_t h = 0; h < item_.num_heads_q; ++h) visit(b, i, h);
    }
  }
}

std::byte* CombineData::address_o(std::int64_t b, std::int64_t i, std::int64_t h,
                                  std::int64_t d) const {
  return item_.ragged_q ? out.at(i, h, d) : out.at(b, i, h, d);
}

std::byte* CombineData::address_lse(std::int64_t b, std::int64_t i, std::int64_t h) const {
  return item_.ragged_q ? log_sum_exp.at(h, i) : log_sum_exp.at(b, h, i);
}

Verdict CombineData::judge() const {
  Verdict verdict;
  std::vector<bool> used(out.memory.size(), false);
  const auto note = [&verdict](double ratio, const char* what, std::int64_t b, std::int64_t i,
                               std::int64_t h, std::int64_t d, double got, double want) {
    if (ratio <= verdict.worst) return;
    char text[200];
    std::snprintf(text, sizeof text, "%s[b=%lld,i=%lld,h=%lld,d=%lld] = %.9g, reference %.9g", what,
                  static_cast<long long>(b), static_cast<long long>(i), static_cast<long long>(h),
                  static_cast<long long>(d), got, want);
    verdict.worst = ratio;
    verdict.where = text;
  };
  each_row([&](std::int64_t b, std::int64_t i, std::int64_t h) {
    oracle::Partials partials;
    partials.has_sink = item_.sink;
    if (item_.sink) partials.sink = sink.get(h);
    for (std::int64_t s = 0; s < item_.num_splits; ++s) {
      partials.lse.push_back(item_.ragged_q ? lse_partial.get(s, h, i) : lse_partial.get(s, b, h, i));
      std::vector<double> row;
      for (std::int64_t d = 0; d < item_.head_dim_v; ++d) {
        row.push_back(item_.ragged_q ? o_partial.get(s, i, h, d) : o_partial.get(s, b, i, h, d));
      }
      partials.o.push_back(std::move(row));
    }
    const oracle::Combined reference = oracle::combine_row(partials);
    for (std::int64_t d = 0; d < item_.head_dim_v; ++d) {
      const std::byte* address = address_o(b, i, h, d);
      const double got = oracle::load(format_of(item_.o_dtype), address);
      const auto first = static_cast<std::size_t>(address - out.memory.data());
      for (std::size_t n = 0; n < out.element_size(); ++n) used[first + n] = true;
      note(oracle::combine_o_ratio(reference, d, format_of(item_.o_dtype), got), "o", b, i, h, d, got,
           reference.o[static_cast<std::size_t>(d)]);
    }
    if (item_.lse) {
      float got = 0;
      std::memcpy(&got, address_lse(b, i, h), sizeof got);
      note(oracle::combine_lse_ratio(reference, static_cast<double>(got)), "lse", b, i, h, 0,
           static_cast<double>(got), reference.lse);
    }
  });
  for (std::size_t n = 0; n < used.size(); ++n) {
    if (!used[n] && out.memory.data()[n] != static_cast<std::byte>(output_fill_)) {
      verdict.failure = "o: byte " + std::to_string(n) + " was written and belongs to no row";
      break;
    }
  }
  return verdict;
}

std::vector<std::byte> CombineData::used_bits() const {
  std::vector<std::byte> bits;
  each_row([&](std::int64_t b, std::int64_t i, std::int64_t h) {
    const std::byte* row = address_o(b, i, h, 0);
    bits.insert(bits.end(), row,
                row + static_cast<std::size_t>(item_.head_dim_v) * out.element_size());
    if (item_.lse) {
      const std::byte* value = address_lse(b, i, h);
      bits.insert(bits.end(), value, value + 4);
    }
  });
  return bits;
}

std::string CombineData::untouched() const {
  for (const Operand* operand : {&out, &log_sum_exp}) {
    if (!operand->memory.filled_with(output_fill_)) return "an output was written by a refused call";
  }
  return {};
}

}  // namespace tegula::cases
