// SPDX-License-Identifier: Apache-2.0
// Sliding-window attention in C++, planned once and run for two layers, checked against a naive
// loop.
#include <tegula/tegula.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int64_t kBatch = 2, kSeqlen = 50, kHeads = 3, kDim = 24, kWindow = 8;

std::vector<float> random_values(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / (1 << 23) - 1.0f;
  }
  return values;
}

// Largest difference of o from attention written as its definition.
double largest_error(const std::vector<float>& q, const std::vector<float>& k,
                     const std::vector<float>& v, const std::vector<float>& o) {
  const auto at = [](int64_t b, int64_t token, int64_t head) {
    return static_cast<size_t>(((b * kSeqlen + token) * kHeads + head) * kDim);
  };
  double worst = 0;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < kSeqlen; ++i) {
        std::vector<double> out(kDim);
        double sum = 0;
        for (int64_t j = std::max<int64_t>(0, i - kWindow + 1); j <= i; ++j) {
          double score = 0;
          for (int64_t d = 0; d < kDim; ++d)
            score += double{q[at(b, i, h) + d]} * k[at(b, j, h) + d];
          const double p = std::exp(score / std::sqrt(double{kDim}));
          sum += p;
          for (int64_t d = 0; d < kDim; ++d) out[d] += p * v[at(b, j, h) + d];
        }
        for (int64_t d = 0; d < kDim; ++d) {
          worst = std::max(worst, std::abs(o[at(b, i, h) + d] - out[d] / sum));
        }
      }
    }
  }
  return worst;
}

}  // namespace

int main() try {
  const tegula::Extents shape{kBatch, kSeqlen, kHeads, kDim};
  const size_t count = kBatch * kSeqlen * kHeads * kDim;
  const std::vector<float> q = random_values(count, 1), k = random_values(count, 2),
                           v = random_values(count, 3);
  std::vector<float> o(count);

  // A window of W tokens is window_left = W - 1.
  const tegula::Options options{.causal = true, .window_left = kWindow - 1};
  const tegula::ForwardArgs args{
      .q = {q, shape}, .k = {k, shape}, .v = {v, shape}, .o = {o, shape}};
  const tegula::Plan plan(args, options);
  std::fputs(plan.explain().c_str(), stdout);

  plan.forward(args);
  const double first = largest_error(q, k, v, o);

  // The next layer: the same plan, other tensors.
  plan.forward({.q = {v, shape}, .k = {q, shape}, .v = {k, shape}, .o = {o, shape}});
  const double second = largest_error(v, q, k, o);

  std::printf("largest error %.2e, then %.2e\n", first, second);
  return first < 1e-5 && second < 1e-5 ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const tegula::Error& error) {
  std::fprintf(stderr, "forward: %s\n", error.what());
  return EXIT_FAILURE;
}
