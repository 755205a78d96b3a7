// SPDX-License-Identifier: Apache-2.0
// Softmax of a unit of 32 query rows x 64 keys, lanes = keys, with a lazy shift: a row's shift is
// the maximum of the first unit in which it sees a key, and stays. bf16 has fp32's exponents, so P
// may exceed 1; a row whose sums pass kShiftLimit takes a new shift, and what it has summed so far
// is rescaled. So most rows need no maximum, no alpha and no rescaling of O.
#pragma once

#include "src/cpu/kernels/math.hpp"
#include "src/cpu/kernels/softmax.hpp"
#include "src/cpu/kernels/tile_pack.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

inline constexpr float kShiftLimit = 0x1p28f;  // of a lane's sum over one unit

// How the rows of a unit see its keys: the general form has score modifiers, masks and rows that
// have no shift yet.
struct UnitMask {
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
  float* max;     // [32], -inf: the row has seen no key
  const float* sum_in;
  float* sum_out;  // [32][kLanes], the lanes' sums up to the unit before and with it
  float exponent_scale;
  const UnitMask* mask;
};

inline constexpr int kRowVectors = kTileKeys / kLanes;

// P of one row and the sums of its lanes. Parts: 2 keeps 16 bits of P.
template <int kParts>
TEGULA_INLINE vf exponentiate(const vf (&x)[kRowVectors], float shift, float scale, char* p) {
  const vf m = vset(shift), c = vset(scale);
  vf sum = vzero();
#pragma GCC unroll 16
  for (int i = 0; i < kRowVectors; i += 2) {
    // The difference before the scale: see softmax.hpp.
    const vf a = vexp2 < kParts == 1 ? 3 : 5 > (vmul(vsub(x[i], m), c));
    const vf b = vexp2 < kParts == 1 ? 3 : 5 > (vmul(vsub(x[i + 1], m), c));
    sum = vadd(sum, vadd(a, b));
    if constexpr (kParts == 1) {
      narrow_two(p + 2 * i * kLanes, a, b);
    } else {
      const vf high_a = vtruncate_bf16(a), high_b = vtruncate_bf16(b);
      narrow_two(p + 2 * i * kLanes, high_a, high_b);
      narrow_two(p + kTileRows * kTileKeys * 2 + 2 * i * kLanes, vsub(a, high_a), vsub(b, high_b));
    }
  }
  return sum;
}

TEGULA_INLINE void load_scores(const float* scores, vf (&x)[kRowVectors]) {
#pragma GCC unroll 16
  for (int i = 0; i < kRowVectors; ++i) x[i] = vload(scores + i * kLanes);
}

TEGULA_INLINE float row_maximum(const vf (&x)[kRowVectors]) {
  vf maximum = x[0];
#pragma GCC unroll 16
  for (int i = 1; i < kRowVectors; ++i) maximum = vmax(x[i], maximum);
  return vmax_lanes(maximum);
}

// A row that has seen no key keeps -inf as its flag and subtracts 0.
TEGULA_INLINE float shift_of(float max) {
  return max == -__builtin_inff() ? 0.0f : max;
}

// Row r, of which every key is visible and a shift known. Returns the lanes' sums.
template <int kParts>
TEGULA_INLINE vf plain_row(const UnitRows& unit, int64_t r) {
  vf x[kRowVectors];
  load_scores(unit.scores + r * kTileKeys, x);
  const vf sum =
      exponentiate<kParts>(x, unit.max[r], unit.exponent_scale, unit.p + r * 2 * kTileKeys);
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

template <int kParts>
__attribute__((noinline)) inline vf general_row(const UnitRows& unit, int64_t r) {
  const UnitMask& mask = *unit.mask;
  float* const scores = unit.scores + r * kTileKeys;
  const vi begin = vset_int(mask.begin[r]), end = vset_int(mask.end[r]);
  vf x[kRowVectors];
  load_scores(scores, x);
  if (mask.cooked) cook_row(mask, r, x);
#pragma GCC unroll 16
  for (int i = 0; i < kRowVectors; ++i) {
    x[i] = vselect(vinside(vadd_int(vset_int(i * kLanes), vcount_int()), begin, end), x[i],
                   vset(-__builtin_inff()));
    vstore(scores + i * kLanes, x[i]);  // for take_new_shifts
  }
  if (unit.max[r] == -__builtin_inff()) unit.max[r] = row_maximum(x);
  const vf sum = exponentiate<kParts>(x, shift_of(unit.max[r]), unit.exponent_scale,
                                      unit.p + r * 2 * kTileKeys);
  vstore(unit.sum_out + r * kLanes, vadd(sum, vload(unit.sum_in + r * kLanes)));
  return sum;
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
    char* const p = unit.p + r * 2 * kTileKeys;
    const float old_max = unit.max[r];
    if (!outgrown(exponentiate<kParts>(x, shift_of(old_max), unit.exponent_scale, p))) continue;
    const float here = row_maximum(x);
    const float max = here > old_max ? here : old_max;
    const float factor =
        max == old_max ? 1.0f : first_lane(vexp2<5>(vset((old_max - max) * unit.exponent_scale)));
    unit.max[r] = max;
    const vf sum = exponentiate<kParts>(x, shift_of(max), unit.exponent_scale, p);
    vstore(unit.sum_out + r * kLanes, vfma(vset(factor), vload(unit.sum_in + r * kLanes), sum));
    if (factor != 1.0f) rescale(r, factor);
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
