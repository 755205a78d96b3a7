// SPDX-License-Identifier: Apache-2.0
// The portable family: vectors of four floats in the compiler's own vector type, which every target
// has (SSE2, NEON, or plain scalar code). No instruction set is named here. See vec/avx512.hpp for
// what each name means.
#pragma once

#include <stdint.h>

#include "src/cpu/kernels/convert.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

inline constexpr int kLanes = 4;
inline constexpr int kPanelVectors = 2;
inline constexpr int kAccumulators = 8;
inline constexpr int kOutRows = 4;
inline constexpr int kOutVectors = 2;
inline constexpr bool kHasPairs = false;

using vf = float __attribute__((vector_size(16)));
using vi = int32_t __attribute__((vector_size(16)));
using vm = vi;  // all bits of a lane

TEGULA_INLINE vf vload(const float* p) {
  vf a;
  __builtin_memcpy(&a, p, sizeof a);
  return a;
}
TEGULA_INLINE void vstore(float* p, vf a) {
  __builtin_memcpy(p, &a, sizeof a);
}
TEGULA_INLINE vf vset(float a) {
  return vf{a, a, a, a};
}
TEGULA_INLINE vf vzero() {
  return vset(0.0f);
}
TEGULA_INLINE vf vadd(vf a, vf b) {
  return a + b;
}
TEGULA_INLINE vf vsub(vf a, vf b) {
  return a - b;
}
TEGULA_INLINE vf vmul(vf a, vf b) {
  return a * b;
}
TEGULA_INLINE vf vdiv(vf a, vf b) {
  return a / b;
}
TEGULA_INLINE vf vfma(vf a, vf b, vf c) {
  return a * b + c;
}  // two roundings: no fused product without naming one
TEGULA_INLINE vf vselect(vm mask, vf yes, vf no) {
  return reinterpret_cast<vf>((reinterpret_cast<vi>(yes) & mask) |
                              (reinterpret_cast<vi>(no) & ~mask));
}
TEGULA_INLINE bool vall(vm mask) {
  return (mask[0] & mask[1] & mask[2] & mask[3]) != 0;
}
TEGULA_INLINE vm vless(vf a, vf b) {
  return a < b;
}
TEGULA_INLINE vm vequal(vf a, vf b) {
  return a == b;
}
TEGULA_INLINE vf vmax(vf a, vf b) {
  return vselect(a > b, a, b);
}
TEGULA_INLINE vi vset_int(int32_t a) {
  return vi{a, a, a, a};
}
TEGULA_INLINE vf vabs(vf a) {
  return reinterpret_cast<vf>(reinterpret_cast<vi>(a) & vset_int(0x7fffffff));
}
TEGULA_INLINE vf vcopysign(vf magnitude, vf sign) {
  return reinterpret_cast<vf>(reinterpret_cast<vi>(magnitude) |
                              (reinterpret_cast<vi>(sign) & vset_int(INT32_MIN)));
}

template <int kPeriod>
TEGULA_INLINE vf vfold_max(vf a) {
  if constexpr (kPeriod <= 2) a = vmax(a, vf{a[2], a[3], a[0], a[1]});
  if constexpr (kPeriod <= 1) a = vmax(a, vf{a[1], a[0], a[3], a[2]});
  return a;
}

TEGULA_INLINE vf vsum_lanes(const vf (&a)[kLanes]) {
  vf sums = vzero();
  for (int i = 0; i < kLanes; ++i) sums[i] = (a[i][0] + a[i][1]) + (a[i][2] + a[i][3]);
  return sums;
}

TEGULA_INLINE void vtranspose(vf (&a)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const float kept = a[i][j];
      a[i][j] = a[j][i];
      a[j][i] = kept;
    }
  }
}

TEGULA_INLINE vi vload_int(const int32_t* p) {
  vi a;
  __builtin_memcpy(&a, p, sizeof a);
  return a;
}
TEGULA_INLINE vf vfrom_int(vi a) {
  return __builtin_convertvector(a, vf);
}
TEGULA_INLINE vm vinside(vi a, vi begin, vi end) {
  return (begin <= a) & (a < end);
}

