// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/append_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "tests/cases/random.hpp"
#include "tests/oracle/oracle.hpp"

namespace tegula::cases {
namespace {

enum Stream : std::uint64_t { kK = 21, kV, kQ, kCos, kSin, kDescaleK, kDescaleV, kPages, kPositions };

constexpr std::int64_t kMaxPosition = 640;

void put_bits(std::vector<std::byte>& image, const Operand& operand, const std::byte* address,
              std::uint32_t bits) {
  const auto first = static_cast<std::size_t>(address - operand.memory.data());
  for (std::size_t n = 0; n < operand.element_size(); ++n) {
    image[first + n] = static_cast<std::byte>((bits >> (8 * n)) & 0xffu);
  }
}

// Differences that matter: NaN may have any payload.
std::string first_difference(const char* name, const Operand& operand,
                             const std::vector<std::byte>& expected) {
  const std::size_t size = operand.element_size();
  for (std::size_t n = 0; n < expected.size(); n += size) {
    const std::byte* got = operand.memory.data() + n;
    if (std::memcmp(got, expected.data() + n, size) == 0) continue;
    const double a = oracle::load(format_of(operand.dtype), got);
    const double b = oracle::load(format_of(operand.dtype), expected.data() + n);
    if (std::isnan(a) && std::isnan(b)) continue;
    return std::string(name) + ": element " + std::to_string(n / size) + " of its memory is " +
           std::to_string(a) + ", must be " + std::to_string(b);
  }
  return {};
}

}  // namespace

AppendData::AppendData(const Case& item, Placement placement, int output_fill) : item_(item) {
  starts_.push_back(0);
  for (const std::int64_t length : item_.seqlens_new) starts_.push_back(starts_.back() + length);
  make_new_rows(placement);
  make_cache(placement, output_fill);
  make_rotary(placement);
  before_k_ = k_cache.memory.copy();
  before_v_ = v_cache.memory.copy();
  before_q_ = q_out.memory.copy();
  compute_expected();
  connect();
}

AppendData::Place AppendData::place_new(std::int64_t b, std::int64_t t) const {
  if (item_.new_tokens == NewTokens::kCu) return {-1, row_of(b, t)};
  return {b, t};
}

AppendData::Place AppendData::place_cache(std::int64_t b, std::int64_t position) const {
  if (!item_.paged()) return {b, position};
  return {pages_[static_cast<std::size_t>(b)][static_cast<std::size_t>(position / item_.page_size)],
          position % item_.page_size};
}

std::int64_t AppendData::row_of(std::int64_t b, std::int64_t t) const {
  return starts_[static_cast<std::size_t>(b)] + t;
}

std::int64_t AppendData::position_of(std::int64_t b, std::int64_t t) const {
  const auto index = static_cast<std::size_t>(b);
  return item_.seqlens_k[index] - item_.seqlens_new[index] + t;
}

bool AppendData::skipped(std::int64_t row) const { return item_.skip_slots && row % 3 == 1; }

void AppendData::make_new_rows(Placement placement) {
  const bool ragged = item_.new_tokens == NewTokens::kCu;
  const std::int64_t outer = ragged ? -1 : item_.batch();
  const std::int64_t tokens =
      ragged ? starts_.back() : (item_.seqlens_new.empty() ? 0 : item_.seqlens_new[0]);
  const auto fill = [&](const Operand& operand, std::int64_t heads, std::int64_t dim,
                        Stream stream) {
    const std::uint64_t seed = stream_seed(item_.seed, stream);
    for (std::int64_t b = 0; b < item_.batch(); ++b) {
      for (std::int64_t t = 0; t < item_.seqlens_new[static_cast<std::size_t>(b)]; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t d = 0; d < dim; ++d) {
            const std::int64_t index = (row_of(b, t) * heads + h) * dim + d;
            // Large: beyond every 8-bit range, so that stores saturate; some denormal and zero.
            int scale = 0;
            if (item_.values == Values::kLarge) scale = static_cast<int>(index % 5) * 8 - 16;
            double x = value(seed, static_cast<std::uint64_t>(index), scale);
            if (item_.values == Values::kSpecial) {
              const double infinity = std::numeric_limits<double>::infinity();
              if (index % 7 == 0) x = std::numeric_limits<double>::quiet_NaN();
              if (index % 7 == 1) x = index % 2 == 0 ? infinity : -infinity;
              if (index % 7 > 2) x = std::ldexp(x, -133 - static_cast<int>(index % 5));
            }
            const Place place = place_new(b, t);
            if (place.outer < 0) {
              operand.set(x, place.token, h, d);
            } else {
              operand.set(x, place.outer, place.token, h, d);
            }
          }
        }
      }
    }
  };
  k_new = make_tokens(item_.new_dtype, outer, tokens, item_.num_heads_kv, item_.head_dim,
                      item_.strides_q, placement, kPoison);
  v_new = make_tokens(item_.new_dtype, outer, tokens, item_.num_heads_kv, item_.head_dim_v,
                      item_.strides_q, placement, kPoison);
  fill(k_new, item_.num_heads_kv, item_.head_dim, kK);
  fill(v_new, item_.num_heads_kv, item_.head_dim_v, kV);
  if (ragged) cu_seqlens_new = make_index(starts_, TEGULA_I32, placement);
  if (item_.rotate_q.empty()) return;
  q = make_tokens(item_.new_dtype, outer, tokens, item_.num_heads_q, item_.head_dim,
                  item_.strides_q, placement, kPoison);
  fill(q, item_.num_heads_q, item_.head_dim, kQ);
  q_out = item_.rotate_q == "in_place"
              ? q
              : make_tokens(item_.new_dtype, outer, tokens, item_.num_heads_q, item_.head_dim,
                            item_.strides_o, placement, 0x5a);
}

