// SPDX-License-Identifier: Apache-2.0
// 2^x, ln and tanh for vectors, on what vec/ does with exponents.
#pragma once

namespace tegula::TEGULA_ISA_NAMESPACE {

// A minimax polynomial, lowest power first.
template <int kDegree>
struct Polynomial {
  float at[kDegree + 1];

  TEGULA_INLINE vf operator()(vf x) const {
    vf value = vset(at[kDegree]);
#pragma GCC unroll 8
    for (int i = kDegree - 1; i >= 0; --i) value = vfma(value, x, vset(at[i]));
    return value;
  }
};

template <int kDegree>
TEGULA_INLINE constexpr Polynomial<kDegree> power_polynomial() {
  static_assert(kDegree == 3 || kDegree == 5);
  if constexpr (kDegree == 5) {
    return {
        {0.999999925f, 0.693153073f, 0.240153617f, 0.0558263184f, 0.00898933973f, 0.00187757681f}};
  } else {
    return {{0.999925218f, 0.695833542f, 0.22606715f, 0.0780245261f}};
  }
}

// 2^x; 2^-inf = 0, and NaN passes. x > 0 needs a vscale_exponent that overflows to infinity.
// Relative error 7.5e-8 at degree 5, 7.5e-5 at degree 3.
template <int kDegree>
TEGULA_INLINE vf vexp2(vf x) {
  constexpr Polynomial<kDegree> kPower = power_polynomial<kDegree>();  // 2^f on [0, 1)
  return vscale_exponent(kPower(vfraction(x)), x);
}

// 2^x of several vectors, step by step.
template <int kDegree, int kCount>
TEGULA_INLINE void vexp2_all(vf (&x)[kCount]) {
  constexpr Polynomial<kDegree> kPower = power_polynomial<kDegree>();
  vf f[kCount], value[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) f[i] = vfraction(x[i]);
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) value[i] = vset(kPower.at[kDegree]);
#pragma GCC unroll 8
  for (int j = kDegree - 1; j >= 0; --j) {
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) value[i] = vfma(value[i], f[i], vset(kPower.at[j]));
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) x[i] = vscale_exponent(value[i], x[i]);
}

// ln(x) for a normal x > 0, absolute error 4e-8 and the rounding of the result; else undefined.
TEGULA_INLINE vf vlog(vf x) {
  constexpr Polynomial<8> kSeries{{1.0f, -0.500001311f, 0.333335847f, -0.249900132f, 0.199739501f,
                                   -0.168687567f, 0.150496811f, -0.119150348f, 0.0516009256f}};
  vf exponent;
  const vf t = vsub(vsplit_exponent(x, exponent), vset(1.0f));  // ln(1 + t) = t P(t)
  return vfma(exponent, vset(0.693147182f), vmul(t, kSeries(t)));
}

// tanh(x) = x + x z P(z) with z = x^2 for |x| < kTanhSmall, where 1 - 2 / (e^2x + 1) would cancel;
// relative error 1e-7.
inline constexpr float kTanhSmall = 0.625f;
inline constexpr Polynomial<4> kTanhPolynomial{
    {-0.333333287f, 0.133327447f, -0.0538465373f, 0.0209744845f, -0.00606164159f}};

// tanh for |x| >= kTanhSmall.
TEGULA_INLINE vf vtanh_large(vf x) {
  const vf e = vexp2<5>(vmul(vabs(x), vset(-2.88539008f)));  // exp(-2 |x|)
  return vcopysign(vdiv(vsub(vset(1.0f), e), vadd(vset(1.0f), e)), x);
}

// tanh for every x.
TEGULA_INLINE vf vtanh(vf x) {
  const vf z = vmul(x, x);
  const vf small = vfma(vmul(kTanhPolynomial(z), z), x, x);
  return vselect(vless(vabs(x), vset(kTanhSmall)), small, vtanh_large(x));
}

// cap tanh(scale s / cap), the usual case being |s| far below the cap: the rest is computed only
// where a lane needs it. -inf stays.
struct Softcap {
  vf scale, inverse_cap, cap;
  vf limit;  // |s| below it: polynomial
  vf at[5];  // kTanhPolynomial in s^2
  TEGULA_INLINE Softcap(float s_scale, float s_cap)
      : scale(vset(s_scale)),
        inverse_cap(vset(s_scale / s_cap)),
        cap(vset(s_cap)),
        limit(vset(kTanhSmall * (s_cap / s_scale))) {
    float power = 1.0f;
    for (int i = 0; i < 5; ++i) {
      power *= (s_scale / s_cap) * (s_scale / s_cap);
      at[i] = vset(kTanhPolynomial.at[i] * power);
    }
  }
  TEGULA_INLINE vf operator()(vf s) const {
    const vf z = vmul(s, s), scaled = vmul(s, scale);
    vf series = at[4];
#pragma GCC unroll 4
    for (int i = 3; i >= 0; --i) series = vfma(series, z, at[i]);
    vf value = vfma(vmul(series, z), scaled, scaled);
    const vm small = vless(vabs(s), limit);
    if (__builtin_expect(!vall(small), 0)) {
      const vf large = vmul(cap, vtanh_large(vmul(s, inverse_cap)));
      value = vselect(small, value, vselect(vequal(s, vset(-__builtin_inff())), s, large));
    }
    return value;
  }
};

}  // namespace tegula::TEGULA_ISA_NAMESPACE
