// SPDX-License-Identifier: Apache-2.0
// A work item with many query rows on matrix tiles: S = Q K^T, O += P V in units of 32 packed query
// rows x 64 keys. K and V are packed once per block of keys and used by all rows of the item; P as
// the softmax writes it is an A operand.
//
// Units form one list per block, and a pipeline runs over it: phase u computes the scores of unit
// u + 1 and the output of unit u - 1 on the tiles, between the exponentials of unit u. Measurements
// and dead ends: docs/design/cpu_forward.md.
#pragma once

#include "src/cpu/kernels/finish.hpp"
#include "src/cpu/kernels/item.hpp"
#include "src/cpu/kernels/tile_pipeline.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

struct Unit {
  int16_t group;  // of 32 rows
  int16_t key;    // relative to the block, a multiple of 64
  bool partial;   // some row does not see all of its keys
  bool first;     // of the group: O begins
};

template <int kParts>
class TilePrefill {
 public:
  TEGULA_INLINE TilePrefill(const cpu::ForwardParams& params, const cpu::ForwardTask& task,
                            char* scratch)
      : params_(params),
        task_(task),
        tiles_(params.tiles),
        scratch_(scratch),
        rows_(task.row_end - task.row_begin),
        groups_((rows_ + kTileRows - 1) / kTileRows),
        exponent_scale_(task.cooked ? kLog2e : task.scale * kLog2e),
        shape_{tiles_.head_dim / 32, tiles_.head_dim_v / 32, tiles_.q_parts,
               tiles_.kv_parts,      tiles_.k_part_bytes,    tiles_.v_part_bytes},
        row_max_(reinterpret_cast<float*>(scratch + tiles_.row_max)),
        row_shift_(row_max_ + groups_ * kTileRows),
        row_sum_(reinterpret_cast<float*>(scratch + tiles_.row_sum)) {
    for (int64_t r = 0; r < groups_ * kTileRows; ++r) {
      row_max_[r] = -__builtin_inff();
      row_shift_[r] = 0.0f;
    }
    __builtin_memset(scratch + tiles_.zero_row, 0, static_cast<size_t>(tiles_.zero_row_bytes));
    for (int64_t g = 0; g < groups_; ++g) {
      groups_state_[g] = {};
      __builtin_memset(sums_of(g, 0), 0, static_cast<size_t>(kTileRows * kLanes * 4));
    }
  }

  // Keys [begin, end) of the block that begins at key `first`.
  TEGULA_INLINE void attend(int64_t first, int64_t begin, int64_t end) {
    pack_block(params_, task_, first, begin, end, scratch_);
    const int64_t count = list_units(first, begin, end);
    if (count == 0) return;
    PendingTiles pending{};
    for (int64_t u = -1; u <= count; ++u) {
      PhaseOperands operands{};
      if (u + 1 < count) add_scores(u + 1, operands);
      if (u >= 1) add_output(u - 1, operands);
      if (u < 0 || u >= count) {
        run_phase<Rows::kNone, 0, 0, kParts>(shape_, operands, {}, pending);
      } else {
        soften(u, first, operands, pending);
      }
      // Without output to begin with, the next phase's rows read the scores at once; after the last
      // phase nothing stores O.
      if (u < 1 || u == count) pending.store_all();
    }
  }

  // Divides by the sums and writes o and lse.
  TEGULA_INLINE void finish() const {
    for (int64_t g = 0; g < groups_; ++g) {
      float sums[kTileRows];
      add_lanes(sums_of(g, groups_state_[g].turn), sums);
      if (!groups_state_[g].begun)
        __builtin_memset(o_of(g), 0, static_cast<size_t>(kTileRows * tiles_.head_dim_v * 4));
      if (params_.o_dtype == TEGULA_BF16 && task_.o_partial == nullptr &&
          params_.head_dim_v == tiles_.head_dim_v) {
        finish_bf16(g, sums);
      } else {
        finish_any(g, sums);
      }
    }
  }