void AppendData::make_cache(Placement placement, int fill) {
  const std::int64_t batch = item_.batch();
  std::int64_t capacity = 0;
  for (const std::int64_t length : item_.seqlens_k) capacity = std::max(capacity, length);
  capacity += item_.slack_k;
  std::int64_t outer = batch;
  std::int64_t tokens = capacity;
  if (item_.paged()) {
    const std::uint64_t seed = stream_seed(item_.seed, kPages);
    const auto count_of = [this](std::int64_t b) {
      return (item_.seqlens_k[static_cast<std::size_t>(b)] + item_.page_size - 1) / item_.page_size;
    };
    outer = 2;
    std::int64_t max_pages = 1;
    for (std::int64_t b = 0; b < batch; ++b) {
      outer += count_of(b);
      max_pages = std::max(max_pages, count_of(b) + 1);
    }
    std::vector<std::int64_t> pool(static_cast<std::size_t>(outer));
    std::iota(pool.begin(), pool.end(), 0);
    for (std::size_t i = pool.size(); i-- > 1;) {
      std::swap(pool[i], pool[splitmix64(seed, i) % (i + 1)]);
    }
    std::size_t next = 0;
    std::vector<std::int64_t> flat;
    std::vector<std::int64_t> indptr{0};
    for (std::int64_t b = 0; b < batch; ++b) {
      pages_.emplace_back();
      for (std::int64_t n = 0; n < count_of(b); ++n) pages_.back().push_back(pool[next++]);
      flat.insert(flat.end(), pages_.back().begin(), pages_.back().end());
      indptr.push_back(static_cast<std::int64_t>(flat.size()));
    }
    tokens = item_.page_size;
    if (item_.layout_k == LayoutK::kPageIndices) {
      page_indices = make_index(flat, TEGULA_I32, placement);
      page_indptr = make_index(indptr, TEGULA_I32, placement);
    } else if (!item_.slot_mapping) {
      page_table = make_operand(TEGULA_I32, {batch, max_pages}, {max_pages + 1, 1}, 0, placement,
                                kPoison);
      for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t n = 0; n < count_of(b); ++n) {
          page_table.set(
              static_cast<double>(pages_[static_cast<std::size_t>(b)][static_cast<std::size_t>(n)]),
              b, n);
        }
      }
    }
  }
  k_cache = make_tokens(item_.kv_dtype, outer, tokens, item_.num_heads_kv, item_.head_dim,
                        item_.strides_k, placement, fill);
  v_cache = make_tokens(item_.kv_dtype, outer, tokens, item_.num_heads_kv, item_.head_dim_v,
                        item_.strides_v, placement, fill);
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> slots;
  for (std::int64_t b = 0; b < batch; ++b) {
    lengths.push_back(position_of(b, 0));
    for (std::int64_t t = 0; t < item_.seqlens_new[static_cast<std::size_t>(b)]; ++t) {
      const Place place = place_cache(b, position_of(b, t));
      slots.push_back(skipped(row_of(b, t)) ? -1 - t : place.outer * tokens + place.token);
    }
  }
  seqused_k = make_index(lengths, TEGULA_I32, placement);
  if (item_.slot_mapping) slot_mapping = make_index(slots, TEGULA_I64, placement);
}

