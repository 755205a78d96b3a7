// SPDX-License-Identifier: Apache-2.0
// A forward case's operands beside q, k and v: lengths, sink, slopes, bias, descales.
#include <cmath>
#include <limits>
#include <utility>

#include "tests/cases/forward_case.hpp"
#include "tests/cases/forward_streams.hpp"
#include "tests/cases/random.hpp"

namespace tegula::cases {

using namespace forward_streams;

void ForwardData::make_extras(Placement placement) {
  const std::int64_t batch = item_.batch();
  const std::int64_t heads = item_.num_heads_q;
  if (item_.seqused_k) {
    std::vector<std::int64_t> before = item_.seqlens_k;
    if (item_.new_tokens != NewTokens::kNone) {
      for (std::size_t b = 0; b < before.size(); ++b) before[b] -= item_.seqlens_new[b];
    }
    seqused_k = make_index(before, TEGULA_I32, placement);
  }
  if (item_.new_tokens == NewTokens::kCu) {
    std::vector<std::int64_t> starts{0};
    for (const std::int64_t length : item_.seqlens_new) starts.push_back(starts.back() + length);
    cu_seqlens_new = make_index(starts, TEGULA_I32, placement);
  }
  if (!item_.leftpad_k.empty()) leftpad_k = make_index(item_.leftpad_k, TEGULA_I32, placement);
  if (item_.sink) {
    // Every fourth head has no sink, every fourth one that outweighs the keys.
    std::vector<double> values;
    for (std::int64_t h = 0; h < heads; ++h) {
      double s = value(stream_seed(item_.seed, kSink), static_cast<std::uint64_t>(h), 1);
      if (h % 4 == 2) s = -std::numeric_limits<double>::infinity();
      if (h % 4 == 3) s = 20.0;
      values.push_back(s);
    }
    sink = make_floats(values, {heads}, {1}, placement);
  }
  if (item_.alibi != PerHead::kNone) {
    const bool per_batch = item_.alibi == PerHead::kBatchHeads;
    std::vector<double> values;
    for (std::int64_t n = 0; n < (per_batch ? batch * heads : heads); ++n) {
      values.push_back(std::ldexp(1.0, -1 - static_cast<int>(n % 8)));
    }
    alibi_slopes = per_batch ? make_floats(values, {batch, heads}, {heads + 1, 1}, placement)
                             : make_floats(values, {heads}, {1}, placement);
  }
}

void ForwardData::make_bias(Placement placement) {
  if (item_.bias_dtype == TEGULA_DTYPE_NONE) return;
  // Dense: the tensor's lengths. Else the longest used ones.
  const std::int64_t shape[4] = {
      item_.batch(), item_.num_heads_q, item_.ragged_q ? longest(item_.seqlens_q) : q.tensor.shape[1],
      item_.layout_k == LayoutK::kDense ? k.tensor.shape[1] : longest(item_.seqlens_k)};
  std::vector<std::int64_t> strides(4, 0);
  std::int64_t extent = 1;
  for (int n = 3; n >= 0; --n) {
    if (item_.bias_broadcast.find("bhqk"[n]) != std::string::npos) continue;
    strides[static_cast<std::size_t>(n)] = extent;
    extent *= shape[n];
  }
  bias = make_operand(item_.bias_dtype, {shape[0], shape[1], shape[2], shape[3]}, strides, 0,
                      placement, kPoison);
  const std::uint64_t seed = stream_seed(item_.seed, kBias);
  for (std::int64_t b = 0; b < item_.batch(); ++b) {
    for (std::int64_t h = 0; h < item_.num_heads_q; ++h) {
      for (std::int64_t i = 0; i < used_q(b); ++i) {
        const std::int64_t row = (b * item_.num_heads_q + h) * shape[2] + i;
        for (std::int64_t j = 0; j < item_.seqlens_k[static_cast<std::size_t>(b)]; ++j) {
          const auto index = static_cast<std::uint64_t>(row * shape[3] + j);
          // One entry in eight hides its key, and so does every entry of one row in sixteen.
          const bool hidden = splitmix64(seed ^ 1, index) % 8 == 0 ||
                              splitmix64(seed ^ 2, static_cast<std::uint64_t>(row)) % 16 == 0;
          if (item_.bias_dtype == TEGULA_BOOL) {
            bias.set(hidden ? 0.0 : 1.0, b, h, i, j);
          } else {
            bias.set(hidden ? -std::numeric_limits<double>::infinity() : value(seed, index, 0), b, h,
                     i, j);
          }
        }
      }
    }
  }
}

void ForwardData::make_descales(Placement placement) {
  if (item_.descale == PerHead::kNone) return;
  const auto make = [&](Stream stream) {
    const std::int64_t heads = item_.num_heads_kv;
    const std::int64_t batch = item_.batch();
    const auto draw = [&](std::int64_t n) {
      // 0.25 to 1.25 in steps of 1/64; some negative, a few zero.
      const std::uint64_t bits =
          splitmix64(stream_seed(item_.seed, stream), static_cast<std::uint64_t>(n));
      if (bits >> 60 == 0) return 0.0;
      const double magnitude = 0.25 + static_cast<double>(bits % 65) / 64.0;
      return bits >> 62 == 1 ? -magnitude : magnitude;
    };
    std::vector<double> values;
    const bool stay = item_.descale_expanded;
    std::int64_t count = 1;
    if (item_.descale == PerHead::kHeads) count = heads;
    if (item_.descale == PerHead::kBatchHeads) count = batch * heads;
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t head = item_.descale == PerHead::kBatchHeads ? n % heads : 0;
      values.push_back(draw(stay ? head : n));
    }
    if (item_.descale == PerHead::kOne) return make_floats(values, {1}, {1}, placement);
    if (item_.descale == PerHead::kHeads) {
      return make_floats(values, {heads}, {stay ? 0 : 2}, placement);
    }
    return make_floats(values, {batch, heads}, {stay ? 0 : heads + 1, 1}, placement);
  };
  if (tegula_dtype_size(item_.q_dtype) == 1) descale_q = make(kDescaleQ);
  descale_k = make(kDescaleK);
  descale_v = make(kDescaleV);
}

}  // namespace tegula::cases
