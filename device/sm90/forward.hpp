// SPDX-License-Identifier: Apache-2.0
// Forward (prefill) for sm_90a: o = softmax(scale q k^T) v and lse, one tile of tile_m query rows
// of one head at a time, blocks of tile_n keys from right to left.
//
// role        warps                 registers   waits on                      signals
// loader      0 of warpgroup 0      32 or 40    empty q, k, v; full tile      full q, k, v
//             (plain loads: 0-2)
// scheduler   3 of warpgroup 0      the same    empty tile                    full tile
// consumer    warpgroups 1-2 (1-3)  232 (160)   full q, k, v, tile; its turn  empty q, k, v, tile
//
// A consumer warpgroup owns 64 rows. It keeps the tensor cores busy under its softmax: QK of block
// n is issued, then PV of block n + 1; the softmax of n runs while PV is under way. Refused here
// (src/cuda/ops/forward_spec.cc): pages, splits, bias, 8-bit types, head dims that are not
// multiples of 8. Design, measurements and dead ends: docs/design/forward_sm90.md.
#pragma once

#include "device/core/epilogue.hpp"
#include "device/core/kv_source.hpp"
#include "device/core/scores.hpp"
#include "device/pipe/named.hpp"
#include "device/sched/tile_scheduler.hpp"
#include "device/tile/product.hpp"

namespace tegula::device {

template <ForwardSpec kSpec>
struct ForwardTraits {
  static_assert(fault_of(kSpec) == nullptr);
  static constexpr SmemPlan kSmem = smem_plan(kSpec);
  static constexpr BarrierPlan kBarriers = barrier_plan(kSpec);
  static constexpr Registers kRegisters = registers_of(kSpec);
  static constexpr int kConsumers = num_consumers(kSpec);
  static constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarp;
  using Source = KvSource<kSpec, kSpec.load>;
};

enum class Role { kLoader, kScheduler, kConsumer, kIdle };

template <ForwardSpec kSpec>
TEGULA_DEVICE Role role_of(int warp) {
  if (warp >= kWarpgroup / kWarp) return Role::kConsumer;
  if (warp == kSchedulerWarp) return Role::kScheduler;
  return warp < ForwardTraits<kSpec>::Source::kWarps ? Role::kLoader : Role::kIdle;
}

// ---- Shared memory and its barriers

template <ForwardSpec kSpec>
struct ForwardShared {
  Rings<kSpec> rings;
  TileQueue<tile_slots(kSpec)> tiles;

  TEGULA_DEVICE explicit ForwardShared(char* memory) {
    using Traits = ForwardTraits<kSpec>;
    const u32 base = ptx::shared_address(memory);
    const u32 barriers = base + Traits::kSmem.barriers;
    rings = {{barriers + Traits::kBarriers.q}, {barriers + Traits::kBarriers.k},
             {barriers + Traits::kBarriers.v}, base + Traits::kSmem.q,
             base + Traits::kSmem.k,           base + Traits::kSmem.v};
    tiles.pipeline = {barriers + Traits::kBarriers.tile};
    tiles.slots = reinterpret_cast<ForwardTile*>(memory + Traits::kSmem.tiles);
  }

  // Arrivals follow from the roles: whoever fills a stage, and each warp that reads it.
  TEGULA_DEVICE void init() const {
    using Traits = ForwardTraits<kSpec>;
    rings.q.init(Traits::Source::kWarps, Traits::kConsumerWarps);
    rings.k.init(Traits::Source::kWarps, Traits::kConsumerWarps);
    rings.v.init(Traits::Source::kWarps, Traits::kConsumerWarps);
    tiles.pipeline.init(1, Traits::Source::kWarps + Traits::kConsumerWarps);
    ptx::fence_mbarrier_init();
  }
};

// Blocks of keys that some row of the tile sees; every role agrees on them.
template <ForwardSpec kSpec>
TEGULA_DEVICE KeyRange blocks_of(const ForwardParams& params, const ForwardTile& tile) {
  const int first = tile.m_block * kSpec.tile_m;
  return mask_of<kSpec>(params, tile).blocks(first, first + kSpec.tile_m, kSpec.tile_n);
}

// ---- Scheduler: one thread

template <ForwardSpec kSpec>
TEGULA_DEVICE void schedule(const ForwardParams& params, TileQueue<tile_slots(kSpec)>& tiles) {
  TileScheduler<kSpec> scheduler(params);
  // A slot first, then a tile: see tile_slots().
  tiles.acquire();
  ForwardTile tile = scheduler.first();
  for (; tile.head >= 0; tile = scheduler.next()) {
    tiles.push(tile);
    tiles.acquire();
  }
  tiles.push(tile);
  scheduler.finish();
}

// ---- Loader

template <ForwardSpec kSpec>
TEGULA_DEVICE void produce(const ForwardParams& params, const Rings<kSpec>& rings,
                           TileQueue<tile_slots(kSpec)>& tiles) {
  typename ForwardTraits<kSpec>::Source source(params, rings);
  for (ForwardTile tile = tiles.pop(); tile.head >= 0; tile = tiles.pop()) {
    const KeyRange blocks = blocks_of<kSpec>(params, tile);
    if (blocks.empty()) {
      // Consumers may still wait for copies of the tile before, and the next tile for consumers.
      source.flush();
      continue;
    }
    source.begin(tile);
    source.load_k(blocks.end - 1);
    source.load_q();
    for (int n = blocks.end - 1; n > blocks.begin; --n) {
      source.load_k(n - 1);
      source.load_v(n);
    }
    source.load_v(blocks.begin);
  }
  source.flush();
}

// ---- Consumer: one warpgroup

template <ForwardSpec kSpec>
class Consumer {
  using Traits = ForwardTraits<kSpec>;

