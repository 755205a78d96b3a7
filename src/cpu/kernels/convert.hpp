// SPDX-License-Identifier: Apache-2.0
// One stored value at a time, to and from fp32, by integer arithmetic: the same bits on every
// machine. Widening is exact; narrowing rounds to nearest even and needs the default rounding mode
// (set around every task). Vector forms: vec/.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <tegula/tegula.h>

#define TEGULA_INLINE inline __attribute__((always_inline))

namespace tegula::TEGULA_ISA_NAMESPACE {

TEGULA_INLINE constexpr int size_of(tegula_dtype type) {
  switch (type) {
    case TEGULA_F32: return 4;
    case TEGULA_F16:
    case TEGULA_BF16: return 2;
    default: return 1;
  }
}

TEGULA_INLINE uint32_t bits_of(float a) {
  uint32_t bits;
  __builtin_memcpy(&bits, &a, sizeof bits);
  return bits;
}
TEGULA_INLINE float float_of(uint32_t bits) {
  float a;
  __builtin_memcpy(&a, &bits, sizeof a);
  return a;
}

// Reads one value. Small formats put exponent and mantissa into fp32's fields; a product with a
// power of two moves the bias, which also makes subnormals right.
template <tegula_dtype kType>
TEGULA_INLINE float widen(const char* p) {
  if constexpr (kType == TEGULA_F32) {
    float a;
    __builtin_memcpy(&a, p, sizeof a);
    return a;
  } else if constexpr (kType == TEGULA_E4M3) {
    const uint32_t code = static_cast<uint8_t>(*p);
    const uint32_t sign = (code & 0x80) << 24;
    if ((code & 0x7f) == 0x7f) return float_of(sign | 0x7fc00000);
    return float_of(sign | bits_of(float_of((code & 0x7f) << 20) * 0x1p120f));
  } else {
    uint16_t half;
    if constexpr (kType == TEGULA_E5M2) {
      half = static_cast<uint16_t>(static_cast<uint8_t>(*p) << 8);
    } else {
      __builtin_memcpy(&half, p, sizeof half);
    }
    if constexpr (kType == TEGULA_BF16) {
      return float_of(static_cast<uint32_t>(half) << 16);
    } else {
      const uint32_t sign = (half & 0x8000u) << 16;
      const uint32_t magnitude = (half & 0x7fffu) << 13;
      if (magnitude >= 0x0f800000)
        return float_of(sign | 0x70000000 | magnitude | (magnitude > 0x0f800000 ? 0x400000 : 0));
      return float_of(sign | bits_of(float_of(magnitude) * 0x1p112f));
    }
  }
}

// Rounds |a| to kMantissa bits with the exponent bias of a small format whose least normal is
// 2^kMinExponent; subnormals by adding a number whose last place is the format's smallest step. Not
// for infinities and NaN.
template <int kMantissa, int kMinExponent>
TEGULA_INLINE uint32_t round_magnitude(float magnitude) {
  if (magnitude < float_of(static_cast<uint32_t>(kMinExponent + 127) << 23)) {
    constexpr uint32_t kMagic = static_cast<uint32_t>(kMinExponent - kMantissa + 23 + 127) << 23;
    return bits_of(magnitude + float_of(kMagic)) - kMagic;
  }
  constexpr int kShift = 23 - kMantissa;
  uint32_t bits = bits_of(magnitude);
  bits += ((1u << (kShift - 1)) - 1) + ((bits >> kShift) & 1);
  return (bits >> kShift) - (static_cast<uint32_t>(kMinExponent + 126) << kMantissa);
}

// Writes one value. 8-bit formats saturate, infinities included; NaN stays NaN.
template <tegula_dtype kType>
TEGULA_INLINE void narrow(char* p, float a) {
  if constexpr (kType == TEGULA_F32) {
    __builtin_memcpy(p, &a, sizeof a);
    return;
  }
  const uint32_t bits = bits_of(a);
  const uint32_t magnitude = bits & 0x7fffffff;
  const bool nan = magnitude > 0x7f800000;
  if constexpr (kType == TEGULA_BF16) {
    const uint32_t rounded = nan ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1);
    const uint16_t code = static_cast<uint16_t>(rounded >> 16);
    __builtin_memcpy(p, &code, sizeof code);
  } else if constexpr (kType == TEGULA_F16) {
    uint32_t code = nan                       ? 0x7e00
                    : magnitude >= 0x47800000 ? 0x7c00
                                              : round_magnitude<10, -14>(float_of(magnitude));
    const uint16_t half = static_cast<uint16_t>(code | (bits >> 16 & 0x8000));
    __builtin_memcpy(p, &half, sizeof half);
  } else if constexpr (kType == TEGULA_E4M3) {
    uint32_t code = nan                       ? 0x7f
                    : magnitude >= 0x43e00000 ? 0x7e
                                              : round_magnitude<3, -6>(float_of(magnitude));  // 448
    *p = static_cast<char>(code | (bits >> 24 & 0x80));
  } else if constexpr (kType == TEGULA_E5M2) {
    uint32_t code = nan ? 0x7e
                    : magnitude >= 0x47600000
                        ? 0x7b
                        : round_magnitude<2, -14>(float_of(magnitude));  // 57344
    *p = static_cast<char>(code | (bits >> 24 & 0x80));
  }
}

// Calls f.template operator()<type>() for the runtime type of a q, k, v or o element.
template <class F>
TEGULA_INLINE void with_type(tegula_dtype type, F&& f) {
  switch (type) {
    case TEGULA_F32: return f.template operator()<TEGULA_F32>();
    case TEGULA_F16: return f.template operator()<TEGULA_F16>();
    case TEGULA_BF16: return f.template operator()<TEGULA_BF16>();
    case TEGULA_E4M3: return f.template operator()<TEGULA_E4M3>();
    default: return f.template operator()<TEGULA_E5M2>();
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
