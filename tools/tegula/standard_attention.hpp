// SPDX-License-Identifier: Apache-2.0
// Standard attention, the yardstick of replay and bench: scores of all heads written to memory, softmax over
// them, then the product with V, in fp32 on contiguous K and V. Each of the three passes is as quick as plain
// loops go: register-tiled products, vector exp, work spread evenly over the threads, AVX-512 or AVX2 where
// the machine has it. What it lacks is what tegula is about: it computes and stores all n x m scores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/tegula/workers.hpp"

namespace tegula::program {

// One sequence. Query row i sees key j iff, with p = i + seqlen_k - seqlen_q, j <= p (causal) and
// j >= p - window_left (window_left >= 0).
struct StandardSequence {
  const float* q = nullptr;  // [seqlen_q, num_heads_q, head_dim]
  const float* k = nullptr;  // [num_heads_kv, capacity, head_dim]: a head's keys lie together, the best
  const float* v = nullptr;  // [num_heads_kv, capacity, head_dim_v]     layout for one query row
  float* o = nullptr;        // [seqlen_q, num_heads_q, head_dim_v]
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t capacity = 0;  // >= seqlen_k
};

struct StandardShape {
  std::int64_t num_heads_q = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t head_dim = 1;
  std::int64_t head_dim_v = 1;
  float softmax_scale = 1.0F;
  float softcap = 0.0F;  // 0 = none
  bool causal = false;
  std::int64_t window_left = -1;
  const float* sink = nullptr;  // [num_heads_q]
};

// Keeps its memory between calls, as a framework's allocator does.
class StandardAttention {
 public:
  explicit StandardAttention(Workers& workers) : workers_(workers) {}

  void forward(const StandardShape& shape, const std::vector<StandardSequence>& batch);

  // Of the largest call so far: the scores, and all extra memory (scores, packed K and V).
  std::size_t scores_bytes() const { return scores_bytes_; }
  std::size_t extra_bytes() const { return extra_bytes_; }

 private:
  Workers& workers_;
  std::vector<float> scores_;
  std::vector<float> packed_;
  std::size_t scores_bytes_ = 0;
  std::size_t extra_bytes_ = 0;
};

}  // namespace tegula::program
