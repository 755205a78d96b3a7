// SPDX-License-Identifier: Apache-2.0
// Vectors of sixteen floats: AVX-512 F, BW, DQ, VL; with TEGULA_PAIRS also the bf16 dot product.
// The list of names below is the same in every vec/ header; kernels/ is written against it.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "src/cpu/kernels/convert.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

inline constexpr int kLanes = 16;
inline constexpr int kPanelVectors =
    4;  // 64 packed rows: the 4x4 register tile reaches 97-100 % (docs/design/cpu_forward.md)
inline constexpr int kAccumulators = 16;  // of 32 registers; the rest hold operands
inline constexpr int kOutRows = 4;
inline constexpr int kOutVectors = 4;

using vf = __m512;
using vi = __m512i;
using vm = __mmask16;

TEGULA_INLINE vf vload(const float* p) {
  return _mm512_loadu_ps(p);
}
TEGULA_INLINE void vstore(float* p, vf a) {
  _mm512_storeu_ps(p, a);
}
TEGULA_INLINE vf vset(float a) {
  return _mm512_set1_ps(a);
}
TEGULA_INLINE vf vzero() {
  return _mm512_setzero_ps();
}
TEGULA_INLINE vf vadd(vf a, vf b) {
  return _mm512_add_ps(a, b);
}
TEGULA_INLINE vf vsub(vf a, vf b) {
  return _mm512_sub_ps(a, b);
}
TEGULA_INLINE vf vmul(vf a, vf b) {
  return _mm512_mul_ps(a, b);
}
TEGULA_INLINE vf vdiv(vf a, vf b) {
  return _mm512_div_ps(a, b);
}
TEGULA_INLINE vf vfma(vf a, vf b, vf c) {
  return _mm512_fmadd_ps(a, b, c);
}  // a b + c
// a > b ? a : b, so that a NaN in b passes.
TEGULA_INLINE vf vmax(vf a, vf b) {
  return _mm512_max_ps(a, b);
}
TEGULA_INLINE vf vabs(vf a) {
  return _mm512_abs_ps(a);
}
TEGULA_INLINE vf vcopysign(vf magnitude, vf sign) {
  return _mm512_or_ps(magnitude, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
TEGULA_INLINE vm vless(vf a, vf b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
TEGULA_INLINE vm vequal(vf a, vf b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
TEGULA_INLINE bool vall(vm mask) {
  return mask == 0xffff;
}
TEGULA_INLINE vf vselect(vm mask, vf yes, vf no) {
  return _mm512_mask_mov_ps(no, mask, yes);
}

// The maximum over the lanes that are the same modulo kPeriod, in all of them.
template <int kPeriod>
TEGULA_INLINE vf vfold_max(vf a) {
  if constexpr (kPeriod <= 8) a = vmax(a, _mm512_shuffle_f32x4(a, a, 0x4e));
  if constexpr (kPeriod <= 4) a = vmax(a, _mm512_shuffle_f32x4(a, a, 0xb1));
  if constexpr (kPeriod <= 2) a = vmax(a, _mm512_permute_ps(a, 0x4e));
  if constexpr (kPeriod <= 1) a = vmax(a, _mm512_permute_ps(a, 0xb1));
  return a;
}

// Lane i: the sum of a[i]'s lanes. 15 additions and 30 shuffles for 16 sums.
TEGULA_INLINE vf vsum_lanes(const vf (&a)[kLanes]) {
  vf pairs[8], quads[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    pairs[i] = vadd(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]),
                    _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d x = _mm512_castps_pd(pairs[2 * i]), y = _mm512_castps_pd(pairs[2 * i + 1]);
    quads[i] = vadd(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  const auto fold = [](vf x, vf y) {
    return vadd(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
  };
  return fold(fold(quads[0], quads[1]), fold(quads[2], quads[3]));
}

// a[i][j] becomes a[j][i].
TEGULA_INLINE void vtranspose(vf (&a)[kLanes]) {
  vf b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  const auto low = [](vf x, vf y) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
  };
  const auto high = [](vf x, vf y) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
  };
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // a[i + c]: columns c, c + 4, ... of rows i to i + 3
    a[i] = low(b[i], b[i + 2]);
    a[i + 1] = high(b[i], b[i + 2]);
    a[i + 2] = low(b[i + 1], b[i + 3]);
    a[i + 3] = high(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const vf even0 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88);
    const vf even1 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
    const vf odd0 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
    const vf odd1 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
    b[c] = _mm512_shuffle_f32x4(even0, even1, 0x88);
    b[4 + c] = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
    b[8 + c] = _mm512_shuffle_f32x4(even0, even1, 0xdd);
    b[12 + c] = _mm512_shuffle_f32x4(odd0, odd1, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = b[i];
}

TEGULA_INLINE vi vload_int(const int32_t* p) {
  return _mm512_loadu_si512(p);
}
TEGULA_INLINE vi vset_int(int32_t a) {
  return _mm512_set1_epi32(a);
}
// begin <= a < end
TEGULA_INLINE vm vinside(vi a, vi begin, vi end) {
  return _mm512_mask_cmplt_epi32_mask(_mm512_cmple_epi32_mask(begin, a), a, end);
}

// x - floor(x), 0 for -inf: vreduceps says so itself.
TEGULA_INLINE vf vfraction(vf x) {
  return _mm512_reduce_ps(x, 0x09);
}
// a 2^floor(x): 0 for x = -inf; from 2^128 on infinite, which the lazy shift of tiles relies on
// (tile_softmax.hpp). NaN passes.
TEGULA_INLINE vf vscale_exponent(vf a, vf x) {
  return _mm512_scalef_ps(a, x);
}

// x = m 2^e with m in [0.75, 1.5), for a normal x > 0: gives e and returns m.
TEGULA_INLINE vf vsplit_exponent(vf x, vf& exponent) {
  const vi bits = _mm512_castps_si512(x);
  const vi e = _mm512_srai_epi32(_mm512_sub_epi32(bits, vset_int(0x3f400000)), 23);
  exponent = _mm512_cvtepi32_ps(e);
  return _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(e, 23)));
}

// Sixteen stored values as floats; exact for every type.
template <tegula_dtype kType>
TEGULA_INLINE vf vwiden(const char* p) {
  if constexpr (kType == TEGULA_F32) {
    return _mm512_loadu_ps(p);
  } else if constexpr (kType == TEGULA_BF16) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  } else if constexpr (kType == TEGULA_F16) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  } else {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i wide = _mm256_cvtepu8_epi16(bytes);
    if constexpr (kType == TEGULA_E5M2) {
      return _mm512_cvtph_ps(_mm256_slli_epi16(wide, 8));
    } else {
      // e4m3's exponent and mantissa land on fp16's; fp16's bias is larger by 8, undone by an exact
      // product.
      const __m256i magnitude =
          _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7);
      const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
      const vf value = vmul(_mm512_cvtph_ps(_mm256_or_si256(magnitude, sign)), vset(256.0f));
      const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)),
                                                    _mm256_set1_epi16(0x7f));
      return _mm512_mask_mov_ps(value, nan, vset(__builtin_nanf("")));
    }
  }
}