void AppendData::make_rotary(Placement placement) {
  if (item_.rotary_dim > 0) {
    const std::int64_t half = item_.rotary_dim / 2;
    const tegula_dtype dtype = item_.rotary_f32 ? TEGULA_F32 : item_.new_dtype;
    const auto make = [&](Stream stream) {
      Operand operand =
          make_operand(dtype, {kMaxPosition, half}, {half + 1, 1}, 0, placement, kPoison);
      for (std::int64_t p = 0; p < kMaxPosition; ++p) {
        for (std::int64_t t = 0; t < half; ++t) {
          operand.set(value(stream_seed(item_.seed, stream), static_cast<std::uint64_t>(p * half + t),
                            -1),
                      p, t);
        }
      }
      return operand;
    };
    cos = make(kCos);
    sin = make(kSin);
    if (item_.positions) {
      std::vector<std::int64_t> list;
      for (std::int64_t row = 0; row < starts_.back(); ++row) {
        list.push_back(static_cast<std::int64_t>(
            splitmix64(stream_seed(item_.seed, kPositions), static_cast<std::uint64_t>(row)) %
            kMaxPosition));
      }
      positions = make_index(list, TEGULA_I32, placement);
    }
  }
  if (item_.descale != PerHead::kNone) {
    const std::int64_t heads = item_.num_heads_kv;
    const auto make = [&](Stream stream) {
      std::int64_t count = 1;
      if (item_.descale == PerHead::kHeads) count = heads;
      if (item_.descale == PerHead::kBatchHeads) count = item_.batch() * heads;
      std::vector<double> values;
      for (std::int64_t n = 0; n < count; ++n) {
        // No power of two: the quotient must be rounded.
        const auto draw = splitmix64(stream_seed(item_.seed, stream), static_cast<std::uint64_t>(n));
        const double descale = static_cast<double>(1 + draw % 97) / 64.0;
        // A denormal one: the quotient of two denormals is an ordinary number.
        values.push_back(item_.values == Values::kSpecial ? std::ldexp(descale, -130) : descale);
      }
      if (item_.descale == PerHead::kOne) return make_floats(values, {1}, {1}, placement);
      if (item_.descale == PerHead::kHeads) return make_floats(values, {heads}, {1}, placement);
      return make_floats(values, {item_.batch(), heads}, {heads, 1}, placement);
    };
    descale_k = make(kDescaleK);
    descale_v = make(kDescaleV);
  }
}

std::vector<float> AppendData::row_values(const Operand& operand, std::int64_t b, std::int64_t t,
                                          std::int64_t head, std::int64_t dim,
                                          bool rotated) const {
  std::vector<float> row;
  const Place place = place_new(b, t);
  for (std::int64_t d = 0; d < dim; ++d) {
    row.push_back(static_cast<float>(place.outer < 0 ? operand.get(place.token, head, d)
                                                     : operand.get(place.outer, place.token, head, d)));
  }
  if (rotated && item_.rotary_dim > 0) {
    const std::int64_t position = item_.positions
                                      ? static_cast<std::int64_t>(positions.get(row_of(b, t)))
                                      : position_of(b, t);
    std::vector<float> cos_row;
    std::vector<float> sin_row;
    for (std::int64_t n = 0; n < item_.rotary_dim / 2; ++n) {
      cos_row.push_back(static_cast<float>(cos.get(position, n)));
      sin_row.push_back(static_cast<float>(sin.get(position, n)));
    }
    oracle::rotate(row, cos_row.data(), sin_row.data(), item_.rotary_dim, item_.interleaved);
  }
  return row;
}

