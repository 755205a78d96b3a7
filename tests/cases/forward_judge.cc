// SPDX-License-Identifier: Apache-2.0
// Judging a forward: every element against the oracle's bound, every other byte against the pattern.
#include <cmath>
#include <cstdio>
#include <limits>

#include "tests/cases/forward_case.hpp"

namespace tegula::cases {
namespace {

std::string format(const char* what, std::int64_t b, std::int64_t i, std::int64_t h,
                   std::int64_t d, double got, double want) {
  char text[200];
  std::snprintf(text, sizeof text, "%s[b=%lld,i=%lld,h=%lld,d=%lld] = %.9g, reference %.9g", what,
                static_cast<long long>(b), static_cast<long long>(i), static_cast<long long>(h),
                static_cast<long long>(d), got, want);
  return text;
}

// Marks the bytes of one element.
void mark(std::vector<bool>& used, const Operand& operand, const std::byte* address) {
  const auto first = static_cast<std::size_t>(address - operand.memory.data());
  for (std::size_t n = 0; n < operand.element_size(); ++n) used[first + n] = true;
}

std::string first_damage(const char* name, const Operand& operand, const std::vector<bool>& used,
                         int fill) {
  for (std::size_t n = 0; n < used.size(); ++n) {
    if (!used[n] && operand.memory.data()[n] != static_cast<std::byte>(fill)) {
      return std::string(name) + ": byte " + std::to_string(n) + " of " +
             std::to_string(used.size()) + " was written and belongs to no used row";
    }
  }
  return {};
}

}  // namespace

std::string Verdict::text() const {
  if (!failure.empty()) return failure;
  char ratio[40];
  std::snprintf(ratio, sizeof ratio, "%.3g", worst);
  std::string line = std::string("worst error ") + ratio + " of the tolerance";
  if (!where.empty()) line += ": " + where;
  return line;
}

double ForwardData::o(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) const {
  const Place place = place_q(b, i);
  return item_.ragged_q ? out.get(place.token, h, d) : out.get(place.outer, place.token, h, d);
}

double ForwardData::lse(std::int64_t b, std::int64_t i, std::int64_t h) const {
  const Place place = place_q(b, i);
  return item_.ragged_q ? log_sum_exp.get(h, place.token)
                        : log_sum_exp.get(place.outer, h, place.token);
}

void ForwardData::set_o(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d,
                        double value) {
  const Place place = place_q(b, i);
  if (item_.ragged_q) {
    out.set(value, place.token, h, d);
  } else {
    out.set(value, place.outer, place.token, h, d);
  }
}

void ForwardData::set_lse(std::int64_t b, std::int64_t i, std::int64_t h, double value) {
  const Place place = place_q(b, i);
  if (item_.ragged_q) {
    log_sum_exp.set(value, h, place.token);
  } else {
    log_sum_exp.set(value, place.outer, h, place.token);
  }
}

bool ForwardData::undefined(std::int64_t b, std::int64_t, std::int64_t h) const {
  const std::int64_t ratio = item_.num_heads_q / item_.num_heads_kv;
  return item_.values == Values::kNanK && b == 0 && h / ratio == item_.num_heads_kv - 1;
}

std::string ForwardData::damage() const {
  std::vector<bool> used_o(out.memory.size(), false);
  std::vector<bool> used_lse(log_sum_exp.memory.size(), false);
  for (std::int64_t b = 0; b < item_.batch(); ++b) {
    for (std::int64_t i = 0; i < used_q(b); ++i) {
      const Place place = place_q(b, i);
      for (std::int64_t h = 0; h < item_.num_heads_q; ++h) {
        for (std::int64_t d = 0; d < item_.head_dim_v; ++d) {
          mark(used_o, out,
               item_.ragged_q ? out.at(place.token, h, d) : out.at(place.outer, place.token, h, d));
        }
        if (item_.lse) {
          mark(used_lse, log_sum_exp,
               item_.ragged_q ? log_sum_exp.at(h, place.token)
                              : log_sum_exp.at(place.outer, h, place.token));
        }
      }
    }
  }
  std::string text = first_damage("o", out, used_o, output_fill_);
  if (text.empty()) text = first_damage("lse", log_sum_exp, used_lse, output_fill_);
  return text;
}

std::string ForwardData::untouched() const {
  for (const Operand* operand : {&out, &log_sum_exp}) {
    if (!operand->memory.filled_with(output_fill_)) return "an output was written by a refused call";
  }
  return {};
}

std::vector<std::byte> ForwardData::used_bits() const {
  std::vector<std::byte> bits;
  const auto add = [&bits](const Operand& operand, const std::byte* address, std::int64_t count) {
    bits.insert(bits.end(), address,
                address + static_cast<std::size_t>(count) * operand.element_size());
  };
  for (std::int64_t b = 0; b < item_.batch(); ++b) {
    for (std::int64_t i = 0; i < used_q(b); ++i) {
      const Place place = place_q(b, i);
      for (std::int64_t h = 0; h < item_.num_heads_q; ++h) {
        if (undefined(b, i, h)) continue;
        add(out, item_.ragged_q ? out.at(place.token, h) : out.at(place.outer, place.token, h),
            item_.head_dim_v);
        if (item_.lse) {
          add(log_sum_exp,
              item_.ragged_q ? log_sum_exp.at(h, place.token)
                             : log_sum_exp.at(place.outer, h, place.token),
              1);
        }
      }
    }
  }
  return bits;
}

void ForwardData::refill_outputs(int fill) {
  output_fill_ = fill;
  out.memory.fill(fill);
  log_sum_exp.memory.fill(fill);
}

ForwardReference::ForwardReference(const ForwardData& data, oracle::DeviceClass device)
    : limits_(oracle::limits_for(device, format_of(data.item().q_dtype))),
      num_heads_q_(data.item().num_heads_q) {
  for (std::int64_t b = 0; b < data.item().batch(); ++b) {
    const oracle::Attention call = data.attention(b, limits_.p_underflow);
    std::vector<oracle::Row> rows;
    for (std::int64_t i = 0; i < call.seqlen_q; ++i) {
      for (std::int64_t h = 0; h < call.num_heads_q; ++h) {
        rows.push_back(data.undefined(b, i, h) ? oracle::Row{} : oracle::attend_row(call, i, h));
      }
    }
    rows_.push_back(std::move(rows));
  }
}

const oracle::Row& ForwardReference::row(std::int64_t b, std::int64_t i, std::int64_t h) const {
  return rows_[static_cast<std::size_t>(b)][static_cast<std::size_t>(i * num_heads_q_ + h)];
}

Verdict ForwardReference::judge(const ForwardData& data) const {
  const Case& item = data.item();
  const oracle::Format o_format = format_of(item.o_dtype);
  Verdict verdict;
  verdict.failure = data.damage();
  const auto note = [&verdict](double ratio, const char* what, std::int64_t b, std::int64_t i,
                               std::int64_t h, std::int64_t d, double got, double want) {
    if (!(ratio <= verdict.worst)) {
      verdict.worst = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
      verdict.where = format(what, b, i, h, d, got, want);
    }
  };
  for (std::int64_t b = 0; b < item.batch(); ++b) {
    for (std::int64_t i = 0; i < data.used_q(b); ++i) {
      for (std::int64_t h = 0; h < item.num_heads_q; ++h) {
        if (data.undefined(b, i, h)) continue;
        const oracle::Row& reference = row(b, i, h);
        for (std::int64_t d = 0; d < item.head_dim_v; ++d) {
          const double got = data.o(b, i, h, d);
          note(oracle::o_ratio(limits_, reference, d, o_format, got), "o", b, i, h, d, got,
               reference.o[static_cast<std::size_t>(d)]);
        }
        if (item.lse) {
          const double got = data.lse(b, i, h);
          note(oracle::lse_ratio(limits_, reference, got), "lse", b, i, h, 0, got, reference.lse);
        }
      }
    }
  }
  return verdict;
}

}  // namespace tegula::cases