// A run of stored values as kRunVectors vectors of floats, in the order that costs least: float i
// is value run_value(i) of the run, times 1 / kRunScale (exact). Not for an 8-bit NaN.
template <tegula_dtype kType>
inline constexpr int kRunVectors = kType == TEGULA_F32 || kType == TEGULA_F16 ? 1 : 2;
template <tegula_dtype kType>
inline constexpr float kRunScale = kType == TEGULA_E4M3 ? 256.0f : 1.0f;
template <tegula_dtype kType>
TEGULA_INLINE constexpr int run_value(int i) {
  return kType == TEGULA_BF16 ? i % kLanes * 2 + i / kLanes : i;
}
template <tegula_dtype kType>
TEGULA_INLINE void vwiden_run(const char* p, vf* to) {
  if constexpr (kType == TEGULA_BF16) {
    const __m512i bits = _mm512_loadu_si512(p);
    to[0] = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    to[1] = _mm512_castsi512_ps(
        _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000))));
  } else if constexpr (size_of(kType) == 1) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    __m512i half = _mm512_slli_epi16(_mm512_cvtepu8_epi16(bytes), 8);
    if constexpr (kType == TEGULA_E4M3) {
      // One place to the right, e4m3's fields are those of fp16, whose bias is larger by 8.
      half = _mm512_and_si512(_mm512_srai_epi16(half, 1),
                              _mm512_set1_epi16(static_cast<int16_t>(0xbfff)));
    }
    to[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
    to[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
  } else {
    to[0] = vwiden<kType>(p);
  }
}

