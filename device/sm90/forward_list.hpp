// SPDX-License-Identifier: Apache-2.0
// The kernel before a forward whose lengths lie on the device: lists the tiles of all sequences,
// the costly ones first, and sets the counter back. One block; a warp takes 32 sequences at a time.
// Tiles of about the same cost stand in any order: no result depends on it.
#pragma once

#include "device/core/sequence.hpp"

namespace tegula::device {

inline constexpr int kListBuckets = 256;

// Costs in steps of an eighth: the exponent and three bits more of the number of blocks.
TEGULA_DEVICE int bucket_of(int blocks) {
  if (blocks < 8) return blocks;
  const int exponent = 31 - __clz(blocks);
  return exponent * 8 + (blocks >> (exponent - 3)) % 8 - 16;
}

class TileLister {
 public:
  TEGULA_DEVICE explicit TileLister(const ListParams& params) : params_(params) {}

  // visit(batch, m_block, bucket) for every tile, by the whole block.
  template <typename F>
  TEGULA_DEVICE void for_each(const F& visit) const {
    const int lane = threadIdx.x % kWarp;
    const int stride = kListThreads;
    const int warp_first = static_cast<int>(threadIdx.x) - lane;
    for (int first = warp_first; first < params_.batch; first += stride) {
      const int batch = first + lane;
      const ForwardTile mine =
          batch < params_.batch ? sequence_of(params_.lengths, batch) : ForwardTile{};
      const int count = ceil_div(mine.seqlen_q, params_.tile_m);
      int end = count;  // tiles of this lane's sequence and those before it
      for (int step = 1; step < kWarp; step *= 2) {
        const int before = __shfl_up_sync(~0u, end, step);
        if (lane >= step) end += before;
      }
      const int total = ptx::shuffle(end, kWarp - 1);
      for (int begin = 0; begin < total; begin += kWarp) {
        const int tile = begin + lane;
        int owner = 0;  // the first lane whose end lies beyond the tile
        for (int step = kWarp / 2; step > 0; step /= 2) {
          if (ptx::shuffle(end, owner + step - 1) <= tile) owner += step;
        }
        owner = least(owner, kWarp - 1);
        const int m_block = tile - (ptx::shuffle(end, owner) - ptx::shuffle(count, owner));
        const int seqlen_q = ptx::shuffle(mine.seqlen_q, owner);
        const int seqlen_k = ptx::shuffle(mine.seqlen_k, owner);
        const int leftpad = ptx::shuffle(mine.leftpad, owner);
        if (tile >= total) continue;
        const Mask<MaskKind::kInterval> mask{params_.mask, seqlen_q, seqlen_k, leftpad};
        const int row = m_block * params_.tile_m;
        const KeyRange blocks = mask.blocks(row, row + params_.tile_m, params_.tile_n);
        visit(first + owner, m_block, bucket_of(blocks.end - blocks.begin));
      }
    }
  }

 private:
  const ListParams& params_;
};

TEGULA_DEVICE void list_forward_tiles(const ListParams& params) {
  __shared__ int place[kListBuckets];  // tiles in a bucket, then where its next tile goes
  __shared__ int total;
  if (threadIdx.x < kListBuckets) place[threadIdx.x] = 0;
  __syncthreads();
  const TileLister lister(params);
  lister.for_each([&](int, int, int bucket) { atomicAdd(&place[bucket], 1); });
  __syncthreads();
  if (threadIdx.x == 0) {
    int next = 0;
    for (int bucket = kListBuckets - 1; bucket >= 0; --bucket) {
      const int count = place[bucket];
      place[bucket] = next;
      next += count;
    }
    total = least(next, params.capacity);
  }
  __syncthreads();
  lister.for_each([&](int batch, int m_block, int bucket) {
    const int at = atomicAdd(&place[bucket], 1);
    if (at < params.capacity) params.list[at] = {batch, m_block};
  });
  if (threadIdx.x == 0) *params.counter = {0, total};
}

}  // namespace tegula::device
