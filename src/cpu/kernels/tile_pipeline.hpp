// SPDX-License-Identifier: Apache-2.0
// The tile operations of one phase of tile_prefill.hpp, with the softmax rows of another unit in
// between, so that the matrix unit and the vector ports work at the same time.
#pragma once

#include "src/cpu/kernels/tile_softmax.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

// How a phase treats the rows of its unit: kAny if some have a far shift (tile_softmax.hpp).
enum class Rows { kNone, kUsual, kAny };

// Trip counts of a phase; compile-time ones (kSteps > 0) for the common head dimensions: 1.2 to 1.3
// times faster, since a phase of 64 x 64 has only 32 dot products.
struct PhaseShape {
  int64_t score_steps;   // head_dim / 32
  int64_t output_pairs;  // head_dim_v / 32
  int64_t q_parts, kv_parts;
  int64_t k_part_bytes, v_part_bytes;
};

// What a phase computes: scores s = q k^T of one unit, and o += p v of another; nullptr: not that.
struct PhaseOperands {
  const char* q;  // [part][32][head_dim] bf16
  const char* k;  // tiles of the unit's keys
  char* s;        // [32][64] f32
  const char* p;  // [part][32][64] bf16
  const char* v;
  char* o;        // [column tile][32][16] f32
  bool o_begins;  // o holds no sum yet
};

// The result of the last product, still in accumulators: number i holds rows 16 (i % 2) to
// 16 (i % 2) + 15 of column tile i / 2. A tile is stored just before it is used again, inside the
// next product (right after its last dot product the store would wait for it: 1.4x of the peak's
// time instead of 1.1x).
struct PendingTiles {
  char* at;  // nullptr: none
  int64_t stride, half, column;

  template <int kAcc>
  TEGULA_INLINE char* place() const {
    return at + kAcc % 2 * half + kAcc / 2 * column;
  }
  template <int kAcc>
  TEGULA_INLINE void store() const {
    if (at != nullptr) tile_store<kAcc>(place<kAcc>(), stride);
  }
  TEGULA_INLINE void store_all() {
    store<0>();
    store<1>();
    store<2>();
    store<3>();
    at = nullptr;
  }
  // Accumulator kAcc becomes that of `next`, from what it holds already (accumulate) or from zero.
  template <int kAcc>
  TEGULA_INLINE void replace(const PendingTiles& next, bool accumulate) const {
    store<kAcc>();
    if (accumulate) {
      tile_load<kAcc>(next.place<kAcc>(), next.stride);
    } else {
      tile_zero<kAcc>();
    }
  }
};

// One step of a product: 32 rows of A times two column tiles of B. first: the accumulators begin.
// tick: see Ticker.
template <class Tick>
TEGULA_INLINE void multiply_step(const char* a, int64_t a_stride, const char* b, int64_t b_column,
                                 bool first, bool accumulate, const PendingTiles& pending,
                                 const PendingTiles& next, Tick&& tick) {
  const auto begin = [&]<int kAcc>() __attribute__((always_inline)) {
    if (first) pending.replace<kAcc>(next, accumulate);
  };
  tile_load<4>(a, a_stride);
  tile_stream<6>(b, 64);
  begin.template operator()<0>();
  tile_dot<0, 4, 6>();
  tick.after();
  tile_load<5>(a + 16 * a_stride, a_stride);
  begin.template operator()<1>();
  tile_dot<1, 5, 6>();
  tick.after();
  tile_stream<7>(b + b_column, 64);
  begin.template operator()<2>();
  tile_dot<2, 4, 7>();
  tick.after();
  begin.template operator()<3>();
  tile_dot<3, 5, 7>();
  tick.after();
}

// A sum over the steps of each pair of parts. The last of max_pairs = 4 is low x low.
template <int kSteps, int kParts, class Tick>
TEGULA_INLINE void multiply_tiles(bool accumulate, const char* a, int64_t a_stride,
                                  int64_t a_part_bytes, int64_t a_parts, const char* b,
                                  int64_t b_column, int64_t b_step_bytes, int64_t b_part_bytes,
                                  int64_t b_parts, int64_t steps, int64_t max_pairs,
                                  PendingTiles& pending, const PendingTiles& next, Tick&& tick) {
  if constexpr (kSteps > 0 && kParts == 1) {
#pragma GCC unroll 4
    for (int i = 0; i < kSteps; ++i) {
      multiply_step(a + 64 * i, a_stride, b + i * b_step_bytes, b_column, i == 0, accumulate,
                    pending, next, tick);
    }
  } else {
    bool first = true;
    for (int64_t i = 0; i < a_parts; ++i) {
      for (int64_t j = 0; j < b_parts && 2 * i + j < max_pairs; ++j) {
        for (int64_t step = 0; step < steps; ++step) {
          multiply_step(a + i * a_part_bytes + 64 * step, a_stride,
                        b + j * b_part_bytes + step * b_step_bytes, b_column, first, accumulate,
                        pending, next, tick);
          first = false;
        }
      }
    }
  }
  pending = next;
}

