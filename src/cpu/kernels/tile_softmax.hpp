// SPDX-License-Identifier: Apache-2.0
// Softmax of a unit of 32 query rows x 64 keys, lanes = keys, with a lazy shift: a row's shift is
// the maximum of the first unit in which it sees a key, and stays. bf16 has fp32's exponents, so P
// may exceed 1; a row whose sums pass kShiftLimit takes a new shift, and what it has summed so far
// is rescaled. So most rows need no maximum, no alpha and no rescaling of O.
//
// The shift is the maximum in powers of two, rounded to an integer, so that one fused operation
// gives the exponent of P without a rounded term: P = 2^(x c - integer). Where |x c| is too large
// for that, the difference to the maximum is taken before the product (softmax.hpp says why).
#pragma once

#include "src/cpu/kernels/math.hpp"
#include "src/cpu/kernels/softmax.hpp"
#include "src/cpu/kernels/tile_pack.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

inline constexpr float kShiftLimit = 0x1p28f;  // of a lane's sum over one unit

// How the rows of a unit see its keys, where some do not see all of them as they are.
struct UnitMask {
  bool partial;  // some row does not see all of the keys
  bool cooked, alibi;
  float scale;  // brings scores to natural-log units, if cooked
  float softcap;
  const int32_t* begin;  // [32] keys of the unit that the row sees
  const int32_t* end;
  const float* position;  // [32] of the row's token among the keys, from the unit's first (ALiBi)
  const float* slope;
};

// One unit's rows; pointers to its first row.
struct UnitRows {
  float* scores;  // [32][64]
  char* p;        // [part][32][64] bf16
  float* max;     // [32] what the shift stands for; -inf: the row has seen no key
  float* shift;   // [32] added to x c, unless the maximum is far (is_far)
  const float* sum_in;
  float* sum_out;  // [32][kLanes], the lanes' sums up to the unit before and with it
  float exponent_scale;
};

inline constexpr int kRowVectors = kTileKeys / kLanes;

// P of one row from its exponents, and the sums of its lanes. Parts: 2 keeps 16 bits of P. Step by
// step for all vectors, so that no operation waits for the one before it.
template <int kParts>
TEGULA_INLINE vf exponentiate(vf (&x)[kRowVectors], char* p) {
  vexp2_all<kParts == 1 ? 3 : 5>(x);
#pragma GCC unroll 16
  for (int i = 0; i < kRowVectors; i += 2) {
    const vf a = x[i], b = x[i + 1];
    if constexpr (kParts == 1) {
      narrow_two(p + 2 * i * kLanes, a, b);
    } else {
      const vf high_a = vtruncate_bf16(a), high_b = vtruncate_bf16(b);
      narrow_two(p + 2 * i * kLanes, high_a, high_b);
      narrow_two(p + kTileRows * kTileKeys * 2 + 2 * i * kLanes, vsub(a, high_a), vsub(b, high_b));
    }
  }
#pragma GCC unroll 4
  for (int count = kRowVectors / 2; count > 0; count /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) x[i] = vadd(x[i], x[i + count]);
  }
  return x[0];
}

TEGULA_INLINE void load_scores(const float* scores, vf (&x)[kRowVectors]) {
#pragma GCC unroll 16
  for (int i = 0; i < kRowVectors; ++i) x[i] = vload(scores + i * kLanes);
}

TEGULA_INLINE vf row_maximum(const vf (&x)[kRowVectors]) {
  vf maximum = x[0];
#pragma GCC unroll 16
  for (int i = 1; i < kRowVectors; ++i) maximum = vmax(x[i], maximum);
  return maximum;
}

// Whether x c - integer would lose places of x c: by lane, and for one row (also for -inf and NaN).
TEGULA_INLINE vm is_near(vf max, vf scale) {
  return vless(vabs(vmul(max, scale)), vset(0x1p20f));
}
TEGULA_INLINE bool is_far(float max, float scale) {
  return !(__builtin_fabsf(max * scale) < 0x1p20f);
}

// The shifts of rows whose scores have the maximum `max`, and what they stand for.
TEGULA_INLINE void find_shifts(vf scale, vf& max, vf& shift) {
  const vf round = vset(0x1.8p23f);  // to an integer when added
  const vf whole = vsub(vadd(vmul(max, scale), round), round);
  const vm near = is_near(max, scale);
  shift = vselect(near, vsub(vzero(), whole), vzero());
  max = vselect(near, vdiv(whole, scale), max);
}

template <int kParts>
TEGULA_INLINE vf near_row(const UnitRows& unit, int64_t r, vf (&x)[kRowVectors]) {
  const vf scale = vset(unit.exponent_scale), shift = vset(unit.shift[r]);
#pragma GCC unroll 16
  for (int i = 0; i < kRowVectors; ++i) x[i] = vfma(x[i], scale, shift);
  return exponentiate<kParts>(x, unit.p + r * 2 * kTileKeys);
}
template <int kParts>
TEGULA_INLINE vf any_row(const UnitRows& unit, int64_t r, vf (&x)[kRowVectors]) {
  // A row that has seen no key keeps -inf as its flag and adds 0.
  if (unit.max[r] == -__builtin_inff() || !is_far(unit.max[r], unit.exponent_scale))
    return near_row<kParts>(unit, r, x);
  const vf scale = vset(unit.exponent_scale), max = vset(unit.max[r]);
#pragma GCC unroll 16
  for (int i = 0; i < kRowVectors; ++i) x[i] = vmul(vsub(x[i], max), scale);
  return exponentiate<kParts>(x, unit.p + r * 2 * kTileKeys);
}

