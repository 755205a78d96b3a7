// SPDX-License-Identifier: Apache-2.0
// Hand-made cases, and the shapes of field reports that the tests of the CPU and of a GPU both run.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <tegula/tegula.h>

#include "tests/cases/cases.hpp"

namespace tegula::cases {

// A plain case: dense, one dtype (o of 8-bit ones is bf16), one sequence.
inline Case plain(tegula_dtype dtype, std::int64_t seqlen_q, std::int64_t seqlen_k,
                  std::int64_t heads_q, std::int64_t heads_kv, std::int64_t head_dim) {
  Case item;
  item.id = "plain";
  item.seed = 11;
  item.q_dtype = item.kv_dtype = dtype;
  item.o_dtype = tegula_dtype_size(dtype) == 1 ? TEGULA_BF16 : dtype;
  item.num_heads_q = heads_q;
  item.num_heads_kv = heads_kv;
  item.head_dim = item.head_dim_v = head_dim;
  item.seqlens_q = {seqlen_q};
  item.seqlens_k = {seqlen_k};
  return item;
}

inline Case ragged(Case item, std::vector<std::int64_t> lens_q, std::vector<std::int64_t> lens_k) {
  item.ragged_q = true;
  item.layout_k = LayoutK::kRagged;
  item.seqlens_q = std::move(lens_q);
  item.seqlens_k = std::move(lens_k);
  return item;
}

// B01: ragged batches with sequences of no query or no key.
struct EmptySequences {
  std::int64_t heads_q, heads_kv, dim;
  std::vector<std::int64_t> lens_q, lens_k;
};
inline std::vector<EmptySequences> empty_sequences() {
  return {{9, 3, 64, {0, 1, 0, 1}, {0, 3, 0, 5}},
          {9, 9, 64, {0, 1, 0, 1}, {0, 3, 0, 5}},
          {21, 7, 120, {0, 0, 0, 1}, {0, 0, 0, 1}},
          {9, 3, 64, {1, 1, 1}, {0, 0, 0}},
          {9, 3, 64, {0, 0, 0}, {4, 0, 2}},
          {9, 3, 64, {0, 0}, {0, 0}},
          {9, 3, 64, {}, {}}};
}

// B09: query and kv heads.
inline constexpr std::pair<std::int64_t, std::int64_t> kGroups[] = {
    {12, 1}, {24, 2}, {36, 3}, {15, 5}, {21, 7}, {40, 8}, {71, 1}, {10, 2}};

}  // namespace tegula::cases
