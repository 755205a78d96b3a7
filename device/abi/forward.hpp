// SPDX-License-Identifier: Apache-2.0
// The forward kernel as data: what is compiled in (ForwardSpec), what a launch brings
// (ForwardParams), and what follows from the spec: threads, registers, shared memory.
#pragma once

#include "device/abi/layout.hpp"
#include "device/abi/mask.hpp"
#include "device/abi/types.hpp"

namespace tegula::device {

enum class Load : int {
  kTma,    // bulk tensor copies
  kPlain,  // loads of 16 or 2 bytes by threads: any stride and alignment
};

enum class Schedule : int {
  kStatic,   // tile t goes to block t % gridDim
  kDynamic,  // the next tile goes to the block that asks first, heavy tiles first
  kList,     // as kDynamic, over a list that a kernel before made of lengths on the device
};

// Everything that changes the generated code. Not here, because the code is the same: strides,
// lengths, ratio of heads, head dims within the tile, sink, windows' widths.
struct ForwardSpec {
  Dtype dtype = Dtype::kBf16;     // of q; and of P
  Dtype kv_dtype = Dtype::kBf16;  // other than dtype: refused until it is built
  Dtype o_dtype = Dtype::kBf16;
  int head_dim = 128;  // of the tile; q and k are padded to it
  int head_dim_v = 128;
  int tile_m = 128;    // query rows, 64 for each consumer warpgroup
  int tile_n = 128;    // keys of a block
  int num_stages = 2;  // of k and of v
  int q_stages = 1;    // 2: the next tile's q is under way while this one's is in use
  bool q_in_registers = false;
  bool ping_pong = false;  // warpgroups take turns: one's softmax runs under the other's products
  MaskKind mask = MaskKind::kLength;
  bool softcap = false;
  bool alibi = false;
  bool zero_v = false;  // TMA may bring rows of V that no query of the sequence sees
  Load load = Load::kTma;
  Schedule schedule = Schedule::kStatic;

