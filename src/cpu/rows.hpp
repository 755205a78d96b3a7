// SPDX-License-Identifier: Apache-2.0
// Rows of a caller's tensor, for operations that go through them one by one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/core/dtype.hpp"
#include "src/core/tensor.hpp"

namespace tegula::cpu {

inline constexpr int64_t kTaskBytes =
    64 << 10;  // of source rows; waking another thread costs as much as copying about this

inline const std::byte* row_at(const TokenView& view, int64_t batch, int64_t token, int64_t head) {
  return view.data +
         (batch * view.batch_stride + token * view.token_stride + head * view.head_stride) *
             static_cast<int64_t>(dtype_size(view.dtype));
}

}  // namespace tegula::cpu
