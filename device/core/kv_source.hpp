// SPDX-License-Identifier: Apache-2.0
// How tiles of q, k and v come to shared memory: by the copy engine, or by loads of threads where
// its rules on strides and alignment do not hold.
#pragma once

#include "device/abi/forward.hpp"
#include "device/pipe/pipeline.hpp"
#include "device/ptx/memory.hpp"

namespace tegula::device {

template <ForwardSpec kSpec>
struct Rings {
  Pipeline<kSpec.q_stages> q;
  Pipeline<kSpec.num_stages> k, v;
  u32 q_tiles, k_tiles, v_tiles;  // shared addresses of the first stage

  TEGULA_DEVICE u32 q_tile(const PipelineState<kSpec.q_stages>& state) const {
    return q_tiles + state.stage * smem_plan(kSpec).q_stage;
  }
  TEGULA_DEVICE u32 k_tile(const PipelineState<kSpec.num_stages>& state) const {
    return k_tiles + state.stage * smem_plan(kSpec).k_stage;
  }
  TEGULA_DEVICE u32 v_tile(const PipelineState<kSpec.num_stages>& state) const {
    return v_tiles + state.stage * smem_plan(kSpec).v_stage;
  }
};

// Both kinds of source: begin(tile), then load_q() and load_k(n), load_v(n) in the order in which
// the consumers want them, flush() at the end.
template <ForwardSpec kSpec, Load kLoad>
class KvSource;

// By one thread. A box is a panel of 64 columns; columns past head_dim and rows past the tensor's
// end come as zeros, and count among the expected bytes.
template <ForwardSpec kSpec>
class KvSource<kSpec, Load::kTma> {
 public:
  static constexpr int kWarps = 1;

  TEGULA_DEVICE KvSource(const ForwardParams& params, const Rings<kSpec>& rings)
      : params_(params), rings_(rings) {}

  TEGULA_DEVICE void begin(const ForwardTile& tile) {
    tile_ = tile;
    head_kv_ = tile.head / params_.qheads_per_kvhead;
  }
  TEGULA_DEVICE void load_q() {
    rings_.q.acquire(q_);
    rings_.q.expect(q_, smem_plan(kSpec).q_stage);
    load<kSpec.tile_m, kSpec.head_dim>(params_.q_map, rings_.q_tile(q_),
                                       tile_.q_row + tile_.m_block * kSpec.tile_m, tile_.head,
                                       tile_.q_batch, rings_.q.full(q_.stage));
    ++q_;
  }
  TEGULA_DEVICE void load_k(int n) {
    rings_.k.acquire(k_);
    rings_.k.expect(k_, smem_plan(kSpec).k_stage);
    load<kSpec.tile_n, kSpec.head_dim>(params_.k_map, rings_.k_tile(k_),
                                       tile_.k_row + n * kSpec.tile_n, head_kv_, tile_.k_batch,
                                       rings_.k.full(k_.stage));
    ++k_;
  }
  TEGULA_DEVICE void load_v(int n) {
    rings_.v.acquire(v_);
    rings_.v.expect(v_, smem_plan(kSpec).v_stage);
    load<kSpec.tile_n, kSpec.head_dim_v>(params_.v_map, rings_.v_tile(v_),
                                         tile_.k_row + n * kSpec.tile_n, head_kv_, tile_.k_batch,
                                         rings_.v.full(v_.stage));
    ++v_;
  }
  TEGULA_DEVICE void flush() {}

 private:
  template <int kRows, int kColumns>
  TEGULA_DEVICE static void load(const TensorMap& map, u32 destination, int row, int head,
                                 int batch, u32 barrier) {
#pragma unroll
    for (int panel = 0; panel < panels_of(kColumns); ++panel) {
      ptx::tma_load(destination + panel * kRows * kPanelRowBytes, &map, panel * kPanelColumns, row,
                    head, batch, barrier);
    }
  }

  const ForwardParams& params_;
  const Rings<kSpec>& rings_;
  ForwardTile tile_{};
  int head_kv_ = 0;
  PipelineState<kSpec.q_stages> q_;
  PipelineState<kSpec.num_stages> k_, v_;
};

// By three warps. Chunks of 16 bytes: asynchronous copies where base and strides allow it, else
// loads of 2 bytes. Rows and columns outside the sequence become zeros and are not read.
template <ForwardSpec kSpec>
class KvSource<kSpec, Load::kPlain> {
 public:
  static constexpr int kWarps = kLoadWarps;

  TEGULA_DEVICE KvSource(const ForwardParams& params, const Rings<kSpec>& rings)
      : params_(params), rings_(rings) {}

