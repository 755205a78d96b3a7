// SPDX-License-Identifier: Apache-2.0
// Vectors of eight floats: AVX2, FMA, F16C. See vec/avx512.hpp for what each name means.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "src/cpu/kernels/convert.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

inline constexpr int kLanes = 8;
inline constexpr int kPanelVectors =
    3;  // 24 packed rows: 4x3 and 6x2 tiles are the largest that 16 registers hold
inline constexpr int kAccumulators = 12;
inline constexpr int kOutRows = 6;
inline constexpr int kOutVectors = 2;
inline constexpr bool kHasPairs = false;

using vf = __m256;
using vi = __m256i;
using vm = __m256;  // all bits of a lane

TEGULA_INLINE vf vload(const float* p) {
  return _mm256_loadu_ps(p);
}
TEGULA_INLINE void vstore(float* p, vf a) {
  _mm256_storeu_ps(p, a);
}
TEGULA_INLINE vf vset(float a) {
  return _mm256_set1_ps(a);
}
TEGULA_INLINE vf vzero() {
  return _mm256_setzero_ps();
}
TEGULA_INLINE vf vadd(vf a, vf b) {
  return _mm256_add_ps(a, b);
}
TEGULA_INLINE vf vsub(vf a, vf b) {
  return _mm256_sub_ps(a, b);
}
TEGULA_INLINE vf vmul(vf a, vf b) {
  return _mm256_mul_ps(a, b);
}
TEGULA_INLINE vf vdiv(vf a, vf b) {
  return _mm256_div_ps(a, b);
}
TEGULA_INLINE vf vfma(vf a, vf b, vf c) {
  return _mm256_fmadd_ps(a, b, c);
}
TEGULA_INLINE vf vmax(vf a, vf b) {
  return _mm256_max_ps(a, b);
}
TEGULA_INLINE vf vabs(vf a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
TEGULA_INLINE vf vcopysign(vf magnitude, vf sign) {
  return _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
TEGULA_INLINE vm vless(vf a, vf b) {
  return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
TEGULA_INLINE vm vequal(vf a, vf b) {
  return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}
TEGULA_INLINE bool vall(vm mask) {
  return _mm256_movemask_ps(mask) == 0xff;
}
TEGULA_INLINE vf vselect(vm mask, vf yes, vf no) {
  return _mm256_blendv_ps(no, yes, mask);
}

template <int kPeriod>
TEGULA_INLINE vf vfold_max(vf a) {
  if constexpr (kPeriod <= 4) a = vmax(a, _mm256_permute2f128_ps(a, a, 0x01));
  if constexpr (kPeriod <= 2) a = vmax(a, _mm256_permute_ps(a, 0x4e));
  if constexpr (kPeriod <= 1) a = vmax(a, _mm256_permute_ps(a, 0xb1));
  return a;
}

TEGULA_INLINE vf vsum_lanes(const vf (&a)[kLanes]) {
  const auto pairs = [&](int i) { return _mm256_hadd_ps(a[i], a[i + 1]); };
  const vf low = _mm256_hadd_ps(pairs(0), pairs(2));   // lanes 0-3 and 4-7 of a[0..3], to be added
  const vf high = _mm256_hadd_ps(pairs(4), pairs(6));  // of a[4..7]
  return vadd(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

TEGULA_INLINE void vtranspose(vf (&a)[kLanes]) {
  vf b[8], c[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    c[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    c[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    c[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    c[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm256_permute2f128_ps(c[i], c[i + 4], 0x20);
    a[i + 4] = _mm256_permute2f128_ps(c[i], c[i + 4], 0x31);
  }
}

TEGULA_INLINE vi vload_int(const int32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
TEGULA_INLINE vi vset_int(int32_t a) {
  return _mm256_set1_epi32(a);
}
TEGULA_INLINE vm vinside(vi a, vi begin, vi end) {
  return _mm256_castsi256_ps(
      _mm256_andnot_si256(_mm256_cmpgt_epi32(begin, a), _mm256_cmpgt_epi32(end, a)));
}

TEGULA_INLINE vf vfraction(vf x) {
  return vsub(x, _mm256_floor_ps(x));
}
// 0 from 2^-126 on: there is no shorter way to build a smaller power.
TEGULA_INLINE vf vscale_exponent(vf a, vf x) {
  const vi exponent = _mm256_slli_epi32(
      _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_floor_ps(x)), _mm256_set1_epi32(127)), 23);
  const vf kept = _mm256_cmp_ps(x, vset(-126.0f), _CMP_NLT_UQ);  // true for NaN
  return _mm256_and_ps(kept, vmul(a, _mm256_castsi256_ps(exponent)));
}

TEGULA_INLINE vf vsplit_exponent(vf x, vf& exponent) {
  const vi bits = _mm256_castps_si256(x);
  const vi e = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f400000)), 23);
  exponent = _mm256_cvtepi32_ps(e);
  return _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(e, 23)));
}

template <tegula_dtype kType>
TEGULA_INLINE vf vwiden(const char* p) {
  if constexpr (kType == TEGULA_F32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  } else if constexpr (kType == TEGULA_BF16) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  } else if constexpr (kType == TEGULA_F16) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  } else {
    const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    if constexpr (kType == TEGULA_E5M2) {
      return _mm256_cvtph_ps(_mm_slli_epi16(wide, 8));
    } else {
      const __m128i magnitude = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x7f)), 7);
      const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
      const vf value = vmul(_mm256_cvtph_ps(_mm_or_si128(magnitude, sign)), vset(256.0f));
      const __m128i nan =
          _mm_cmpeq_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7f));
      return _mm256_or_ps(value,
                          _mm256_castsi256_ps(_mm256_cvtepi16_epi32(nan)));  // all ones is a NaN
    }
  }
}

template <tegula_dtype kType>
inline constexpr int kRunVectors = kType == TEGULA_BF16 ? 2 : 1;
template <tegula_dtype kType>
inline constexpr float kRunScale = 1.0f;
template <tegula_dtype kType>
TEGULA_INLINE constexpr int run_value(int i) {
  return kType == TEGULA_BF16 ? i % kLanes * 2 + i / kLanes : i;
}
template <tegula_dtype kType>
TEGULA_INLINE void vwiden_run(const char* p, vf* to) {
  if constexpr (kType == TEGULA_BF16) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    to[0] = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    to[1] = _mm256_castsi256_ps(
        _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000))));
  } else {
    to[0] = vwiden<kType>(p);
  }
}

template <tegula_dtype kType>
TEGULA_INLINE void vnarrow(char* p, vf a) {
  if constexpr (kType == TEGULA_F32) {
    _mm256_storeu_ps(reinterpret_cast<float*>(p), a);
  } else if constexpr (kType == TEGULA_F16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  } else {
    static_assert(kType == TEGULA_BF16);
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan);
    const __m256i high = _mm256_srli_epi32(rounded, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
