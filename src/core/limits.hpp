// SPDX-License-Identifier: Apache-2.0
// Limits that hold on every device (contract.md, 2 and 4).
#pragma once

#include <cstdint>

namespace tegula {

inline constexpr int64_t kMaxHeadDim = 512;  // and of head_dim_v
inline constexpr int64_t kMaxSplits = 1024;

}  // namespace tegula
