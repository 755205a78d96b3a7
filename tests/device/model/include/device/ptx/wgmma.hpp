// SPDX-License-Identifier: Apache-2.0
// The model's twin of device/ptx/wgmma.hpp.
#pragma once

#include "device/ptx/sync.hpp"

namespace tegula::device::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit() {
  api->wgmma_commit();
}
template <int kOutstanding>
void wgmma_wait() {
  api->wgmma_wait(kOutstanding);
}
template <int kCount>
void pin(float (&)[kCount]) {}

template <Dtype kDtype, int kN>
struct Wgmma {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  static void ss(float (&d)[kN / 2], u64 left, u64 right, bool accumulate) {
    api->wgmma({kDtype == Dtype::kBf16, kN, nullptr, left, right, false, accumulate, d});
  }
  template <bool kTransposeB>
  static void rs(float (&d)[kN / 2], const u32* left, u64 right, bool accumulate) {
    api->wgmma({kDtype == Dtype::kBf16, kN, left, 0, right, kTransposeB, accumulate, d});
  }
};

}  // namespace tegula::device::ptx
