// SPDX-License-Identifier: Apache-2.0
#include "src/core/mask.hpp"

#include <algorithm>

namespace tegula {
namespace {

// Beyond every length (an int32 or a tensor's extent below 2^48), yet safe to add to one.
constexpr int64_t kUnlimited = int64_t{1} << 60;

int64_t window(int64_t given) {
  return given < 0 ? kUnlimited : std::min(given, kUnlimited);
}

int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

}  // namespace

Mask::Mask(const tegula_problem& problem, const Sequence& sequence)
    : offset_(sequence.seqlen_k - sequence.seqlen_q),
      leftpad_(sequence.leftpad),
      seqlen_k_(sequence.seqlen_k),
      window_left_(window(problem.window_left)),
      window_right_(problem.causal ? 0 : window(problem.window_right)),
      chunk_(std::min(problem.attention_chunk, kUnlimited)) {}

KeyRange Mask::keys(int64_t i) const {
  const int64_t position = i + offset_;
  KeyRange range{std::max(leftpad_, position - window_left_),
                 std::min(seqlen_k_, position + window_right_ + 1)};
  if (chunk_ > 0) {
    const int64_t chunk_begin = leftpad_ + floor_div(position - leftpad_, chunk_) * chunk_;
    range.begin = std::max(range.begin, chunk_begin);
    range.end = std::min(range.end, chunk_begin + chunk_);
  }
  return range;
}

KeyRange Mask::keys(int64_t i_begin, int64_t i_end) const {
  // Both ends move monotonically with i, so the first token that sees a key gives the begin and the
  // last one the end. Tokens that see nothing form a prefix (before the first key or leftpad); with
  // windows to the right, possibly none.
  int64_t low = i_begin,
          high = i_end;  // first token with keys, by bisection: emptiness is monotone (see below)
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (keys(middle).empty()) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == i_end) return {0, 0};
  return {keys(low).begin, keys(i_end - 1).end};
}

}  // namespace tegula