 public:
  TEGULA_DEVICE Consumer(const ForwardParams& params, const Rings<kSpec>& rings, int warpgroup)
      : params_(params), rings_(rings), turn_{warpgroup}, first_row_(64 * warpgroup) {
    turn_.begin();
  }

  TEGULA_DEVICE void run(const ForwardTile& tile) {
    const KeyRange all = blocks_of<kSpec>(params_, tile);
    const Scores<kSpec> scores(params_, tile, tile.m_block * kSpec.tile_m + first_row_);
    KeyRange mine = scores.blocks();
    if (mine.empty()) mine = {all.begin, all.begin};
    if constexpr (kSpec.zero_v) seen_ = mask_of<kSpec>(params_, tile).seen();
    softmax_.reset(params_.score_scale);

    if (!all.empty()) rings_.q.wait(q_);  // the loader's q
    if (mine.empty() && !all.empty()) release_q();
    for (int n = all.end - 1; n >= mine.end; --n) skip();
    if (!mine.empty()) {
      attend(scores, mine);
    }
    for (int n = mine.begin - 1; n >= all.begin; --n) skip();
    finish(tile, scores);
  }

 private:
  // Blocks of the warpgroup's own rows, the last first.
  TEGULA_DEVICE void attend(const Scores<kSpec>& scores, const KeyRange& blocks) {
    if constexpr (kSpec.q_in_registers) {
      load_operand<kSpec.tile_m, kSpec.head_dim>(q_registers_, rings_.q_tile(q_), first_row_);
      release_q();
    }
    int n = blocks.end - 1;
    rings_.k.wait(k_);
    turn_.take();
    start_scores();
    turn_.pass();
    ptx::wgmma_wait<0>();
    ptx::pin(acc_s_);
    release_k(n == blocks.begin);
    scores.apply(acc_s_, params_, n);
    softmax_.update(acc_s_, params_.score_scale);
    ptx::pin(acc_s_);
    round_to_operand<kSpec.dtype>(p_, acc_s_);
    for (--n; n >= blocks.begin; --n) step(scores, n, n < blocks.end - 2, n == blocks.begin);
    rings_.v.wait(v_);
    zero_unseen(blocks.begin);
    ptx::pin(acc_o_);
    ptx::wgmma_fence();
    start_output(blocks.end - 1 > blocks.begin);
    ptx::wgmma_wait<0>();
    ptx::pin(acc_o_);
    release_v();
  }

  // QK of block n beside PV of block n + 1, the softmax of n under PV.
  TEGULA_DEVICE void step(const Scores<kSpec>& scores, int n, bool accumulate, bool last) {
    rings_.k.wait(k_);
    turn_.take();
    ptx::pin(acc_o_);
    start_scores();
    rings_.v.wait(v_);
    zero_unseen(n + 1);
    ptx::wgmma_fence();
    start_output(accumulate);
    turn_.pass();
    ptx::wgmma_wait<1>();
    ptx::pin(acc_s_);
    release_k(last);
    scores.apply(acc_s_, params_, n);
    softmax_.update(acc_s_, params_.score_scale);
    ptx::pin(acc_s_);
    ptx::wgmma_wait<0>();
    ptx::pin(acc_o_);
    ptx::pin(acc_s_);
    release_v();
    softmax_.rescale(acc_o_);
    round_to_operand<kSpec.dtype>(p_, acc_s_);
  }

  // A block that other warpgroups need.
  TEGULA_DEVICE void skip() {
    turn_.take();
    turn_.pass();
    rings_.k.wait(k_);
    rings_.k.release(k_);
    ++k_;
    rings_.v.wait(v_);
    release_v();
  }

