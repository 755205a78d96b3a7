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

TEGULA_INLINE vf vsum_lanes(const vf (&a)[kLanes]) {
  vf sums = vzero();
  for (int i = 0; i < kLanes; ++i) sums[i] = (a[i][0] + a[i][1]) + (a[i][2] + a[i][3]);
  return sums;
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

// 2^x for x <= 0 (or NaN, which passes); below 2^-126: 0.
template <int kDegree>
TEGULA_INLINE vf vexp2(vf x) {
  const vm kept = ~(x < vset(-126.0f));  // true for NaN
  const vf safe =
      vselect(x >= vset(-126.0f), x, vzero());  // the conversion to int below needs a small number
  vi n = __builtin_convertvector(safe, vi);
  n += vfrom_int(n) > safe;  // truncated to floor: true is -1
  const vf f = vselect(x >= vset(-126.0f), safe - vfrom_int(n),
                       x);  // NaN stays; what is not kept does not matter
  vf p;
  if constexpr (kDegree == 5) {
    p = vfma(vset(0.00187757681f), f, vset(0.00898933973f));
    p = vfma(p, f, vset(0.0558263184f));
    p = vfma(p, f, vset(0.240153617f));
    p = vfma(p, f, vset(0.693153073f));
    p = vfma(p, f, vset(0.999999925f));
  } else {
    static_assert(kDegree == 3);
    p = vfma(vset(0.0780245261f), f, vset(0.22606715f));
    p = vfma(p, f, vset(0.695833542f));
    p = vfma(p, f, vset(0.999925218f));
  }
  const vf scaled = p * reinterpret_cast<vf>((n + 127) << 23);
  return reinterpret_cast<vf>(reinterpret_cast<vi>(scaled) & kept);
}

template <tegula_dtype kType>
TEGULA_INLINE vf vwiden(const char* p) {
  vf a;
  for (int i = 0; i < kLanes; ++i) a[i] = widen<kType>(p + i * size_of(kType));
  return a;
}

template <tegula_dtype kType>
TEGULA_INLINE void vnarrow(char* p, vf a) {
  for (int i = 0; i < kLanes; ++i) narrow<kType>(p + i * size_of(kType), a[i]);
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
