// SPDX-License-Identifier: Apache-2.0
// Reference attention in scalar fp64, as docs/contract.md states it, with the condition numbers
// of its section 12. Includes nothing of the library: what both share is the text alone.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/oracle/formats.hpp"

namespace tegula::oracle {

// One sequence of one call: its used rows, widened to double, 8-bit values already descaled.
struct Attention {
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t num_heads_q = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t head_dim = 1;
  std::int64_t head_dim_v = 1;
  std::vector<double> q;  // [seqlen_q, num_heads_q, head_dim]
  std::vector<double> k;  // [seqlen_k, num_heads_kv, head_dim]; rows that nothing sees: not read
  std::vector<double> v;  // [seqlen_k, num_heads_kv, head_dim_v]
  double softmax_scale = 1.0;
  double softcap = 0.0;  // 0 = none
  bool causal = false;
  std::int64_t window_left = -1;   // -1 = unlimited
  std::int64_t window_right = -1;
  std::int64_t attention_chunk = 0;  // 0 = none
  std::int64_t leftpad_k = 0;
  std::function<double(std::int64_t head, std::int64_t i, std::int64_t j)> bias;  // -inf: hidden
  std::vector<double> alibi_slopes;  // [num_heads_q] or empty
  std::vector<double> sink;          // [num_heads_q] or empty
  double p_underflow = 0.0;          // f of section 12
};

struct Row {
  double lse = 0.0;
  double w = 0.0;             // sum_j p sbar
  std::int64_t visible = 0;   // n
  std::vector<double> o;      // [head_dim_v], as are the next four
  std::vector<double> abs;    // A = sum_j p |v|
  std::vector<double> rms;    // R = sqrt(sum_j p^2 v^2)
  std::vector<double> score;  // B = sum_j p sbar |v| + |o| w
  std::vector<double> flush;  // F = sum_j min(p_j, f p_max) |v_j|
};

// Position mask alone (causal, window, chunk, leftpad), without the bias.
bool visible(const Attention& call, std::int64_t i, std::int64_t j);

// One query row of one query head.
Row attend_row(const Attention& call, std::int64_t i, std::int64_t head_q);

// ---- tolerance (section 12) ----

enum class DeviceClass { kCpu, kCpuAmx, kCuda };

struct Limits {
  double u = 0.0;
  double e = 0.0;
  double e_lse = 0.0;
  double score_factor = 0.0;    // before B and w
  double p_underflow = 0.0;     // f, to be set in Attention
  double truncation = 0.0;      // per visible key, times A: tensor cores that truncate
};

// `q` is the type of the queries; 8-bit types count as one.
Limits limits_for(DeviceClass device, Format q);

double o_bound(const Limits& limits, const Row& row, std::int64_t d, Format o);
double lse_bound(const Limits& limits, const Row& row);

// Ratio of error to bound: <= 1 passes, +inf where a rule without tolerance is broken (a row
// without visible key gives exactly 0 and exactly -inf or the sink; NaN only for NaN).
double o_ratio(const Limits& limits, const Row& row, std::int64_t d, Format o, double actual);
double lse_ratio(const Limits& limits, const Row& row, double actual);

// ---- combine (section 6) ----

// Partial results of one row over disjoint keys.
struct Partials {
  std::vector<std::vector<double>> o;  // [num_splits][head_dim_v]
  std::vector<double> lse;             // [num_splits]; +-inf = empty, its o is not read
  bool has_sink = false;
  double sink = 0.0;
};

struct Combined {
  double lse = 0.0;
  std::vector<double> o;      // [head_dim_v]
  std::vector<double> weight;  // sum_s w_s (1 + |lse_s - lse|) |o_s|, per element
  bool empty = false;          // no partial with a key
};

Combined combine_row(const Partials& partials);
double combine_o_ratio(const Combined& row, std::int64_t d, Format o, double actual);
double combine_lse_ratio(const Combined& row, double actual);

// ---- append_kv (section 5) ----

// Rotates the first rotary_dim values of `row` in place, in fp32 with each product rounded.
// `cos_row`, `sin_row`: rotary_dim / 2 values of the row's position.
void rotate(std::vector<float>& row, const float* cos_row, const float* sin_row,
            std::int64_t rotary_dim, bool interleaved);

// What a cache of `format` stores for x: 8-bit formats store x / descale (fp32 division), finite
// overflow and Inf saturated; others store x rounded.
std::uint32_t cache_bits(Format format, float x, float descale);

}  // namespace tegula::oracle
