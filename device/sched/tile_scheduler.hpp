// SPDX-License-Identifier: Apache-2.0
// Which tiles a block works on, one after the other. Run by one thread; the block's other warps get
// them through TileQueue.
#pragma once

#include "device/abi/forward.hpp"
#include "device/core/sequence.hpp"
#include "device/pipe/pipeline.hpp"

namespace tegula::device {

template <ForwardSpec kSpec>
class TileScheduler {
 public:
  TEGULA_DEVICE explicit TileScheduler(const ForwardParams& params) : params_(params) {
    if constexpr (kSpec.schedule == Schedule::kList) {
      entries_ = params.counter->count;
      num_tiles_ = entries_ * params.num_heads_q;
    } else {
      num_tiles_ = params.num_tiles;
    }
  }

  // head -1: none left.
  TEGULA_DEVICE ForwardTile first() { return tile_of(static_cast<int>(blockIdx.x)); }
  TEGULA_DEVICE ForwardTile next() {
    const int blocks = static_cast<int>(gridDim.x);
    if constexpr (kSpec.schedule == Schedule::kStatic) return tile_of(number_ + blocks);
    return tile_of(blocks + atomicAdd(&params_.counter->next, 1));
  }

  // After the last tile. The block that ends last leaves the counter as it found it.
  TEGULA_DEVICE void finish() const {
    if constexpr (kSpec.schedule == Schedule::kDynamic) {
      __threadfence();
      if (atomicAdd(&params_.counter->count, 1) == static_cast<int>(gridDim.x) - 1) {
        *params_.counter = {0, 0};
      }
    }
  }

 private:
  TEGULA_DEVICE ForwardTile tile_of(int number) {
    number_ = number;
    ForwardTile tile{.head = -1};
    if (number >= num_tiles_ || number < 0) return tile;
    if constexpr (kSpec.schedule == Schedule::kStatic && kSpec.mask == MaskKind::kLength) {
      // All row blocks of a head together: its k and v are in the L2.
      const int head = number / params_.m_blocks;
      return place(head, number - head * params_.m_blocks);
    } else {
      // Heavy tiles first within a group of heads whose k and v fit the L2 together. A group that
      // is smaller than the others comes first: the last one's light tiles even out the blocks'
      // ends.
      constexpr bool list = kSpec.schedule == Schedule::kList;
      const int rows = list ? entries_ : params_.m_blocks;
      const int all_heads = num_tiles_ / rows;
      const int missing = (params_.group - all_heads % params_.group) % params_.group;
      const int shifted = number + missing * rows;
      const int group = shifted / (params_.group * rows);
      const int heads = group == 0 ? params_.group - missing : params_.group;
      const int within = group == 0 ? number : shifted - group * params_.group * rows;
      const int row = within / heads;
      const int head = (group == 0 ? 0 : group * params_.group - missing) + within - row * heads;
      if constexpr (!list) {
        return place(head, params_.m_blocks - 1 - row);
      }
      const ListEntry entry = params_.list[row];
      tile = sequence_of(params_.lengths, entry.batch);
      tile.head = head;
      tile.m_block = entry.m_block;
      return tile;
    }
  }

  // head counts through all batches.
  TEGULA_DEVICE ForwardTile place(int head, int m_block) const {
    const int batch = head / params_.num_heads_q;
    ForwardTile tile = sequence_of(params_.lengths, batch);
    tile.head = head - batch * params_.num_heads_q;
    tile.m_block = m_block;
    return tile;
  }

  const ForwardParams& params_;
  int number_ = 0;
  int num_tiles_;
  int entries_ = 0;
};

// Tiles on their way from the scheduler's thread to everyone else.
template <int kSlots>
struct TileQueue {
  Pipeline<kSlots> pipeline;
  ForwardTile* slots;
  PipelineState<kSlots> state{};

  // By the scheduler's thread: acquire(), then push().
  TEGULA_DEVICE void acquire() { pipeline.acquire(state); }
  TEGULA_DEVICE void push(const ForwardTile& tile) {
    slots[state.stage] = tile;
    pipeline.commit(state);
    ++state;
  }
  // By each of the other warps.
  TEGULA_DEVICE ForwardTile pop() {
    pipeline.wait(state);
    const ForwardTile tile = slots[state.stage];
    pipeline.release(state);
    ++state;
    return tile;
  }
};

}  // namespace tegula::device