void AppendData::compute_expected() {
  expected_k_ = before_k_;
  expected_v_ = before_v_;
  expected_q_ = before_q_;
  const auto factor = [this](const Operand& operand, std::int64_t b, std::int64_t h) {
    if (!operand.present()) return 1.0f;
    if (item_.descale == PerHead::kBatchHeads) return static_cast<float>(operand.get(b, h));
    return static_cast<float>(operand.get(item_.descale == PerHead::kHeads ? h : 0));
  };
  const auto store_row = [&](std::vector<std::byte>& image, const Operand& cache,
                             const std::vector<float>& row, const Place& place, std::int64_t head,
                             float scale) {
    for (std::size_t d = 0; d < row.size(); ++d) {
      const auto column = static_cast<std::int64_t>(d);
      const std::byte* address = place.outer < 0
                                     ? cache.at(place.token, head, column)
                                     : cache.at(place.outer, place.token, head, column);
      put_bits(image, cache, address, oracle::cache_bits(format_of(cache.dtype), row[d], scale));
    }
  };
  for (std::int64_t b = 0; b < item_.batch(); ++b) {
    for (std::int64_t t = 0; t < item_.seqlens_new[static_cast<std::size_t>(b)]; ++t) {
      if (!item_.rotate_q.empty()) {
        for (std::int64_t h = 0; h < item_.num_heads_q; ++h) {
          store_row(expected_q_, q_out, row_values(q, b, t, h, item_.head_dim, true),
                    place_new(b, t), h, 1.0f);
        }
      }
      if (skipped(row_of(b, t))) continue;
      const Place place = place_cache(b, position_of(b, t));
      for (std::int64_t h = 0; h < item_.num_heads_kv; ++h) {
        store_row(expected_k_, k_cache, row_values(k_new, b, t, h, item_.head_dim, true), place, h,
                  factor(descale_k, b, h));
        store_row(expected_v_, v_cache, row_values(v_new, b, t, h, item_.head_dim_v, false), place,
                  h, factor(descale_v, b, h));
      }
    }
  }
}

void AppendData::claim_gpu(std::int32_t index) {
  const auto claim = [index](tegula_tensor& tensor) {
    tensor.device_kind = TEGULA_CUDA;
    tensor.device_index = index;
  };
  for (Operand* operand : {&k_new, &v_new, &k_cache, &v_cache, &q, &q_out, &cos, &sin, &descale_k,
                           &descale_v}) {
    claim(operand->tensor);
  }
  for (tegula_index& entry : indices_) claim(entry.tensor);
}

void AppendData::connect() {
  tegula_append_kv_args_init(&args_);
  args_.k_new = k_new.pointer();
  args_.v_new = v_new.pointer();
  args_.k_cache = k_cache.pointer();
  args_.v_cache = v_cache.pointer();
  args_.cos = cos.pointer();
  args_.sin = sin.pointer();
  args_.rotary_style = item_.interleaved ? TEGULA_ROTARY_INTERLEAVED : TEGULA_ROTARY_HALF_SPLIT;
  args_.q = q.pointer();
  args_.q_out = q_out.pointer();
  args_.descale_k = descale_k.pointer();
  args_.descale_v = descale_v.pointer();
  const std::pair<const Operand*, const tegula_index**> links[] = {
      {&cu_seqlens_new, &args_.cu_seqlens_new}, {&seqused_k, &args_.seqused_k},
      {&page_table, &args_.page_table},         {&page_indices, &args_.page_indices},
      {&page_indptr, &args_.page_indptr},       {&slot_mapping, &args_.slot_mapping},
      {&positions, &args_.positions}};
  indices_.reserve(std::size(links));
  for (const auto& [operand, slot] : links) {
    if (!operand->present()) continue;
    indices_.push_back({operand->tensor, nullptr});
    *slot = &indices_.back();
  }
}

std::string AppendData::judge() const {
  std::string text = first_difference("k_cache", k_cache, expected_k_);
  if (text.empty()) text = first_difference("v_cache", v_cache, expected_v_);
  if (text.empty() && q_out.present()) text = first_difference("q_out", q_out, expected_q_);
  return text;
}

std::string AppendData::untouched() const {
  if (!k_cache.memory.equals(before_k_)) return "k_cache was written by a refused call";
  if (!v_cache.memory.equals(before_v_)) return "v_cache was written by a refused call";
  if (!q_out.memory.equals(before_q_)) return "q_out was written by a refused call";
  return {};
}

}  // namespace tegula::cases
