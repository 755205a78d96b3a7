// SPDX-License-Identifier: Apache-2.0
// The yardstick has to be right where the trace does not go: odd sizes, windows, sinks, softcap, few rows.
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/oracle/oracle.hpp"
#include "tools/tegula/standard_attention.hpp"

namespace tegula::program {
namespace {

struct Shape {
  std::int64_t seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, head_dim_v;
  bool causal;
  std::int64_t window_left;
  float softcap;
  bool sink;
};

// Numbers in [-2, 2) that a 32-bit generator makes.
std::vector<float> numbers(std::int64_t count, std::uint32_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1 << 22) - 2.0F;
  }
  return values;
}

struct Sequence {
  std::vector<float> q, k, v, o;

  Sequence(const Shape& s, std::uint32_t seed, std::int64_t capacity)
      : q(numbers(s.seqlen_q * s.heads_q * s.head_dim, seed)),
        k(numbers(s.heads_kv * capacity * s.head_dim, seed + 1)),
        v(numbers(s.heads_kv * capacity * s.head_dim_v, seed + 2)),
        o(static_cast<std::size_t>(s.seqlen_q * s.heads_q * s.head_dim_v), NAN) {}
};

double worst_ratio(const Shape& s, const StandardShape& shape, const Sequence& sequence, std::int64_t capacity) {
  oracle::Attention call;
  call.seqlen_q = s.seqlen_q;
  call.seqlen_k = s.seqlen_k;
  call.num_heads_q = s.heads_q;
  call.num_heads_kv = s.heads_kv;
  call.head_dim = s.head_dim;
  call.head_dim_v = s.head_dim_v;
  call.q.assign(sequence.q.begin(), sequence.q.end());
  for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
    for (std::int64_t h = 0; h < s.heads_kv; ++h) {
      const auto row = [&](const std::vector<float>& values, std::int64_t dim, std::vector<double>& to) {
        const auto begin = values.begin() + (h * capacity + j) * dim;
        to.insert(to.end(), begin, begin + dim);
      };
      row(sequence.k, s.head_dim, call.k);
      row(sequence.v, s.head_dim_v, call.v);
    }
  }
  call.softmax_scale = shape.softmax_scale;
  call.softcap = s.softcap;
  call.causal = s.causal;
  call.window_left = s.window_left;
  for (std::int64_t h = 0; s.sink && h < s.heads_q; ++h) call.sink.push_back(shape.sink[h]);
  const oracle::Limits limits = oracle::limits_for(oracle::DeviceClass::kCpu, oracle::Format::kFp32);
  double worst = 0.0;
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    for (std::int64_t h = 0; h < s.heads_q; ++h) {
      const oracle::Row row = oracle::attend_row(call, i, h);
      for (std::int64_t d = 0; d < s.head_dim_v; ++d) {
        const float o = sequence.o[static_cast<std::size_t>((i * s.heads_q + h) * s.head_dim_v + d)];
        const double ratio = oracle::o_ratio(limits, row, d, oracle::Format::kFp32, o);
        if (!(ratio <= worst)) worst = ratio;
      }
    }
  }
  return worst;
}

TEST(StandardAttention, AgreesWithTheOracle) {
  const std::vector<Shape> shapes = {
      {1, 1, 1, 1, 1, 1, false, -1, 0, false},      {1, 300, 6, 2, 64, 64, true, -1, 0, false},
      {7, 70, 6, 2, 40, 33, true, -1, 0, true},     {8, 31, 2, 1, 17, 96, true, 5, 0, false},
      {49, 49, 9, 3, 64, 64, true, -1, 0, false},   {97, 130, 4, 4, 72, 128, false, -1, 0, true},
      {60, 200, 3, 1, 33, 31, true, 40, 2.5F, false}, {5, 3, 2, 1, 9, 8, true, -1, 0, false},
      {20, 12, 2, 2, 16, 16, true, -1, 0, true},    {1, 33, 5, 1, 65, 65, true, 3, 1.5F, true},
      {40, 0, 2, 1, 16, 16, false, -1, 0, false},   {0, 10, 2, 1, 16, 16, false, -1, 0, false}};
  Workers workers(2);
  StandardAttention attention(workers);
  const float sink[] = {0.5F, -1.0F, 2.0F, 0.0F, 1.0F, -3.0F};
  for (const Shape& s : shapes) {
    SCOPED_TRACE(::testing::Message() << s.seqlen_q << " x " << s.seqlen_k << ", dims " << s.head_dim << ", "
                                      << s.head_dim_v);
    StandardShape shape;
    shape.num_heads_q = s.heads_q;
    shape.num_heads_kv = s.heads_kv;
    shape.head_dim = s.head_dim;
    shape.head_dim_v = s.head_dim_v;
    shape.softmax_scale = 0.3F;
    shape.softcap = s.softcap;
    shape.causal = s.causal;
    shape.window_left = s.window_left;
    shape.sink = s.sink ? sink : nullptr;
    // Two sequences in one call, in longer slots, so that neither offsets nor capacities can be mixed up.
    const std::int64_t capacity = s.seqlen_k + 3;
    Sequence first(s, 1, capacity), second(s, 77, capacity);
    std::vector<StandardSequence> batch;
    for (Sequence* sequence : {&first, &second}) {
      batch.push_back({sequence->q.data(), sequence->k.data(), sequence->v.data(), sequence->o.data(), s.seqlen_q,
                       s.seqlen_k, capacity});
    }
    attention.forward(shape, batch);
    EXPECT_LE(worst_ratio(s, shape, first, capacity), 1.0);
    EXPECT_LE(worst_ratio(s, shape, second, capacity), 1.0);
  }
}

TEST(Workers, RunEveryTaskOnceAndPassOnAnException) {
  Workers workers(3);
  for (const std::int64_t count : {0, 1, 2, 100}) {
    std::vector<int> seen(static_cast<std::size_t>(count), 0);
    workers.run(count, [&](std::int64_t task, int worker) {
      ASSERT_GE(worker, 0);
      ASSERT_LT(worker, 3);
      ++seen[static_cast<std::size_t>(task)];
    });
    EXPECT_EQ(seen, std::vector<int>(static_cast<std::size_t>(count), 1));
  }
  EXPECT_THROW(workers.run(50, [](std::int64_t task, int) { if (task == 7) throw std::runtime_error("seven"); }),
               std::runtime_error);
  int after = 0;
  workers.run(1, [&](std::int64_t, int) { ++after; });
  EXPECT_EQ(after, 1);
}

}  // namespace
}  // namespace tegula::program
