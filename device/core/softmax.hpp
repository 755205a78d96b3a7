// SPDX-License-Identifier: Apache-2.0
// The running softmax of the rows of an accumulator: maximum, sum, and the factor by which earlier
// results shrink. It knows rows and nothing else.
#pragma once

#include "device/abi/layout.hpp"
#include "device/ptx/memory.hpp"

namespace tegula::device {

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
inline constexpr float kLog2e = 1.44269504f;
inline constexpr float kLn2 = 0.69314718f;

// A thread holds two rows (r = 0, 1), each shared by the four lanes of a quad. Probabilities are
// 2^(scale * s - reference): the reference is a maximum of the row, but not always its newest. It
// is raised when a score exceeds it by more than 8 (log2 units), so p stays below 2^8 and most
// blocks need no rescaling; nothing is lost, since numerator and denominator share the reference.
// Each row decides for itself, from its own scores: what other rows of the warp hold changes no
// bit.
template <int kN>
class Softmax {
 public:
  TEGULA_DEVICE void reset(float scale) {
    slack_ = __fdividef(kSlack, scale);
    far_ = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      limit_[r] = -kInfinity;
      reference_[r] = shift_[r] = sum_[r] = 0;
    }
  }

  // Scores of a block become probabilities; masked ones are -inf.
  TEGULA_DEVICE void update(float (&s)[kN / 2], float scale) {
    float high[2] = {fmaxf(s[0], s[1]), fmaxf(s[2], s[3])};
#pragma unroll
    for (int i = 4; i < kN / 2; i += 4) {
      high[0] = fmaxf(high[0], fmaxf(s[i], s[i + 1]));
      high[1] = fmaxf(high[1], fmaxf(s[i + 2], s[i + 3]));
    }
    raised_ = ptx::warp_any(high[0] > limit_[0] || high[1] > limit_[1]);
    if (raised_) raise(high, scale);
    if (far_) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) s[i] -= shift_[i / 2 % 2];
    }
    float partial[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      s[i] = ptx::ex2(fmaf(s[i], scale, -reference_[i / 2 % 2]));
      partial[i % 4] += s[i];
    }
    sum_[0] += partial[0] + partial[1];
    sum_[1] += partial[2] + partial[3];
  }

  // Of sums over earlier blocks, after update().
  template <int kCount>
  TEGULA_DEVICE void rescale(float (&acc_o)[kCount]) const {
    if (!raised_) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) acc_o[i] *= factor_[i / 2 % 2];
  }

  // Completes the sums over the quad. Afterwards p's total is sum(r) * 2^reference(r).
  TEGULA_DEVICE void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum_[r] += ptx::shuffle_xor(sum_[r], 1);
      sum_[r] += ptx::shuffle_xor(sum_[r], 2);
    }
  }
  TEGULA_DEVICE float sum(int r) const { return sum_[r]; }
  TEGULA_DEVICE float reference(int r, float scale) const {
    return fmaf(shift_[r], scale, reference_[r]);
  }

 private:
  static constexpr float kSlack = 8;
  // Beyond it (log2 units) scale * s - reference would carry too large a rounding of the product:
  // such a row keeps its maximum unscaled in shift_, subtracted before the scale.
  static constexpr float kFar = 1048576;

  // Raises the reference of rows whose maximum exceeds the limit.
  TEGULA_DEVICE void raise(const float (&high)[2], float scale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = fmaxf(high[r], ptx::shuffle_xor(high[r], 1));
      top = fmaxf(top, ptx::shuffle_xor(top, 2));
      factor_[r] = 1;
      if (top > limit_[r]) {
        const bool far = fabsf(top * scale) > kFar;
        const float reference = far ? 0 : top * scale;
        const float shift = far ? top : 0;
        factor_[r] = limit_[r] == -kInfinity
                         ? 0
                         : ptx::ex2(fmaf(shift_[r] - shift, scale, reference_[r] - reference));
        reference_[r] = reference;
        shift_[r] = shift;
        limit_[r] = top + slack_;
        sum_[r] *= factor_[r];
      }
    }
    far_ = ptx::warp_any(shift_[0] != 0 || shift_[1] != 0);
  }

  float limit_[2];  // -inf: no key yet
  float reference_[2];
  float shift_[2];
  float sum_[2];  // this lane's
  float factor_[2];
  float slack_;
  bool raised_;
  bool far_;  // some row of the warp has a shift
};

}  // namespace tegula::device
