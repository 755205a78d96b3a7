// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tegula::oracle {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// floor(a / b) for b > 0, also for negative a.
std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

struct Score {
  std::int64_t j;
  double s;     // after scale, softcap, bias and ALiBi
  double sbar;  // scale * sum_d |q k| + |bias| + |alibi|
};

// The scores of one row over the keys that it sees.
std::vector<Score> scores_of(const Attention& call, std::int64_t i, std::int64_t head_q) {
  const std::int64_t head_kv = head_q / (call.num_heads_q / call.num_heads_kv);
  const double* q = call.q.data() + (i * call.num_heads_q + head_q) * call.head_dim;
  std::vector<Score> scores;
  for (std::int64_t j = 0; j < call.seqlen_k; ++j) {
    if (!visible(call, i, j)) continue;
    const double bias = call.bias ? call.bias(head_q, i, j) : 0.0;
    if (bias == -kInf) continue;
    const double* k = call.k.data() + (j * call.num_heads_kv + head_kv) * call.head_dim;
    double dot = 0.0;
    double dot_abs = 0.0;
    for (std::int64_t d = 0; d < call.head_dim; ++d) {
      const double product = q[d] * k[d];
      dot += product;
      dot_abs += std::fabs(product);
    }
    double s = call.softmax_scale * dot;
    double sbar = call.softmax_scale * dot_abs;
    if (call.softcap > 0.0) s = call.softcap * std::tanh(s / call.softcap);
    s += bias;
    sbar += std::fabs(bias);
    if (!call.alibi_slopes.empty()) {
      const std::int64_t distance = i + call.seqlen_k - call.seqlen_q - j;
      const double alibi = -call.alibi_slopes[static_cast<std::size_t>(head_q)] *
                           std::fabs(static_cast<double>(distance));
      s += alibi;
      sbar += std::fabs(alibi);
    }
    scores.push_back({j, s, sbar});
  }
  return scores;
}

}  // namespace

bool visible(const Attention& call, std::int64_t i, std::int64_t j) {
  const std::int64_t p = i + call.seqlen_k - call.seqlen_q;
  if (j < call.leftpad_k || j >= call.seqlen_k) return false;
  if (call.causal && j > p) return false;
  if (call.window_left >= 0 && j < p - call.window_left) return false;
  if (call.window_right >= 0 && j > p + call.window_right) return false;
  if (call.attention_chunk > 0 && floor_div(j - call.leftpad_k, call.attention_chunk) !=
                                      floor_div(p - call.leftpad_k, call.attention_chunk)) {
    return false;
  }
  return true;
}

Row attend_row(const Attention& call, std::int64_t i, std::int64_t head_q) {
  const std::int64_t head_kv = head_q / (call.num_heads_q / call.num_heads_kv);
  const auto dims = static_cast<std::size_t>(call.head_dim_v);
  Row row;
  row.o.assign(dims, 0.0);
  row.abs.assign(dims, 0.0);
  row.rms.assign(dims, 0.0);
  row.score.assign(dims, 0.0);
  row.flush.assign(dims, 0.0);
  const std::vector<Score> scores = scores_of(call, i, head_q);
  row.visible = static_cast<std::int64_t>(scores.size());
  const double sink = call.sink.empty() ? -kInf : call.sink[static_cast<std::size_t>(head_q)];
  if (scores.empty()) {
    row.lse = sink;
    return row;
  }

  double s_max = -kInf;
  bool poisoned = false;
  for (const Score& score : scores) {
    poisoned = poisoned || std::isnan(score.s);
    s_max = std::max(s_max, score.s);
  }
  const double shift = std::max(s_max, sink);
  double denominator = sink == -kInf ? 0.0 : std::exp(sink - shift);
  for (const Score& score : scores) denominator += std::exp(score.s - shift);
  row.lse = poisoned ? std::numeric_limits<double>::quiet_NaN() : shift + std::log(denominator);
  const double p_max = std::exp(s_max - shift) / denominator;
  for (const Score& score : scores) {
    const double p = std::exp(score.s - shift) / denominator;
    const double flushed = std::min(p, call.p_underflow * p_max);
    const double* v = call.v.data() + (score.j * call.num_heads_kv + head_kv) * call.head_dim_v;
    row.w += p * score.sbar;
    for (std::size_t d = 0; d < dims; ++d) {
      const double magnitude = std::fabs(v[d]);
      row.o[d] += p * v[d];
      row.abs[d] += p * magnitude;
      row.rms[d] += p * p * v[d] * v[d];
      row.score[d] += p * score.sbar * magnitude;
      row.flush[d] += flushed * magnitude;
    }
  }
  for (std::size_t d = 0; d < dims; ++d) {
    row.rms[d] = std::sqrt(row.rms[d]);
    row.score[d] += std::fabs(row.o[d]) * row.w;
  }
  return row;
}

void rotate(std::vector<float>& row, const float* cos_row, const float* sin_row,
            std::int64_t rotary_dim, bool interleaved) {
  // A product of two floats is exact in double; the cast rounds it once, whatever the compiler
  // would like to contract.
  const auto product = [](float a, float b) {
    return static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
  };
  const std::int64_t half = rotary_dim / 2;
  for (std::int64_t t = 0; t < half; ++t) {
    const auto first = static_cast<std::size_t>(interleaved ? 2 * t : t);
    const auto second = static_cast<std::size_t>(interleaved ? 2 * t + 1 : t + half);
    const float x = row[first];
    const float y = row[second];
    row[first] = std::fmaf(x, cos_row[t], -product(y, sin_row[t]));
    row[second] = std::fmaf(x, sin_row[t], product(y, cos_row[t]));
  }
}

std::uint32_t cache_bits(Format format, float x, float descale) {
  if (bytes_of(format) > 1) return encode(format, static_cast<double>(x));
  // Correctly rounded fp32 quotient: double has more than 2 * 24 + 2 bits, so rounding twice is
  // the same as rounding once for normal results; denormal quotients are below every 8-bit
  // format's smallest value and round to zero either way.
  const auto quotient = static_cast<float>(static_cast<double>(x) / static_cast<double>(descale));
  return encode(format, static_cast<double>(quotient), true);
}

}  // namespace tegula::oracle
