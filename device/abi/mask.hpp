// SPDX-License-Identifier: Apache-2.0
// Which keys a query row sees (contract.md, 4): one interval a row for every mask of the contract
// but the bias tensor. Trip counts, masking and the rows of V that must be zeroed all come from it.
#pragma once

#include "device/abi/types.hpp"

namespace tegula::device {

// How much of the interval is compiled in. Each holds the one before.
enum class MaskKind : int {
  kLength,    // the end alone, the same for every row: seqlen_k
  kRight,     // the end moves with the row: causal, window_right
  kInterval,  // both ends: window_left, chunk, leftpad
};

struct KeyRange {
  int begin;
  int end;

  TEGULA_BOTH constexpr bool empty() const { return begin >= end; }
};

// Of a problem: windows of -1 become kMaxLength, causal becomes window_right 0; chunk 0 = none.
struct MaskRule {
  int window_left;
  int window_right;
  int chunk;
};

TEGULA_BOTH constexpr int floor_div(int a, int b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

template <MaskKind kKind>
struct Mask {
  MaskRule rule;
  int seqlen_q;
  int seqlen_k;
  int leftpad;

  // Keys that row i sees; both ends never decrease with i.
  TEGULA_BOTH constexpr KeyRange keys(int i) const {
    KeyRange range{0, seqlen_k};
    if constexpr (kKind == MaskKind::kLength) return range;
    const int position = i + seqlen_k - seqlen_q;
    range.end = least(range.end, position + rule.window_right + 1);
    if constexpr (kKind == MaskKind::kRight) return range;
    range.begin = most(leftpad, position - rule.window_left);
    if (rule.chunk > 0) {
      const int first = leftpad + floor_div(position - leftpad, rule.chunk) * rule.chunk;
      range.begin = most(range.begin, first);
      // chunk may be kMaxLength: no sum of it and a position
      if (rule.chunk < range.end - first) range.end = first + rule.chunk;
    }
    return range;
  }

  // Keys that some row from i_begin to i_end - 1 may see: from the first row's begin to the last
  // one's end.
  TEGULA_BOTH constexpr KeyRange keys(int i_begin, int i_end) const {
    return {keys(i_begin).begin, keys(i_end - 1).end};
  }

  // Blocks of tile_n keys that hold them, as [begin, end), begin <= end.
  TEGULA_BOTH constexpr KeyRange blocks(int i_begin, int i_end, int tile_n) const {
    const KeyRange range = keys(i_begin, least(i_end, seqlen_q));
    if (i_begin >= seqlen_q || range.empty()) return {0, 0};
    return {most(range.begin, 0) / tile_n, ceil_div(range.end, tile_n)};
  }

  // Keys that any row of the sequence sees: rows of V outside may hold anything, NaN too.
  TEGULA_BOTH constexpr KeyRange seen() const {
    const KeyRange range = keys(0, most(seqlen_q, 1));
    return {most(range.begin, 0), range.end};
  }
};

}  // namespace tegula::device