  bool operator==(const ForwardSpec&) const = default;
};

TEGULA_BOTH constexpr int num_consumers(const ForwardSpec& spec) {
  return spec.tile_m / 64;
}
TEGULA_BOTH constexpr int num_threads(const ForwardSpec& spec) {
  return kWarpgroup * (1 + num_consumers(spec));
}

// Roles of a block's warps. Warpgroup 0: warps 0-2 load (TMA: one thread of warp 0), warp 3 hands
// out tiles. Warpgroups 1...: consumers.
inline constexpr int kLoadWarps = 3;
inline constexpr int kSchedulerWarp = 3;

// Tiles that the scheduler is ahead of the consumers. A tile that a block has taken is lost to the
// others: where costs differ, no further ahead than the loader needs.
TEGULA_BOTH constexpr int tile_slots(const ForwardSpec& spec) {
  return spec.schedule == Schedule::kStatic ? 2 : 1;
}

struct Registers {
  int producer;
  int consumer;
};
// What setmaxnreg gives each warpgroup; together at most what the block has at entry.
TEGULA_BOTH constexpr Registers registers_of(const ForwardSpec& spec) {
  return num_consumers(spec) == 3    ? Registers{32, 160}
         : spec.load == Load::kPlain ? Registers{56, 224}
         : num_consumers(spec) == 2  ? Registers{40, 232}
                                     : Registers{40, 240};
}

// A work item, as the scheduler warp tells it to the others.
struct ForwardTile {
  int head;  // -1: no more tiles
  int m_block;
  int batch;
  int q_batch;  // of q, o and lse: 0 if ragged
  int q_row;    // first row of the sequence in q and o
  int seqlen_q;
  int k_batch;
  int k_row;
  int seqlen_k;
  int leftpad;
};

// Byte offsets of a block's shared memory: the one definition.
struct SmemPlan {
  int q, q_stage;
  int k, k_stage;
  int v, v_stage;
  int barriers;
  int tiles;
  int bytes;
};

// Each pipeline: full barriers of its stages, then empty ones, 8 bytes each.
struct BarrierPlan {
  int q, k, v, tile, end;
};
TEGULA_BOTH constexpr BarrierPlan barrier_plan(const ForwardSpec& spec) {
  BarrierPlan plan{};
  plan.q = 0;
  plan.k = plan.q + 2 * 8 * spec.q_stages;
  plan.v = plan.k + 2 * 8 * spec.num_stages;
  plan.tile = plan.v + 2 * 8 * spec.num_stages;
  plan.end = plan.tile + 2 * 8 * tile_slots(spec);
  return plan;
}

TEGULA_BOTH constexpr SmemPlan smem_plan(const ForwardSpec& spec) {
  SmemPlan plan{};
  plan.q = 0;
  plan.q_stage = tile_bytes(spec.tile_m, spec.head_dim);
  plan.k = plan.q + spec.q_stages * plan.q_stage;
  plan.k_stage = tile_bytes(spec.tile_n, spec.head_dim);
  plan.v = plan.k + spec.num_stages * plan.k_stage;
  plan.v_stage = tile_bytes(spec.tile_n, spec.head_dim_v);
  plan.barriers = plan.v + spec.num_stages * plan.v_stage;
  plan.tiles = plan.barriers + barrier_plan(spec).end;
  plan.bytes = plan.tiles + tile_slots(spec) * static_cast<int>(sizeof(ForwardTile));
  return plan;
}

// What keeps a spec from being compiled, or nullptr.
TEGULA_BOTH constexpr const char* fault_of(const ForwardSpec& spec) {
  if (spec.dtype != Dtype::kBf16 && spec.dtype != Dtype::kF16) return "q is neither bf16 nor f16";
  if (spec.kv_dtype != spec.dtype) return "k and v have another type than q";
  if (size_of(spec.o_dtype) < 2) return "o has 8 bits";
  if (spec.tile_m % 64 != 0 || spec.tile_m < 64 || spec.tile_m > 192) return "tile_m";
  if (spec.tile_n % 16 != 0 || spec.tile_n < 64 || spec.tile_n > 192) return "tile_n";
  if (spec.head_dim % 32 != 0 || spec.head_dim > 256) return "head_dim";
  if (spec.head_dim_v % 32 != 0 || spec.head_dim_v > 256) return "head_dim_v";
  if (spec.num_stages < 2) return "QK of one block is issued while V of another is in use";
  if (spec.ping_pong && num_consumers(spec) < 2) return "ping_pong takes two warpgroups";
  if (smem_plan(spec).bytes > kSmemLimit) return "shared memory";
  const Registers registers = registers_of(spec);
  if (kWarpgroup * (registers.producer + num_consumers(spec) * registers.consumer) > kRegisters) {
    return "registers";
  }
  return nullptr;
}

// A CUtensorMap.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// Strides in elements.
struct Rows {
  void* data;
  long long batch_stride;
  long long row_stride;
  long long head_stride;
};
struct Floats {
  float* data;  // nullptr: absent
  long long batch_stride;
  long long head_stride;
  long long row_stride;
};
struct Ints {
  const int* data;  // nullptr: absent
  long long stride;
};

// Scheduling state of a launch with Schedule::kDynamic (zero between launches) or kList (in
// scratch, set by the kernel before).
struct TileCounter {
  int next;   // tiles handed out beyond the first gridDim
  int count;  // kList: entries of the list; kDynamic: thread blocks that are done
};
struct ListEntry {
  int batch;
  int m_block;
};

// Where sequences lie and how long they are. Values in device memory are untrusted: seqlens() of
// device/core cuts them to the capacities here.
struct Lengths {
  Ints cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, cu_seqlens_new;
  int seqlen_q, seqlen_k;  // dense: the tensors'
  int total_q, total_k;    // ragged: rows of the tensors
  int seqlen_new;
  int* error_word;  // nullptr: not wanted
};

struct ForwardParams {
  TensorMap q_map, k_map, v_map;  // Load::kTma; (column, row, head, batch)
  Rows q, k, v;                   // Load::kPlain
  Rows o;
  Floats lse;
  Floats sink;          // head_stride alone
  Floats alibi_slopes;  // batch_stride and head_stride
  Lengths lengths;
  MaskRule mask;
  int batch, num_heads_q, qheads_per_kvhead;
  int head_dim, head_dim_v;  // the tensors'
  int q_width, kv_width;     // Load::kPlain: bytes of a load, 16 or 2
  int o_aligned;             // rows of o may be stored 16 bytes at once

  // p = 2^(score_scale * s - ...) with s = q . k, or, with softcap or ALiBi, what became of it:
  // s <- softcap * tanh(inner_scale * s), + ALiBi, in units of the natural logarithm.
  float score_scale;
  float inner_scale;
  float softcap;

  // Tiles. kStatic, kDynamic: m_blocks for each (batch, head). Heads are visited group by group, so
  // that the k and v of a group stay in the L2.
  int m_blocks;
  int num_tiles;  // kList: unused
  int group;      // heads, of all batches (kList: of one)
  TileCounter* counter;
  const ListEntry* list;
};

// The kernel before a launch with Schedule::kList: fills list and counter. One block.
inline constexpr int kListThreads = 1024;
struct ListParams {
  Lengths lengths;
  MaskRule mask;
  int batch;
  int tile_m, tile_n;
  int capacity;  // of the list: bad offsets could ask for more
  TileCounter* counter;
  ListEntry* list;
};

}  // namespace tegula::device
