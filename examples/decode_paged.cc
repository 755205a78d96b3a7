// SPDX-License-Identifier: Apache-2.0
// Token-by-token decoding of two sequences on one paged cache, as a serving engine does it:
// append_kv writes the new rows, forward attends to all of them. Checked at each step against a
// naive loop.
#include <tegula/tegula.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int64_t kBatch = 2, kHeadsQ = 6, kHeadsKv = 2, kDim = 32;
constexpr int64_t kPageSize = 16, kMaxPages = 4, kNumPages = 10;
constexpr int64_t kSteps = 20;
constexpr int32_t kPrompt[kBatch] = {37, 9};  // tokens in the cache before the first step

uint32_t random_state = 1;

std::vector<float> random_values(size_t count) {
  std::vector<float> values(count);
  for (float& value : values) {
    random_state = random_state * 1664525u + 1013904223u;
    value = static_cast<float>(random_state >> 8) / (1 << 23) - 1.0f;
  }
  return values;
}

// All rows that a sequence ever wrote, in order: what the cache has to hold.
struct History {
  std::vector<float> k, v;  // [seqlen, kHeadsKv, kDim]
};

// Largest difference of o [kHeadsQ, kDim] from attention of q over the whole history.
double largest_error(const float* q, const History& history, const float* o) {
  const int64_t seqlen = static_cast<int64_t>(history.k.size()) / (kHeadsKv * kDim);
  double worst = 0;
  for (int64_t h = 0; h < kHeadsQ; ++h) {
    const int64_t h_kv = h / (kHeadsQ / kHeadsKv);
    std::vector<double> out(kDim);
    double sum = 0;
    for (int64_t j = 0; j < seqlen; ++j) {
      const size_t row = static_cast<size_t>((j * kHeadsKv + h_kv) * kDim);
      double score = 0;
      for (int64_t d = 0; d < kDim; ++d) score += double{q[h * kDim + d]} * history.k[row + d];
      const double p = std::exp(score / std::sqrt(double{kDim}));
      sum += p;
      for (int64_t d = 0; d < kDim; ++d) out[d] += p * history.v[row + d];
    }
    for (int64_t d = 0; d < kDim; ++d) {
      worst = std::max(worst, std::abs(o[h * kDim + d] - out[d] / sum));
    }
  }
  return worst;
}

}  // namespace

int main() try {
  const tegula::Extents cache_shape{kNumPages, kPageSize, kHeadsKv, kDim};
  std::vector<float> k_cache(kNumPages * kPageSize * kHeadsKv * kDim), v_cache(k_cache.size());
  const tegula::Tensor k_pages(k_cache, cache_shape), v_pages(v_cache, cache_shape);

  // Pages are handed out in any order; entries that no sequence needs are never read.
  const std::vector<int32_t> table{7, 2, 9,  4,  //
                                   0, 5, -1, -1};
  const tegula::Index page_table(table, {kBatch, kMaxPages});
  std::vector<int32_t> seqused(kBatch, 0);

  // The prompts: rows of different lengths in one ragged call.
  const std::vector<int32_t> offsets{0, kPrompt[0], kPrompt[0] + kPrompt[1]};
  History history[kBatch];
  {
    const int64_t total = offsets.back();
    const std::vector<float> k_new = random_values(total * kHeadsKv * kDim),
                             v_new = random_values(total * kHeadsKv * kDim);
    tegula::append_kv({.k_new = {k_new, {total, kHeadsKv, kDim}},
                       .v_new = {v_new, {total, kHeadsKv, kDim}},
                       .k_cache = k_pages,
                       .v_cache = v_pages,
                       .cu_seqlens_new = offsets,
                       .seqused_k = seqused,
                       .page_table = page_table});
    for (int64_t b = 0; b < kBatch; ++b) {
      const int64_t begin = offsets[b] * kHeadsKv * kDim, end = offsets[b + 1] * kHeadsKv * kDim;
      history[b].k.assign(k_new.begin() + begin, k_new.begin() + end);
      history[b].v.assign(v_new.begin() + begin, v_new.begin() + end);
      seqused[b] = kPrompt[b];
    }
  }

  // One token a step. seqused counts the rows before it; seqlen_new adds it for the forward.
  std::vector<float> q(kBatch * kHeadsQ * kDim), o(q.size());
  const tegula::ForwardArgs args{.q = {q, {kBatch, 1, kHeadsQ, kDim}},
                                 .k = k_pages,
                                 .v = v_pages,
                                 .o = {o, {kBatch, 1, kHeadsQ, kDim}},
                                 .seqused_k = seqused,
                                 .page_table = page_table,
                                 .seqlen_new = 1};
  const tegula::Plan plan(args, {.causal = true});
  double worst = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const std::vector<float> k_new = random_values(kBatch * kHeadsKv * kDim),
                             v_new = random_values(kBatch * kHeadsKv * kDim);
    const std::vector<float> q_new = random_values(q.size());
    std::copy(q_new.begin(), q_new.end(), q.begin());
    tegula::append_kv({.k_new = {k_new, {kBatch, 1, kHeadsKv, kDim}},
                       .v_new = {v_new, {kBatch, 1, kHeadsKv, kDim}},
                       .k_cache = k_pages,
                       .v_cache = v_pages,
                       .seqused_k = seqused,
                       .page_table = page_table});
    plan.forward(args);
    for (int64_t b = 0; b < kBatch; ++b) {
      const int64_t begin = b * kHeadsKv * kDim, end = begin + kHeadsKv * kDim;
      history[b].k.insert(history[b].k.end(), k_new.begin() + begin, k_new.begin() + end);
      history[b].v.insert(history[b].v.end(), v_new.begin() + begin, v_new.begin() + end);
      ++seqused[b];
      const size_t row = static_cast<size_t>(b * kHeadsQ * kDim);
      worst = std::max(worst, largest_error(&q[row], history[b], &o[row]));
    }
  }
  std::printf("%d steps, largest error %.2e\n", static_cast<int>(kSteps), worst);
  return worst < 1e-5 ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const tegula::Error& error) {
  std::fprintf(stderr, "decode_paged: %s\n", error.what());
  return EXIT_FAILURE;
}
