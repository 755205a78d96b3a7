// SPDX-License-Identifier: Apache-2.0
// Which keys a query token sees (contract.md, 4). Every mask of the contract but the bias tensor
// leaves one interval of keys per token, so trip counts, masking and the checks of page tables all
// come from the same two numbers.
#pragma once

#include <cstdint>

#include "src/core/calls.hpp"

namespace tegula {

struct KeyRange {
  int64_t begin;
  int64_t end;  // begin >= end: no key

  bool empty() const { return begin >= end; }
  int64_t size() const { return empty() ? 0 : end - begin; }
};

class Mask {
 public:
  Mask(const tegula_problem& problem, const Sequence& sequence);

  // Keys that query token i sees.
  KeyRange keys(int64_t i) const;
  // Smallest interval that holds the keys of tokens [i_begin, i_end). Consecutive tokens' intervals
  // overlap or touch, so each key in it is seen by one of the tokens.
  KeyRange keys(int64_t i_begin, int64_t i_end) const;

 private:
  int64_t offset_;  // position of token 0 among the keys: seqlen_k - seqlen_q
  int64_t leftpad_;
  int64_t seqlen_k_;
  int64_t window_left_;  // "unlimited" is a number beyond every length
  int64_t window_right_;
  int64_t chunk_;
};

}  // namespace tegula
