// SPDX-License-Identifier: Apache-2.0
// 2^x and tanh for vectors, on vec/'s vfraction and vscale_exponent.
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

// 2^x for x <= 0; 2^-inf = 0, and NaN passes. Relative error 7.5e-8 at degree 5, 7.5e-5 at
// degree 3.
template <int kDegree>
TEGULA_INLINE vf vexp2(vf x) {
  static_assert(kDegree == 3 || kDegree == 5);
  const vf f = vfraction(x);  // 2^f on [0, 1)
  if constexpr (kDegree == 5) {
    constexpr Polynomial<5> kPower{
        {0.999999925f, 0.693153073f, 0.240153617f, 0.0558263184f, 0.00898933973f, 0.00187757681f}};
    return vscale_exponent(kPower(f), x);
  } else {
    constexpr Polynomial<3> kPower{{0.999925218f, 0.695833542f, 0.22606715f, 0.0780245261f}};
    return vscale_exponent(kPower(f), x);
  }
}

// tanh for every x: an odd polynomial below 0.625, where 1 - 2 / (e^2x + 1) would cancel; relative
// error 1e-7.
TEGULA_INLINE vf vtanh(vf x) {
  constexpr Polynomial<4> kSmall{
      {-0.333333287f, 0.133327447f, -0.0538465373f, 0.0209744845f, -0.00606164159f}};
  const vf magnitude = vabs(x);
  const vf z = vmul(x, x);
  const vf small = vfma(vmul(kSmall(z), z), x, x);
  const vf e = vexp2<5>(vmul(magnitude, vset(-2.88539008f)));  // exp(-2 |x|)
  const vf large = vcopysign(vdiv(vsub(vset(1.0f), e), vadd(vset(1.0f), e)), x);
  return vselect(vless(magnitude, vset(0.625f)), small, large);
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