 private:
  static constexpr int64_t kMaxUnits =
      (cpu::kMaxTileRows / kTileRows) * (cpu::kMaxTileBlock / kTileKeys);

  struct Group {
    int turn;      // which half of row_sum_ is current
    bool shifted;  // every row has a shift,
    bool far;      // and some row a far one
    bool begun;    // has had a unit
  };

  TEGULA_INLINE float* sums_of(int64_t group, int turn) const {
    return row_sum_ + (group * 2 + turn) * kTileRows * kLanes;
  }
  TEGULA_INLINE float* o_of(int64_t group) const {
    return reinterpret_cast<float*>(scratch_ + tiles_.o) + group * kTileRows * tiles_.head_dim_v;
  }
  TEGULA_INLINE char* scores_of(int64_t u) const {
    return scratch_ + tiles_.scores + u % 2 * kTileRows * kTileKeys * 4;
  }
  TEGULA_INLINE char* p_of(int64_t u) const {
    return scratch_ + tiles_.p + u % 2 * kParts * kTileRows * kTileKeys * 2;
  }
  // Tokens of a group's rows, counted from the task's first; padding rows repeat the last row.
  TEGULA_INLINE int64_t token_of(int64_t r) const {
    const int64_t row = task_.row_begin + (r < rows_ ? r : rows_ - 1);
    return row / params_.qheads_per_kvhead - task_.row_begin / params_.qheads_per_kvhead;
  }

  TEGULA_INLINE int64_t rows_of(int64_t g) const {
    const int64_t left = rows_ - g * kTileRows;
    return left < kTileRows ? left : kTileRows;
  }

  // finish_row() for a group's bf16 rows, straight from the tiles.
  TEGULA_INLINE void finish_bf16(int64_t g, const float* sums) const {
    float factors[kTileRows];
    const bool plain = task_.lse == nullptr && task_.sink == nullptr;
    for (int64_t i = 0; plain && i < kTileRows; i += kLanes) {
      const vf sum = vload(sums + i);
      const vf inverse = vselect(vequal(sum, vzero()), vzero(), vdiv(vset(1.0f), sum));
      vstore(factors + i, vmul(inverse, vset(task_.v_scale)));
    }
    const float* o = o_of(g);
    PackedRow row(params_, task_, g * kTileRows);
    for (int64_t r = 0; r < rows_of(g); ++r, row.next(), o += 16) {
      if (!plain) {
        const RowEnd end = end_task_row(task_, row.head, row_max_[g * kTileRows + r], sums[r]);
        factors[r] = end.factor;
        if (task_.lse != nullptr)
          task_.lse[row.token * task_.lse_token_stride + row.head * task_.lse_head_stride] =
              end.lse;
      }
      const vf factor = vset(factors[r]);
      char* to = task_.o + row.token * task_.o_token_stride + row.head * task_.o_head_stride;
      for (int64_t column = 0; column < tiles_.head_dim_v; column += 2 * kLanes) {
        const auto part = [&](int64_t c) {
          return vmul(factor, vload(o + c / 16 * 16 * kTileRows + c % 16));
        };
        narrow_two(to + 2 * column, part(column), part(column + kLanes));
      }
    }
  }

  TEGULA_INLINE void finish_any(int64_t g, const float* sums) const {
    float gathered[512 + 32];
    PackedRow row(params_, task_, g * kTileRows);
    for (int64_t r = 0; r < rows_of(g); ++r, row.next()) {
      for (int64_t column = 0; column < tiles_.head_dim_v; column += 16)
        __builtin_memcpy(gathered + column, o_of(g) + r * 16 + column * kTileRows, 64);
      finish_row(params_, task_, g * kTileRows + r, row, row_max_[g * kTileRows + r], sums[r],
                 gathered);
    }
  }