  TEGULA_DEVICE void start_scores() {
    ptx::pin(acc_s_);
    ptx::wgmma_fence();
    if constexpr (kSpec.q_in_registers) {
      product<kSpec.dtype, kSpec.tile_n, kSpec.head_dim>(acc_s_, q_registers_, rings_.k_tile(k_));
    } else {
      product<kSpec.dtype, kSpec.tile_n, kSpec.head_dim, kSpec.tile_m>(
          acc_s_, rings_.q_tile(q_) + first_row_ * kPanelRowBytes, rings_.k_tile(k_));
    }
  }
  TEGULA_DEVICE void start_output(bool accumulate) {
    product_transposed<kSpec.dtype, kSpec.head_dim_v, kSpec.tile_n>(acc_o_, p_, rings_.v_tile(v_),
                                                                    accumulate);
  }

  // 0 * NaN is NaN: rows of V that nobody sees become zeros before PV. Each warpgroup does it for
  // itself, so none waits for another; all write the same zeros.
  TEGULA_DEVICE void zero_unseen(int n) {
    if constexpr (kSpec.zero_v) {
      const int first = n * kSpec.tile_n;
      if (first >= seen_.begin && first + kSpec.tile_n <= seen_.end) return;
      zero_rows_outside<kSpec.tile_n, kSpec.head_dim_v>(rings_.v_tile(v_), seen_.begin - first,
                                                        seen_.end - first);
      ptx::fence_proxy_async();
      sync_warpgroup(turn_.warpgroup);
    }
  }

  TEGULA_DEVICE void release_q() {
    rings_.q.release(q_);
    ++q_;
  }
  TEGULA_DEVICE void release_k(bool last) {
    rings_.k.release(k_);
    ++k_;
    if (!kSpec.q_in_registers && last) release_q();
  }
  TEGULA_DEVICE void release_v() {
    rings_.v.release(v_);
    ++v_;
  }

  TEGULA_DEVICE void finish(const ForwardTile& tile, const Scores<kSpec>& scores) {
    softmax_.finish();
    const bool has_sink = params_.sink.data != nullptr;
    const float sink = has_sink ? params_.sink.data[tile.head * params_.sink.head_stride] : 0;
    RowResult rows[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r] = finish_row(softmax_.sum(r), softmax_.reference(r, params_.score_scale),
                           scores.empty(r), has_sink, sink);
    }
    Epilogue<kSpec>(params_, tile).store(acc_o_, scores, rows);
  }

  const ForwardParams& params_;
  const Rings<kSpec>& rings_;
  Turn<kSpec.ping_pong, Traits::kConsumers> turn_;
  int first_row_;  // of the tile
  KeyRange seen_{};
  Softmax<kSpec.tile_n> softmax_;
  PipelineState<kSpec.q_stages> q_;
  PipelineState<kSpec.num_stages> k_, v_;
  float acc_s_[kSpec.tile_n / 2];
  float acc_o_[kSpec.head_dim_v / 2];
  u32 p_[kSpec.tile_n / 4];
  u32 q_registers_[kSpec.q_in_registers ? kSpec.head_dim / 4 : 1];
};

template <ForwardSpec kSpec>
TEGULA_DEVICE void consume(const ForwardParams& params, const Rings<kSpec>& rings,
                           TileQueue<tile_slots(kSpec)>& tiles, int warpgroup) {
  Consumer<kSpec> consumer(params, rings, warpgroup);
  for (ForwardTile tile = tiles.pop(); tile.head >= 0; tile = tiles.pop()) consumer.run(tile);
}

// ---- Entry

template <ForwardSpec kSpec>
TEGULA_DEVICE void forward(const ForwardParams& params) {
  using Traits = ForwardTraits<kSpec>;
  extern __shared__ __align__(1024) char memory[];
  ForwardShared<kSpec> shared(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();

  const int warp = ptx::shuffle(static_cast<int>(threadIdx.x) / kWarp, 0);
  const bool leader = threadIdx.x % kWarp == 0;
  const Role role = role_of<kSpec>(warp);
  if (role != Role::kConsumer) {
    ptx::setmaxnreg_dec<Traits::kRegisters.producer>();
    if (role == Role::kScheduler && leader) schedule<kSpec>(params, shared.tiles);
    if (role == Role::kLoader && (leader || kSpec.load == Load::kPlain)) {
      produce<kSpec>(params, shared.rings, shared.tiles);
    }
  } else {
    ptx::setmaxnreg_inc<Traits::kRegisters.consumer>();
    consume<kSpec>(params, shared.rings, shared.tiles, warp / 4 - 1);
  }
}

}  // namespace tegula::device