// floor(x) for -126 <= x < 128; other numbers, which no integer may hold, give 0.
TEGULA_INLINE vi vfloor(vf x) {
  const vf safe = vselect((x >= vset(-126.0f)) & (x < vset(128.0f)), x, vzero());
  const vi n = __builtin_convertvector(safe, vi);
  return n + (vfrom_int(n) > safe);  // truncated to floor: true is -1
}
TEGULA_INLINE vf vfraction(vf x) {
  return vsub(x, vfrom_int(vfloor(x)));
}
// 0 from 2^-126 on, infinite from 2^128 on.
TEGULA_INLINE vf vscale_exponent(vf a, vf x) {
  const vm kept = ~(x < vset(-126.0f));  // true for NaN
  const vf scaled = a * reinterpret_cast<vf>((vfloor(x) + 127) << 23);
  return vselect(x >= vset(128.0f), vset(__builtin_inff()),
                 reinterpret_cast<vf>(reinterpret_cast<vi>(scaled) & kept));
}

TEGULA_INLINE vf vsplit_exponent(vf x, vf& exponent) {
  const vi bits = reinterpret_cast<vi>(x);
  const vi e = (bits - 0x3f400000) >> 23;
  exponent = vfrom_int(e);
  return reinterpret_cast<vf>(bits - (e << 23));
}

template <tegula_dtype kType>
TEGULA_INLINE vf vwiden(const char* p) {
  vf a;
  for (int i = 0; i < kLanes; ++i) a[i] = widen<kType>(p + i * size_of(kType));
  return a;
}

template <tegula_dtype kType>
inline constexpr int kRunVectors = 1;
template <tegula_dtype kType>
inline constexpr float kRunScale = 1.0f;
template <tegula_dtype kType>
TEGULA_INLINE constexpr int run_value(int i) {
  return i;
}
template <tegula_dtype kType>
TEGULA_INLINE void vwiden_run(const char* p, vf* to) {
  to[0] = vwiden<kType>(p);
}

template <tegula_dtype kType>
TEGULA_INLINE void vnarrow(char* p, vf a) {
  for (int i = 0; i < kLanes; ++i) narrow<kType>(p + i * size_of(kType), a[i]);
}

// For the kernels on matrix tiles; vec/avx512.hpp says what each name means.
TEGULA_INLINE vi vcount_int() {
  return vi{0, 1, 2, 3};
}
TEGULA_INLINE vf vcount() {
  return vfrom_int(vcount_int());
}
TEGULA_INLINE vi vadd_int(vi a, vi b) {
  return a + b;
}
TEGULA_INLINE float vmax_lanes(vf a) {
  float maximum = a[0];
  for (int i = 1; i < kLanes; ++i) maximum = a[i] > maximum ? a[i] : maximum;
  return maximum;
}
TEGULA_INLINE float first_lane(vf a) {
  return a[0];
}
TEGULA_INLINE bool vany_not_below(vf a, vf b) {
  for (int i = 0; i < kLanes; ++i) {
    if (!(a[i] <= b[i])) return true;
  }
  return false;
}
TEGULA_INLINE vf vtruncate_bf16(vf a) {
  return reinterpret_cast<vf>(reinterpret_cast<vi>(a) & vset_int(static_cast<int32_t>(0xffff0000)));
}
TEGULA_INLINE void narrow_two(char* p, vf a, vf b) {
  vnarrow<TEGULA_BF16>(p, a);
  vnarrow<TEGULA_BF16>(p + 2 * kLanes, b);
}
TEGULA_INLINE void store_halves(vf a, char* low, char* high) {
  for (int i = 0; i < kLanes; ++i) {
    __builtin_memset(low + 4 * i, 0, 4);
    __builtin_memset(high + 4 * i, 0, 4);
    narrow<TEGULA_BF16>(low + 4 * i, a[i]);
    narrow<TEGULA_BF16>(high + 4 * i + 2, a[i]);
  }
}
TEGULA_INLINE void interleave_words(const char* even, const char* odd, char* low, char* high) {
  for (int i = 0; i < 32; ++i) {
    char* const to = (i < 16 ? low : high) + i % 16 * 4;
    __builtin_memcpy(to, even + 2 * i, 2);
    __builtin_memcpy(to + 2, odd + 2 * i, 2);
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