  // The sums of a group's rows over their lanes.
  static TEGULA_INLINE void add_lanes(const float* lanes, float* sums) {
    for (int64_t r = 0; r < kTileRows; r += kLanes, lanes += kLanes * kLanes) {
      vf rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) rows[i] = vload(lanes + i * kLanes);
      vstore(sums + r, vsum_lanes(rows));
    }
  }

  // The units of the block: those that hold a visible key, row group by row group.
  TEGULA_INLINE int64_t list_units(int64_t first, int64_t block_begin, int64_t block_end) {
    int64_t count = 0;
    for (int64_t g = 0; g < groups_; ++g) {
      int64_t lowest = block_end, highest = block_begin;
      int64_t full_begin = block_begin, full_end = block_end;
      const int64_t last = token_of(g * kTileRows + kTileRows - 1);
      for (int64_t t = token_of(g * kTileRows); t <= last; ++t) {
        int64_t begin = task_.range_begin[t], end = task_.range_end[t];
        begin = begin < block_begin ? block_begin : begin;
        end = end > block_end ? block_end : end;
        if (begin >= end) begin = end = block_begin;
        if (begin < end) {
          lowest = begin < lowest ? begin : lowest;
          highest = end > highest ? end : highest;
        }
        full_begin = begin > full_begin ? begin : full_begin;
        full_end = end < full_end ? end : full_end;
      }
      for (int64_t key = (lowest - first) / kTileKeys * kTileKeys; key < highest - first;
           key += kTileKeys) {
        units_[count++] = {static_cast<int16_t>(g), static_cast<int16_t>(key),
                           first + key < full_begin || first + key + kTileKeys > full_end,
                           !groups_state_[g].begun};
        groups_state_[g].begun = true;
      }
    }
    return count;
  }

  TEGULA_INLINE void add_scores(int64_t u, PhaseOperands& operands) const {
    operands.q =
        scratch_ + tiles_.q + units_[u].group * tiles_.q_parts * kTileRows * 2 * tiles_.head_dim;
    operands.k = scratch_ + tiles_.k + units_[u].key / 16 * (tiles_.head_dim / 32) * kTileBytes;
    operands.s = scores_of(u);
  }
  TEGULA_INLINE void add_output(int64_t u, PhaseOperands& operands) const {
    operands.p = p_of(u);
    operands.v = scratch_ + tiles_.v + units_[u].key / 32 * (tiles_.head_dim_v / 16) * kTileBytes;
    operands.o = reinterpret_cast<char*>(o_of(units_[u].group));
    operands.o_begins = units_[u].first;
  }

  // A phase with rows; trip counts are known to the compiler for the common head dimensions.
  TEGULA_INLINE vf run(bool far, const PhaseOperands& operands, const UnitRows& rows,
                       PendingTiles& pending) const {
    if (far) return run_phase<Rows::kAny, 0, 0, kParts>(shape_, operands, rows, pending);
    if (kParts == 1 && tiles_.kv_parts == 1 && tiles_.head_dim == tiles_.head_dim_v) {
      if (tiles_.head_dim == 64)
        return run_phase<Rows::kUsual, 2, 2, kParts>(shape_, operands, rows, pending);
      if (tiles_.head_dim == 128)
        return run_phase<Rows::kUsual, 4, 4, kParts>(shape_, operands, rows, pending);
    }
    return run_phase<Rows::kUsual, 0, 0, kParts>(shape_, operands, rows, pending);
  }

  // The phase of unit u: its softmax beside the products.
  TEGULA_INLINE void soften(int64_t u, int64_t first, const PhaseOperands& operands,
                            PendingTiles& pending) {
    const Unit& unit = units_[u];
    Group& group = groups_state_[unit.group];
    const int64_t row = unit.group * kTileRows;
    const UnitRows rows{reinterpret_cast<float*>(scores_of(u)),
                        p_of(u),
                        row_max_ + row,
                        row_shift_ + row,
                        sums_of(unit.group, group.turn),
                        sums_of(unit.group, group.turn ^ 1),
                        exponent_scale_};
    if (unit.partial || task_.cooked || !group.shifted) {
      pending.store_all();
      prepare_rows(rows, mask_of(unit, first));
      find_state(unit.group);
    }
    if (__builtin_expect(outgrown(run(group.far, operands, rows, pending)), false)) {
      pending.store_all();
      take_new_shifts<kParts>(rows, [&](int64_t r, float factor) {
        float* const o = o_of(unit.group) + r * 16;
        for (int64_t column = 0; column < tiles_.head_dim_v; column += 16)
          scale_row(o + column * kTileRows, factor, 16);
      });
      find_state(unit.group);
    }
    group.turn ^= 1;
  }

  // After some row of the group has taken a shift.
  TEGULA_INLINE void find_state(int64_t g) {
    Group& group = groups_state_[g];
    group.shifted = true;
    group.far = false;
    const vf scale = vset(exponent_scale_);
    for (int64_t r = g * kTileRows; r < (g + 1) * kTileRows; r += kLanes) {
      const vf max = vload(row_max_ + r);
      if (vall(is_near(max, scale))) continue;
      for (int64_t i = r; i < r + kLanes; ++i) {
        const bool seen = row_max_[i] != -__builtin_inff();
        group.shifted = group.shifted && seen;
        group.far = group.far || (seen && is_far(row_max_[i], exponent_scale_));
      }
    }
  }

  TEGULA_INLINE UnitMask mask_of(const Unit& unit, int64_t first) {
    UnitMask mask{unit.partial, task_.cooked,    task_.alibi_slopes != nullptr,
                  task_.scale,  params_.softcap, mask_begin_,
                  mask_end_,    position_,       slope_};
    if (!mask.partial && !mask.alibi) return mask;
    const int64_t key = first + unit.key;
    const int64_t first_token = task_.row_begin / params_.qheads_per_kvhead;
    PackedRow row(params_, task_, unit.group * kTileRows);
    for (int64_t r = 0; r < kTileRows; ++r) {
      // Padding rows repeat the last row.
      if (r > 0 && unit.group * kTileRows + r < rows_) row.next();
      const int64_t token = row.token - first_token;
      const auto clamp = [&](int64_t n) {
        n -= key;
        return static_cast<int32_t>(n < 0 ? 0 : n > kTileKeys ? kTileKeys : n);
      };
      mask_begin_[r] = clamp(task_.range_begin[token]);
      mask_end_[r] =
          clamp(task_.range_end[token] < task_.key_end ? task_.range_end[token] : task_.key_end);
      if (task_.alibi_slopes != nullptr) {
        position_[r] = static_cast<float>(row.token + task_.seqlen_k - task_.seqlen_q - key);
        slope_[r] = task_.alibi_slopes[row.head * task_.alibi_stride];
      }
    }
    return mask;
  }

  const cpu::ForwardParams& params_;
  const cpu::ForwardTask& task_;
  const cpu::TileLayout& tiles_;
  char* scratch_;
  int64_t rows_, groups_;
  float exponent_scale_;
  PhaseShape shape_;
  float* row_max_;
  float* row_shift_;
  float* row_sum_;  // [group][2][32][kLanes]
  Group groups_state_[cpu::kMaxTileRows / kTileRows];
  Unit units_[kMaxUnits];
  int32_t mask_begin_[kTileRows], mask_end_[kTileRows];
  float position_[kTileRows], slope_[kTileRows];
};

template <int kParts>
__attribute__((noinline)) inline void attend_tiles(const cpu::ForwardParams& params,
                                                   const cpu::ForwardTask& task, char* scratch) {
  const TileScope scope;
  TilePrefill<kParts> prefill(params, task, scratch);
  pack_query_tiles(params, task, scratch);
  const int64_t tokens =
      (task.row_end - 1) / params.qheads_per_kvhead - task.row_begin / params.qheads_per_kvhead + 1;
  for_each_block(
      visible_keys(task, tokens), task.key_begin, params.tiles.block,
      [&](int64_t first, int64_t begin, int64_t end) { prefill.attend(first, begin, end); });
  prefill.finish();
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
