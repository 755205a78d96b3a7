// SPDX-License-Identifier: Apache-2.0
// Named barriers of a block; 0 is __syncthreads().
#pragma once

#include "device/ptx/sync.hpp"

namespace tegula::device {

enum class NamedBarrier : int {
  kTurn = 1,      // + warpgroup: its turn to issue products
  kWarpgroup = 4  // + warpgroup: its own threads
};

// Consumer warpgroups issue their products one after the other, so that one's softmax runs under
// another's products. A token goes round: take() waits for it, pass() hands it on; each warpgroup
// does both once a block of keys. A barrier counts the waiting and the passing warpgroup.
template <bool kEnabled, int kWarpgroups>
struct Turn {
  int warpgroup;

  // The last one gives the first its first turn.
  TEGULA_DEVICE void begin() const {
    if (kEnabled && warpgroup == kWarpgroups - 1) pass();
  }
  TEGULA_DEVICE void take() const {
    if constexpr (kEnabled) ptx::named_barrier_sync(id(warpgroup), 2 * kWarpgroup);
  }
  TEGULA_DEVICE void pass() const {
    if constexpr (kEnabled) {
      ptx::named_barrier_arrive(id(warpgroup == kWarpgroups - 1 ? 0 : warpgroup + 1),
                                2 * kWarpgroup);
    }
  }

 private:
  TEGULA_DEVICE static int id(int owner) { return static_cast<int>(NamedBarrier::kTurn) + owner; }
};

TEGULA_DEVICE void sync_warpgroup(int warpgroup) {
  ptx::named_barrier_sync(static_cast<int>(NamedBarrier::kWarpgroup) + warpgroup, kWarpgroup);
}

}  // namespace tegula::device