// Rounds to nearest even.
template <tegula_dtype kType>
TEGULA_INLINE void vnarrow(char* p, vf a) {
  if constexpr (kType == TEGULA_F32) {
    _mm512_storeu_ps(p, a);
  } else if constexpr (kType == TEGULA_F16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  } else {
    static_assert(kType == TEGULA_BF16);
#ifdef TEGULA_PAIRS
    // Subnormal numbers become 0.
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a)));
#else
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
#endif
  }
}

// For the kernels on matrix tiles, lanes = keys.
TEGULA_INLINE vi vcount_int() {
  return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
}
TEGULA_INLINE vf vcount() {
  return _mm512_cvtepi32_ps(vcount_int());
}
TEGULA_INLINE vi vadd_int(vi a, vi b) {
  return _mm512_add_epi32(a, b);
}
TEGULA_INLINE float vmax_lanes(vf a) {
  return _mm512_reduce_max_ps(a);
}
TEGULA_INLINE float first_lane(vf a) {
  return _mm512_cvtss_f32(a);
}
// Whether some lane is not <= b: NaN is not.
TEGULA_INLINE bool vany_not_below(vf a, vf b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ) != 0;
}
// Towards zero, to a number that bf16 holds.
TEGULA_INLINE vf vtruncate_bf16(vf a) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
// 2 x kLanes values as bf16; denormals may become 0.
TEGULA_INLINE void narrow_two(char* p, vf a, vf b) {
#ifdef __AVX512BF16__
  _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
#else
  vnarrow<TEGULA_BF16>(p, a);
  vnarrow<TEGULA_BF16>(p + 2 * kLanes, b);
#endif
}
// Values rounded to bf16 in the low and in the high halves of words, the other halves 0; denormals
// may become 0.
TEGULA_INLINE void store_halves(vf a, char* low, char* high) {
#ifdef __AVX512BF16__
  const __m512i half = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a)));
#else
  const __m512i bits = _mm512_castps_si512(a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  const __m512i half = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
#endif
  _mm512_storeu_si512(low, half);
  _mm512_storeu_si512(high, _mm512_slli_epi32(half, 16));
}
// 32 values of 16 bits each of two rows as pairs (even[i], odd[i]): 0-15 to `low`, 16-31 to `high`.
TEGULA_INLINE void interleave_words(const char* even, const char* odd, char* low, char* high) {
  const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  const __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
  _mm512_storeu_si512(low, _mm512_permutex2var_epi16(a, first, b));
  _mm512_storeu_si512(high, _mm512_permutex2var_epi16(a, second, b));
}

#ifdef TEGULA_PAIRS
inline constexpr bool kHasPairs = true;

// Lane i: acc + a's pair i . b's pair i.
TEGULA_INLINE vf vdot_pairs(vf acc, vf a, vf b) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
// Lane i: (bf16(even[i]), bf16(odd[i])).
TEGULA_INLINE vf vpack_pairs(vf even, vf odd) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, both));
}
// A run of stored values as kPairVectors vectors of bf16 pairs; 16-bit element i is value
// pair_value(i) of the run. And two rows at once: pair i of the 2 kPairVectors vectors is (even[c],
// odd[c]) with c = zip_value(i). Exact; not for an 8-bit NaN.
template <tegula_dtype kType>
inline constexpr int kPairVectors = kType == TEGULA_BF16 ? 1 : 2;
template <tegula_dtype kType>
TEGULA_INLINE constexpr int pair_value(int i) {
  return kType == TEGULA_BF16 ? i : i % 32 / 8 * 16 + i / 32 * 8 + i % 8;
}
template <tegula_dtype kType>
TEGULA_INLINE constexpr int zip_value(int i) {
  return i % 16 / 4 * (kType == TEGULA_BF16 ? 8 : 16) + i / 16 * 4 + i % 4;
}