// Spreads the 32 rows of a unit over the kDots dot products of a phase. The first four wait: before
// them the scores may still be in tiles.
template <int kDots, class Row>
struct Ticker {
  Row& row;
  int64_t dots = 0, next = 0;

  TEGULA_INLINE void after() {
    ++dots;
    if (dots < 4) return;
    while (next < kTileRows && next * kDots < dots * kTileRows) row(next++);
  }
  TEGULA_INLINE void finish() {
    while (next < kTileRows) row(next++);
  }
};
struct NoTicker {
  TEGULA_INLINE void after() {}
};

// O first: 4 % of a whole call.
template <int kScoreSteps, int kOutputPairs, int kParts, class Tick>
TEGULA_INLINE void run_products(const PhaseShape& shape, const PhaseOperands& operands,
                                PendingTiles& pending, Tick&& tick) {
  const int64_t steps = kScoreSteps > 0 ? kScoreSteps : shape.score_steps;
  const int64_t pairs = kOutputPairs > 0 ? kOutputPairs : shape.output_pairs;
  PendingTiles last = pending;
  if (operands.p != nullptr) {
#pragma GCC unroll 4
    for (int64_t pair = 0; pair < pairs; ++pair) {
      // Known trip counts are those of v in one part, which run() sees to.
      multiply_tiles<(kOutputPairs > 0 ? 2 : 0), kParts>(
          !operands.o_begins, operands.p, 2 * kTileKeys, kTileRows * 2 * kTileKeys, kParts,
          operands.v + pair * 2 * kTileBytes, kTileBytes, 2 * pairs * kTileBytes,
          shape.v_part_bytes, shape.kv_parts, 2, 3, last,
          {operands.o + pair * 4 * kTileBytes, 64, kTileBytes, 2 * kTileBytes}, tick);
    }
  }
  if (operands.q != nullptr) {
    // Unrolled, both loops: 3 to 5 % of a whole call.
#pragma GCC unroll 2
    for (int64_t half = 0; half < 2; ++half) {  // of the unit's keys
      multiply_tiles<kScoreSteps, kParts>(
          false, operands.q, 64 * steps, kTileRows * 64 * steps, shape.q_parts,
          operands.k + half * 2 * steps * kTileBytes, steps * kTileBytes, kTileBytes,
          shape.k_part_bytes, shape.kv_parts, steps, 4, last,
          {operands.s + half * 128, 4 * kTileKeys, 16 * 4 * kTileKeys, 64}, tick);
    }
  }
  pending = last;
}

// A phase; returns the sum of the rows' sums.
template <Rows kRows, int kScoreSteps, int kOutputPairs, int kParts>
__attribute__((noinline)) inline vf run_phase(const PhaseShape& shape,
                                              const PhaseOperands& operands, const UnitRows& rows,
                                              PendingTiles& pending) {
  vf check = vzero();
  if constexpr (kRows == Rows::kNone) {
    run_products<kScoreSteps, kOutputPairs, kParts>(shape, operands, pending, NoTicker{});
  } else {
    constexpr bool kFar = kRows == Rows::kAny;
    const UnitRows unit = rows;  // a copy that the tiles' stores do not touch
    const auto row = [&](int64_t r) __attribute__((always_inline)) {
      check = vadd(check, soften_row<kParts, kFar>(unit, r));
    };
    constexpr int kDots = kScoreSteps > 0 ? 8 * (kScoreSteps + kOutputPairs) : 2 * kTileRows;
    Ticker<kDots, decltype(row)> ticker{row};
    run_products<kScoreSteps, kOutputPairs, kParts>(shape, operands, pending, ticker);
    ticker.finish();
  }
  return check;
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