// Row r of scores, masked where they are to be and with a shift. kFar: it may be a far one. Returns
// the lanes' sums.
template <int kParts, bool kFar>
TEGULA_INLINE vf soften_row(const UnitRows& unit, int64_t r) {
  vf x[kRowVectors];
  load_scores(unit.scores + r * kTileKeys, x);
  const vf sum = kFar ? any_row<kParts>(unit, r, x) : near_row<kParts>(unit, r, x);
  vstore(unit.sum_out + r * kLanes, vadd(sum, vload(unit.sum_in + r * kLanes)));
  return sum;
}

// Scores to natural-log units: scale, softcap, ALiBi.
TEGULA_INLINE void cook_row(const UnitMask& mask, int64_t r, vf (&x)[kRowVectors]) {
  const vf scale = vset(mask.scale);
#pragma GCC unroll 16
  for (int i = 0; i < kRowVectors; ++i) x[i] = vmul(x[i], scale);
  if (mask.softcap > 0.0f) {
    const vf cap = vset(mask.softcap), inverse = vset(1.0f / mask.softcap);
#pragma GCC unroll 16
    for (int i = 0; i < kRowVectors; ++i) x[i] = vmul(cap, vtanh(vmul(x[i], inverse)));
  }
  if (mask.alibi) {
    const vf slope = vset(mask.slope[r]), position = vset(mask.position[r]);
#pragma GCC unroll 16
    for (int i = 0; i < kRowVectors; ++i) {
      const vf key = vadd(vset(static_cast<float>(i * kLanes)), vcount());
      x[i] = vsub(x[i], vmul(slope, vabs(vsub(position, key))));
    }
  }
}

// What most units need not have before their exponentials: score modifiers, masks, and shifts of
// rows that have none. In a pass of its own: 32 maxima along the lanes cost little together.
__attribute__((noinline)) inline void prepare_rows(const UnitRows& unit, const UnitMask& mask) {
  const vf scale = vset(unit.exponent_scale), unseen = vset(-__builtin_inff());
  for (int64_t r = 0; r < kTileRows; r += kLanes) {
    vf maxima[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
      float* const scores = unit.scores + (r + i) * kTileKeys;
      vf x[kRowVectors];
      load_scores(scores, x);
      if (mask.cooked) cook_row(mask, r + i, x);
      const bool partial = mask.partial && (mask.begin[r + i] > 0 || mask.end[r + i] < kTileKeys);
      if (partial) {
        const vi begin = vset_int(mask.begin[r + i]), end = vset_int(mask.end[r + i]);
#pragma GCC unroll 16
        for (int j = 0; j < kRowVectors; ++j) {
          const vi key = vadd_int(vset_int(j * kLanes), vcount_int());
          x[j] = vselect(vinside(key, begin, end), x[j], unseen);
        }
      }
      if (mask.cooked || partial) {
#pragma GCC unroll 16
        for (int j = 0; j < kRowVectors; ++j) vstore(scores + j * kLanes, x[j]);
      }
      maxima[i] = row_maximum(x);
    }
    vtranspose(maxima);
    vf max = maxima[0], shift;
#pragma GCC unroll 16
    for (int i = 1; i < kLanes; ++i) max = vmax(maxima[i], max);
    find_shifts(scale, max, shift);
    const vf old_max = vload(unit.max + r);
    const vm fresh = vequal(old_max, unseen);
    vstore(unit.max + r, vselect(fresh, max, old_max));
    vstore(unit.shift + r, vselect(fresh, shift, vload(unit.shift + r)));
  }
}

// Whether a lane's sum has outgrown the shift, or is NaN.
TEGULA_INLINE bool outgrown(vf sum) {
  return vany_not_below(sum, vset(kShiftLimit));
}

// After a unit in which some row has outgrown its shift: gives such rows a new one. rescale(r,
// factor) multiplies what the row has accumulated in O. A row's fate follows from its own scores.
template <int kParts, class Rescale>
__attribute__((noinline)) inline void take_new_shifts(const UnitRows& unit, Rescale&& rescale) {
  for (int64_t r = 0; r < kTileRows; ++r) {
    vf x[kRowVectors];
    load_scores(unit.scores + r * kTileKeys, x);
    if (!outgrown(any_row<kParts>(unit, r, x))) continue;
    load_scores(unit.scores + r * kTileKeys, x);
    const float old_max = unit.max[r], old_shift = unit.shift[r];
    float factor = 1.0f;
    vf max = vset(vmax_lanes(row_maximum(x))), shift;
    if (first_lane(max) > old_max) {  // not so: NaN
      find_shifts(vset(unit.exponent_scale), max, shift);
      unit.max[r] = first_lane(max);
      unit.shift[r] = first_lane(shift);
      const bool far =
          is_far(old_max, unit.exponent_scale) || is_far(unit.max[r], unit.exponent_scale);
      factor = first_lane(far ? vexp2<5>(vset((old_max - unit.max[r]) * unit.exponent_scale))
                              : vscale_exponent(vset(1.0f), vset(unit.shift[r] - old_shift)));
    }
    const vf sum = any_row<kParts>(unit, r, x);
    vstore(unit.sum_out + r * kLanes, vfma(vset(factor), vload(unit.sum_in + r * kLanes), sum));
    if (factor != 1.0f) rescale(r, factor);
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