// The upper or lower byte of the bf16 that a code without its sign stands for.
template <tegula_dtype kType, bool kUpper>
struct ByteTable {
  alignas(64) uint8_t at[128];
  constexpr ByteTable() : at{} {
    constexpr int kMantissa = kType == TEGULA_E4M3 ? 3 : 2;
    constexpr int kBias = kType == TEGULA_E4M3 ? 7 : 15;
    for (int code = 0; code < 128; ++code) {
      int exponent = code >> kMantissa, mantissa = code & ((1 << kMantissa) - 1);
      if (exponent == 0 && mantissa != 0) {  // subnormal
        for (exponent = 1; mantissa < 1 << kMantissa; mantissa *= 2) --exponent;
        mantissa -= 1 << kMantissa;
      }
      const int bits = code == 0 ? 0 : (exponent - kBias + 127) << 7 | mantissa << (7 - kMantissa);
      at[code] = static_cast<uint8_t>(kUpper ? bits >> 8 : bits & 0xff);
    }
  }
};
template <tegula_dtype kType>
constexpr ByteTable<kType, true> kUpperBytes;
template <tegula_dtype kType>
constexpr ByteTable<kType, false> kLowerBytes;

// 64 8-bit values as bf16: in each 128-bit lane its first eight, then its last eight.
template <tegula_dtype kType>
TEGULA_INLINE void vwiden_bytes(__m512i codes, __m512i (&to)[2]) {
  const auto look_up = [](const uint8_t* table, __m512i index) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
  };
  const __m512i lower = look_up(kLowerBytes<kType>.at, codes);
  const __m512i upper =
      _mm512_ternarylogic_epi32(look_up(kUpperBytes<kType>.at, codes), codes,
                                _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);  // a | (b & c)
  to[0] = _mm512_unpacklo_epi8(lower, upper);
  to[1] = _mm512_unpackhi_epi8(lower, upper);
}

template <tegula_dtype kType>
TEGULA_INLINE void vload_pairs(const char* p, vf* to) {
  if constexpr (kType == TEGULA_BF16) {
    to[0] = _mm512_loadu_ps(p);
  } else {
    __m512i wide[2];
    vwiden_bytes<kType>(_mm512_loadu_si512(p), wide);
    to[0] = _mm512_castsi512_ps(wide[0]);
    to[1] = _mm512_castsi512_ps(wide[1]);
  }
}
template <tegula_dtype kType>
TEGULA_INLINE void vzip_pairs(const char* even, const char* odd, vf* to) {
  const __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
  if constexpr (kType == TEGULA_BF16) {
    to[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(a, b));
    to[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(a, b));
  } else {  // codes that alternate stay so when they are widened
    __m512i first[2], last[2];
    vwiden_bytes<kType>(_mm512_unpacklo_epi8(a, b), first);
    vwiden_bytes<kType>(_mm512_unpackhi_epi8(a, b), last);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      to[i] = _mm512_castsi512_ps(first[i]);
      to[2 + i] = _mm512_castsi512_ps(last[i]);
    }
  }
}

// Sixteen values [key][row] of kRows rows as pairs of bf16 [key / 2][row], (even key, odd key).
template <int kRows>
TEGULA_INLINE void vpack_keys(vf values, float* to) {
  __m256i bits = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
  if constexpr (kRows > 1) {
    alignas(32) uint16_t order[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {  // pair, row, half -> key, row
      const int half = i % 2, row = i / 2 % kRows, pair = i / 2 / kRows;
      order[i] = static_cast<uint16_t>((2 * pair + half) * kRows + row);
    }
    bits =
        _mm256_permutexvar_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(order)), bits);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
}
#else
inline constexpr bool kHasPairs = false;
#endif

}  // namespace tegula::TEGULA_ISA_NAMESPACE