  TEGULA_DEVICE void begin(const ForwardTile& tile) {
    tile_ = tile;
    head_kv_ = tile.head / params_.qheads_per_kvhead;
    seen_ = Mask<kSpec.mask>{params_.mask, tile.seqlen_q, tile.seqlen_k, tile.leftpad}.seen();
  }
  TEGULA_DEVICE void load_q() {
    acquire(rings_.q, q_);
    const Rows& q = params_.q;
    const int first = tile_.m_block * kSpec.tile_m;
    load<kSpec.tile_m, kSpec.head_dim>(
        q, params_.q_width, rings_.q_tile(q_), tile_.q_batch, tile_.q_row, tile_.head,
        {first, 0, tile_.seqlen_q, params_.head_dim}, rings_.q.full(q_.stage));
    ++q_;
  }
  TEGULA_DEVICE void load_k(int n) {
    acquire(rings_.k, k_);
    load<kSpec.tile_n, kSpec.head_dim>(
        params_.k, params_.kv_width, rings_.k_tile(k_), tile_.k_batch, tile_.k_row, head_kv_,
        {n * kSpec.tile_n, seen_.begin, seen_.end, params_.head_dim}, rings_.k.full(k_.stage));
    ++k_;
  }
  TEGULA_DEVICE void load_v(int n) {
    acquire(rings_.v, v_);
    load<kSpec.tile_n, kSpec.head_dim_v>(
        params_.v, params_.kv_width, rings_.v_tile(v_), tile_.k_batch, tile_.k_row, head_kv_,
        {n * kSpec.tile_n, seen_.begin, seen_.end, params_.head_dim_v}, rings_.v.full(v_.stage));
    ++v_;
  }
  // Commits what is under way.
  TEGULA_DEVICE void flush() {
    if (pending_ == 0) return;
    ptx::cp_async_wait<0>();
    arrive(pending_);
    pending_ = 0;
  }

 private:
  static constexpr int kThreads = kWarps * kWarp;

  struct Box {
    int first;       // row of the sequence
    int begin, end;  // rows of the sequence that are read
    int columns;     // that are read
  };

  // A stage that is not free yet may wait for consumers that wait for the copies under way.
  template <typename Pipeline, typename State>
  TEGULA_DEVICE void acquire(const Pipeline& pipeline, const State& state) {
    if (ptx::warp_any(!pipeline.try_acquire(state))) flush();
    pipeline.acquire(state);
  }
  // The writes of every lane are visible to the tensor cores before one lane arrives for the warp.
  TEGULA_DEVICE static void arrive(u32 barrier) {
    ptx::fence_proxy_async();
    ptx::warp_sync();
    if (threadIdx.x % kWarp == 0) ptx::mbarrier_arrive(barrier);
  }

  template <int kRows, int kColumns>
  TEGULA_DEVICE void load(const Rows& rows, int width, u32 destination, int batch, int row0,
                          int head, const Box& box, u32 barrier) {
    constexpr int kChunks = panels_of(kColumns) * (kPanelColumns / kChunkColumns);
    const auto* const base = static_cast<const unsigned short*>(rows.data) +
                             batch * rows.batch_stride + head * rows.head_stride;
    for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const int within = box.first + row;
      const bool valid =
          within >= box.begin && within < box.end && chunk * kChunkColumns < box.columns;
      // base itself where nothing is read: no address outside is formed
      const unsigned short* const source =
          valid ? base + (row0 + static_cast<long long>(within)) * rows.row_stride +
                      chunk * kChunkColumns
                : base;
      const u32 place = destination + swizzled_chunk(kRows, row, chunk);
      if (width == kChunkBytes) {
        ptx::cp_async_16(place, source, valid);
      } else {
        u32 x[4] = {0, 0, 0, 0};
        if (valid) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            x[j] = ptx::load_u16(source + 2 * j) | ptx::load_u16(source + 2 * j + 1) << 16;
          }
        }
        ptx::store_shared_16(place, x);
      }
    }
    if (width == kChunkBytes) {
      // One tile stays under way while the next is issued.
      ptx::cp_async_commit();
      if (pending_ != 0) {
        ptx::cp_async_wait<1>();
        arrive(pending_);
      }
      pending_ = barrier;
    } else {
      flush();
      arrive(barrier);
    }
  }

  const ForwardParams& params_;
  const Rings<kSpec>& rings_;
  ForwardTile tile_{};
  KeyRange seen_{};
  int head_kv_ = 0;
  u32 pending_ = 0;  // barrier of the copies under way
  PipelineState<kSpec.q_stages> q_;
  PipelineState<kSpec.num_stages> k_, v_;
};

}  // namespace tegula::device
