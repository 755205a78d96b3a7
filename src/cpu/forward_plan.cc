// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/forward_plan.hpp"

#include <algorithm>

#include "src/core/dtype.hpp"
#include "src/core/integer.hpp"
#include "src/cpu/families.hpp"

namespace tegula::cpu {
namespace {

constexpr int64_t kMaxPartialBytes = int64_t{64} << 20;  // automatic splits (contract.md, 7)

// The one definition of a worker's scratch.
ForwardLayout forward_layout(const ForwardParams& params, const KernelFamily& family,
                             int64_t panel_rows, int64_t tile_m) {
  ForwardLayout layout{};
  layout.panel_rows = panel_rows;
  layout.q_steps = params.pairs ? ceil_div(params.head_dim, 2) : params.head_dim;
  layout.o_stride = round_up(params.head_dim_v, family.lanes);
  int64_t end = 0;
  const auto part = [&end](int64_t floats) {
    const int64_t begin = end;
    end = round_up(end + 4 * floats, 64);
    return begin;
  };
  const int64_t keys = params.tile_n;
  layout.q_t = part(tile_m * layout.q_steps);
  layout.scores = part((keys + kRowPad) * panel_rows);
  layout.p_pairs = part(params.pairs ? keys / 2 * panel_rows : 0);
  layout.acc_o = part(tile_m * layout.o_stride);
  layout.rows = part(5 * tile_m + 4 * panel_rows);
  layout.bias_t = part(params.bias_dtype != TEGULA_DTYPE_NONE ? keys * panel_rows : 0);
  layout.k_block = part(keys * layout.q_steps);
  layout.v_block = part((params.pairs ? keys / 2 : keys) * layout.o_stride);
  layout.pointers = part(6 * (keys + kRowPad) * 2);
  layout.zero_row = part(std::max(layout.q_steps, layout.o_stride));
  layout.widen = part(2 * (512 + 64));
  if (params.qheads_per_kvhead <= family.narrow_rows && params.head_dim % family.lanes == 0) {
    layout.narrow = end;
    part(family.narrow_rows * params.head_dim);
    layout.narrow_acc_o = end - layout.narrow;
    part(std::max(family.narrow_rows, family.lanes) * layout.o_stride);
    layout.narrow_rows = end - layout.narrow;
    part(9 * family.lanes);
    layout.narrow_bytes = end - layout.narrow;
    end += (params.narrow_heads - 1) * layout.narrow_bytes;
  }
  layout.bytes = end;
  return layout;
}

// What the kernels on matrix tiles add to it. Packed k and v of a block within 1 MiB, an item's q
// and o (512 rows) within about 400 KiB: an L2 of 2 MiB holds them.
void add_tiles(ForwardParams& params, const KernelFamily& family, int64_t tile_m,
               int64_t max_seqlen_k) {
  TileLayout& tiles = params.tiles;
  tiles.q_parts = params.q_dtype == TEGULA_F16 ? 2 : 1;
  tiles.kv_parts = params.kv_dtype == TEGULA_F16 ? 2 : 1;
  tiles.head_dim = round_up(params.head_dim, 32);
  tiles.head_dim_v = round_up(params.head_dim_v, 32);
  const int64_t key_bytes = 2 * tiles.kv_parts * (tiles.head_dim + tiles.head_dim_v);
  tiles.block = std::clamp<int64_t>((int64_t{1} << 20) / key_bytes / 64 * 64, 64, kMaxTileBlock);
  tiles.block = std::min(tiles.block, std::max<int64_t>(64, round_up(max_seqlen_k, 64)));
  int64_t end = params.layout.bytes;
  const auto part = [&end](int64_t bytes) {
    const int64_t begin = end;
    end = round_up(end + bytes, 64);
    return begin;
  };
  tiles.q = part(tile_m * tiles.q_parts * tiles.head_dim * 2);
  tiles.k_part_bytes = tiles.block * tiles.head_dim * 2;
  tiles.v_part_bytes = tiles.block * tiles.head_dim_v * 2;
  tiles.k = part(tiles.kv_parts * tiles.k_part_bytes);
  tiles.v = part(tiles.kv_parts * tiles.v_part_bytes);
  tiles.scores = part(2 * 32 * 64 * 4);
  tiles.p = part(4 * tiles.q_parts * 32 * 64 * 2);
  tiles.o = part(tile_m * tiles.head_dim_v * 4);
  tiles.row_max = part(2 * tile_m * 4);
  tiles.row_sum = part(2 * tile_m * family.lanes * 4);
  tiles.zero_row_bytes = 2 * std::max(tiles.head_dim, tiles.head_dim_v);
  tiles.stage = part(64 * tiles.kv_parts * tiles.zero_row_bytes);
  tiles.zero_row = part(tiles.zero_row_bytes);
  tiles.few = end;
  part(kFewTileRows * tiles.q_parts * tiles.head_dim * 2);
  tiles.few_o = end - tiles.few;
  part(kFewTileRows * tiles.head_dim_v * 4);
  tiles.few_rows = end - tiles.few;
  part(9 * kFewTileRows * 4);
  tiles.few_bytes = end - tiles.few;
  end += (params.narrow_heads - 1) * tiles.few_bytes;
  tiles.packed = part(sizeof(PackedBlock));
  params.layout.bytes = end;
}

}  // namespace

ForwardPlan plan_forward(const tegula_problem& problem, const KernelFamily& family,
                         int32_t num_workers) {
  ForwardPlan plan;
  plan.family = &family;
  plan.num_workers = num_workers;
  ForwardParams& params = plan.params;
  params.q_dtype = static_cast<tegula_dtype>(problem.q_dtype);
  params.kv_dtype = static_cast<tegula_dtype>(problem.kv_dtype);
  params.o_dtype = static_cast<tegula_dtype>(problem.o_dtype);
  params.bias_dtype = static_cast<tegula_dtype>(problem.bias_dtype);
  params.head_dim = problem.head_dim;
  params.head_dim_v = problem.head_dim_v;
  params.qheads_per_kvhead = problem.num_heads_q / problem.num_heads_kv;
  params.softcap = static_cast<float>(problem.softcap);
  const bool bias = params.bias_dtype != TEGULA_DTYPE_NONE;
  params.cooked = params.softcap > 0.0f || bias || (problem.operands & TEGULA_HAS_ALIBI) != 0;
  // A bias may hide single keys, whose v must not be read into a product: pairs of keys cannot
  // leave one out.
  params.pairs = family.has_pairs && params.q_dtype == TEGULA_BF16 && !bias &&
                 (params.kv_dtype == TEGULA_BF16 || is_8bit_float(params.kv_dtype));
  // Heads of a token that lie beside each other are read together: up to 4 KiB of a row.
  params.narrow_heads = std::clamp<int64_t>(
      4096 / (params.head_dim * static_cast<int64_t>(dtype_size(params.kv_dtype))), 1,
      std::min(kMaxItemHeads, std::max<int64_t>(1, problem.num_heads_kv)));

  const int64_t total_rows =
      problem.num_heads_q *
      (problem.layout_q == TEGULA_RAGGED ? problem.total_q : problem.batch * problem.seqlen_q);
  // So many rows are the most that any choice below asks for; with batch 0 nothing bounds the
  // product.
  const int64_t max_rows = std::max<int64_t>(
      1, std::min<int64_t>(problem.max_seqlen_q, kMaxTileRows) * params.qheads_per_kvhead);
  const int64_t vectors =
      std::clamp<int64_t>(ceil_div(max_rows, family.lanes), 1, family.panel_vectors);
  const int64_t panel_rows = vectors * family.lanes;
  const int64_t row_bytes = 4 * (problem.head_dim + problem.head_dim_v);
  // Tiles by size (docs/design/cpu_forward.md): the rows of a block of keys within 256 KiB, Q and O
  // of an item within 384 KiB, or 768 KiB where there are items enough: an L2 of 1 MiB holds all of
  // it. Many query rows, so that loading K and V is paid back, none beyond the longest sequence.
  params.tile_n = 192;
  while (params.tile_n > 48 && params.tile_n * row_bytes > int64_t{256} << 10) params.tile_n /= 2;
  if (core_rule().waits_for_l2 && family.lanes == 16 && vectors == family.panel_vectors) {
    const int64_t keys = (int64_t{48} << 10) / (4 * (panel_rows + problem.head_dim_v));
    params.tile_n = std::clamp<int64_t>(keys / 16 * 16, 48, params.tile_n);
  }
  // Merging a row costs about as much as 16 more keys: long splits for wide items, shorter ones
  // for decode.
  const int64_t least_split = max_rows > 64 ? 2048 : 512;
  // Where splits are automatic they follow from the items, and the bits from the splits: then the
  // number of workers must not matter.
  const bool may_split = problem.fixed_split == 0 && problem.num_splits == 0 &&
                         problem.max_seqlen_k > least_split;
  const int64_t enough_items = may_split ? 64 : 8 * int64_t{num_workers};
  int64_t most_rows = kMaxTileRows;
  while (most_rows > 256 && total_rows / most_rows < enough_items) most_rows /= 2;
  const int64_t fitting_rows =
      std::min(most_rows, (most_rows > 256 ? int64_t{768} << 10 : int64_t{384} << 10) / row_bytes);
  plan.tile_m = std::min(std::max<int64_t>(1, fitting_rows / panel_rows) * panel_rows,
                         round_up(max_rows, panel_rows));
  params.use_tiles = family.has_tiles && suits_tiles(problem);
  if (params.use_tiles) {
    // The layout is that of kernels for few rows; the others have their own.
    params.tile_n = 64;
    const int64_t few_rows = max_rows <= 16 ? 16 : 32;
    params.layout = forward_layout(params, family, few_rows, few_rows);
    // Packing k and v costs as much as some 150 rows' attention to them. Where a head's keys are
    // one block, its items share it (schedule.cc); else more rows pay it back, if there are many.
    add_tiles(params, family, std::min(round_up(max_rows, 32), kMaxTileRows), problem.max_seqlen_k);
    const bool one_block = problem.max_seqlen_k <= params.tiles.block;
    const int64_t rows = one_block || total_rows / kMaxTileRows < 32 ? 512 : kMaxTileRows;
    plan.tile_m = std::min(round_up(max_rows, 32), rows);
  } else {
    params.layout = forward_layout(params, family, panel_rows, plan.tile_m);
  }

  const int64_t seqlen_k = problem.max_seqlen_k;
  if (problem.fixed_split > 0) {
    // By the capacity, not by max_seqlen_k: the hint must not change a sequence's bits.
    plan.max_splits = std::max<int64_t>(1, ceil_div(problem.seqlen_k, problem.fixed_split));
    plan.partial_rows = plan.max_splits > 1 ? total_rows * plan.max_splits : 0;
  } else if (problem.num_splits > 0) {
    plan.max_splits = problem.num_splits;
    plan.partial_rows = plan.max_splits > 1 ? total_rows * plan.max_splits : 0;
  } else {
    plan.least_split = round_up(least_split, params.tile_n);
    plan.max_splits = std::max<int64_t>(1, ceil_div(seqlen_k, plan.least_split));
    // Splits are at least total / kTargetItems keys long, so at most three pieces for each such
    // share exist (schedule.cc).
    const int64_t pieces = 3 * kTargetItems * std::min(plan.tile_m, max_rows);
    const int64_t affordable = kMaxPartialBytes / (4 * (problem.head_dim_v + 1));
    const int64_t room = std::min(pieces, affordable);
    plan.partial_rows = plan.max_splits == 1                  ? 0
                        : total_rows > room / plan.max_splits ? room
                                                              : total_rows * plan.max_splits;
  }
  plan.worker_bytes = static_cast<size_t>(round_up(params.layout.bytes, 128));
  plan.scratch_bytes =
      plan.worker_bytes * static_cast<size_t>(num_workers) +
      static_cast<size_t>(round_up(plan.partial_rows * 4 * (problem.head_dim_v + 1), 64));
  return plan;
}

}  // namespace tegula::cpu
