// SPDX-License-Identifier: Apache-2.0
// What the parts of a forward case's making share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tegula::cases::forward_streams {

// Operand numbers of stream_seed.
enum Stream : std::uint64_t {
  kQ = 1, kK, kV, kBias, kSink, kSlopes, kDescaleQ, kDescaleK, kDescaleV, kPages
};

inline std::int64_t longest(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

}  // namespace tegula::cases::forward_streams
