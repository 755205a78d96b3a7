// SPDX-License-Identifier: Apache-2.0
// From q . k to what the softmax sees: softcap, ALiBi, mask; and which blocks need which.
#pragma once

#include "device/abi/forward.hpp"
#include "device/core/softmax.hpp"

namespace tegula::device {

template <ForwardSpec kSpec>
TEGULA_DEVICE Mask<kSpec.mask> mask_of(const ForwardParams& params, const ForwardTile& tile) {
  return {params.mask, tile.seqlen_q, tile.seqlen_k, tile.leftpad};
}

// tanh of a small argument on the FMA units: odd minimax polynomial on [-0.55, 0.55], relative
// error 4e-8.
inline constexpr float kSmallTanh = 0.55f;
TEGULA_DEVICE float small_tanh(float x) {
  const float y = x * x;
  const float tail =
      fmaf(fmaf(fmaf(0.01643757f, y, -0.05267181f), y, 0.13320725f), y, -0.33332947f);
  return fmaf(x * y, tail, x);
}
// 1 - 2 / (1 + e^2x): saturates by itself; an absolute error of 1e-7.
TEGULA_DEVICE float large_tanh(float x) {
  return fmaf(-2, ptx::rcp(1 + ptx::ex2(2 * kLog2e * x)), 1);
}

// The 64 rows of a consumer warpgroup: their blocks of keys and what happens to their scores.
template <ForwardSpec kSpec>
class Scores {
 public:
  TEGULA_DEVICE Scores(const ForwardParams& params, const ForwardTile& tile, int first_row)
      : mask_(mask_of<kSpec>(params, tile)) {
    blocks_ = mask_.blocks(first_row, first_row + 64, kSpec.tile_n);
    const int last_row = least(first_row + 63, tile.seqlen_q - 1);
    whole_ = {mask_.keys(last_row).begin, mask_.keys(first_row).end};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_[r] = first_row + acc_row(threadIdx.x, 2 * r);
      keys_[r] = mask_.keys(row_[r]);
    }
    if constexpr (kSpec.alibi) {
      slope_ = params.alibi_slopes.data[tile.batch * params.alibi_slopes.batch_stride +
                                        tile.head * params.alibi_slopes.head_stride];
    }
  }

  TEGULA_DEVICE KeyRange blocks() const { return blocks_; }
  TEGULA_DEVICE int row(int r) const { return row_[r]; }
  TEGULA_DEVICE bool empty(int r) const { return keys_[r].empty(); }

  // The scores of block n, ready for the softmax.
  TEGULA_DEVICE void apply(float (&s)[kSpec.tile_n / 2], const ForwardParams& params, int n) const {
    if constexpr (kSpec.softcap) cap(s, params.inner_scale);
    if constexpr (kSpec.alibi) bias(s, params, n);
    const int begin = n * kSpec.tile_n;
    const bool left = kSpec.mask == MaskKind::kInterval && begin < whole_.begin;
    if (left || begin + kSpec.tile_n > whole_.end) hide(s, begin);
  }

 private:
  static constexpr int kCount = kSpec.tile_n / 2;

  TEGULA_DEVICE static int column_of(int i) { return i / 4 * 8 + i % 2; }  // of lane 0

  TEGULA_DEVICE void hide(float (&s)[kCount], int begin) const {
    const int first = begin + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const KeyRange& keys = keys_[i / 2 % 2];
      bool hidden = column_of(i) >= keys.end - first;
      if constexpr (kSpec.mask == MaskKind::kInterval) {
        hidden = hidden || column_of(i) < keys.begin - first;
      }
      if (hidden) s[i] = -kInfinity;
    }
  }

  // s <- tanh(inner_scale * s). Most blocks hold small arguments alone: one vote, no special
  // functions.
  TEGULA_DEVICE static void cap(float (&s)[kCount], float inner_scale) {
    float high = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      s[i] *= inner_scale;
      high = fmaxf(high, fabsf(s[i]));
    }
    if (!ptx::warp_any(high > kSmallTanh)) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) s[i] = small_tanh(s[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        s[i] = fabsf(s[i]) > kSmallTanh ? large_tanh(s[i]) : small_tanh(s[i]);
      }
    }
  }

  // To units of the natural logarithm, and the slope's share.
  TEGULA_DEVICE void bias(float (&s)[kCount], const ForwardParams& params, int n) const {
    const float scale = kSpec.softcap ? params.softcap : params.inner_scale;
    const int first = n * kSpec.tile_n + threadIdx.x % 4 * 2;
    const int offset = mask_.seqlen_k - mask_.seqlen_q - first;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float distance = static_cast<float>(row_[i / 2 % 2] + offset - column_of(i));
      s[i] = fmaf(s[i], scale, -slope_ * fabsf(distance));
    }
  }

  Mask<kSpec.mask> mask_;
  KeyRange blocks_;
  KeyRange whole_;  // keys that all 64 rows see
  int row_[2];
  KeyRange keys_[2];
  float slope_ = 0;
};

}  // namespace tegula::device
