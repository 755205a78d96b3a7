// SPDX-License-Identifier: Apache-2.0
// Rings of shared-memory stages between warps that fill them and warps that read them.
#pragma once

#include "device/ptx/sync.hpp"

namespace tegula::device {

template <int kStages>
struct PipelineState {
  int stage = 0;
  u32 phase = 0;

  TEGULA_DEVICE PipelineState& operator++() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
    return *this;
  }
};

// full barriers of all stages, then empty ones. A producer goes acquire, fill, commit; a consumer
// wait, read, release. Each side advances its own state, with ++ alone.
template <int kStages>
struct Pipeline {
  u32 barriers;

  using State = PipelineState<kStages>;

  // producers: arrivals by commit() or expect() that fill a stage; consumers: warps that release
  // it.
  TEGULA_DEVICE void init(int producers, int consumers) const {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(full(i), producers);
      ptx::mbarrier_init(empty(i), consumers);
    }
  }

  TEGULA_DEVICE u32 full(int stage) const { return barriers + 8 * stage; }
  TEGULA_DEVICE u32 empty(int stage) const { return barriers + 8 * (kStages + stage); }

  // Waits until every consumer has released the stage; at once in the first round.
  TEGULA_DEVICE void acquire(const State& state) const {
    ptx::mbarrier_wait(empty(state.stage), state.phase ^ 1);
  }
  TEGULA_DEVICE bool try_acquire(const State& state) const {
    return ptx::mbarrier_try_wait(empty(state.stage), state.phase ^ 1);
  }
  // The copy engine will bring so many bytes; commits with the last of them.
  TEGULA_DEVICE void expect(const State& state, int bytes) const {
    ptx::mbarrier_expect(full(state.stage), bytes);
  }
  TEGULA_DEVICE void commit(const State& state) const { ptx::mbarrier_arrive(full(state.stage)); }

  // Waits for the producers' commit.
  TEGULA_DEVICE void wait(const State& state) const {
    ptx::mbarrier_wait(full(state.stage), state.phase);
  }
  // By a whole warp, when all its lanes have read the stage.
  TEGULA_DEVICE void release(const State& state) const {
    ptx::warp_sync();
    if (threadIdx.x % kWarp == 0) ptx::mbarrier_arrive(empty(state.stage));
  }
};

}  // namespace tegula::device
