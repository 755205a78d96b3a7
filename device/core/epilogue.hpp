// SPDX-License-Identifier: Apache-2.0
// From sums to o and lse: normalisation, the sink, empty rows, stores.
#pragma once

#include "device/core/scores.hpp"

namespace tegula::device {

// What a row's sums are multiplied by, and its lse.
struct RowResult {
  float factor;
  float lse;
};

// log2 of the row's total is reference + log2(sum), without the sink.
TEGULA_DEVICE RowResult finish_row(float sum, float reference, bool empty, bool has_sink,
                                   float sink) {
  if (empty) return {0, has_sink ? sink : -kInfinity};
  if (!has_sink || sink == -kInfinity) {
    return {__fdividef(1, sum), (reference + ptx::lg2(sum)) * kLn2};
  }
  // The sink is one more logit of the denominator; the larger of the two gives the reference.
  const float sink2 = sink * kLog2e;
  const float top = fmaxf(reference, sink2);
  const float share = ptx::ex2(reference - top);
  const float total = fmaf(sum, share, ptx::ex2(sink2 - top));
  return {__fdividef(share, total), (top + ptx::lg2(total)) * kLn2};
}

template <ForwardSpec kSpec>
class Epilogue {
 public:
  TEGULA_DEVICE Epilogue(const ForwardParams& params, const ForwardTile& tile)
      : params_(params), tile_(tile) {}

  // acc_o: the thread's two rows, times what finish_row() says.
  TEGULA_DEVICE void store(float (&acc_o)[kSpec.head_dim_v / 2], const Scores<kSpec>& scores,
                           const RowResult (&rows)[2]) const {
    const Rows& o = params_.o;
#pragma unroll
    for (int i = 0; i < kSpec.head_dim_v / 2; ++i) acc_o[i] *= rows[i / 2 % 2].factor;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = scores.row(r);
      const bool valid = row < tile_.seqlen_q;
      char* const begin =
          static_cast<char*>(o.data) + (tile_.q_batch * o.batch_stride +
                                        (tile_.q_row + static_cast<long long>(row)) * o.row_stride +
                                        tile_.head * o.head_stride) *
                                           size_of(kSpec.o_dtype);
      if (scores.empty(r)) {  // nothing was added, or products of zeros
#pragma unroll
        for (int i = 0; i < kSpec.head_dim_v / 2; ++i) acc_o[i] = i / 2 % 2 == r ? 0 : acc_o[i];
      }
      if (!params_.o_aligned) {
        store_elements(acc_o, r, begin, valid);
      } else if constexpr (kSpec.o_dtype == Dtype::kF32) {
        store_pairs(acc_o, r, begin, valid);
      } else {
        store_chunks(acc_o, r, begin, valid);
      }
      if (params_.lse.data != nullptr && threadIdx.x % 4 == 0 && valid) {
        params_.lse
            .data[tile_.q_batch * params_.lse.batch_stride + tile_.head * params_.lse.head_stride +
                  (tile_.q_row + static_cast<long long>(row)) * params_.lse.row_stride] =
            rows[r].lse;
      }
    }
  }

 private:
  static constexpr int kBlocks = kSpec.head_dim_v / 8;  // of 8 columns: two a lane

  // 16-bit o: a quad exchanges four blocks of 8 columns so that each lane stores 16 bytes.
  TEGULA_DEVICE void store_chunks(const float (&acc_o)[kSpec.head_dim_v / 2], int r, char* begin,
                                  bool valid) const {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int block = 0; block < kBlocks; block += 4) {
      u32 x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 4 * (block + i) + 2 * r;
        x[i] = ptx::pack<kSpec.o_dtype>(acc_o[j], acc_o[j + 1]);
      }
      // A transposition of 4 x 4 in two steps; lane l ends with column block l.
#pragma unroll
      for (int step = 1; step <= 2; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i & step) continue;
          const bool upper = (lane & step) != 0;
          const u32 other = ptx::shuffle_xor(upper ? x[i] : x[i + step], step);
          if (upper) {
            x[i] = other;
          } else {
            x[i + step] = other;
          }
        }
      }
      const int column = (block + lane) * 8;
      if (valid && column < params_.head_dim_v) ptx::store_global_16(begin + 2 * column, x);
    }
  }
  TEGULA_DEVICE void store_pairs(const float (&acc_o)[kSpec.head_dim_v / 2], int r, char* begin,
                                 bool valid) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int column = block * 8 + threadIdx.x % 4 * 2, j = 4 * block + 2 * r;
      if (valid && column < params_.head_dim_v) {
        *reinterpret_cast<float2*>(begin + 4 * column) = make_float2(acc_o[j], acc_o[j + 1]);
      }
    }
  }
  TEGULA_DEVICE void store_elements(const float (&acc_o)[kSpec.head_dim_v / 2], int r, char* begin,
                                    bool valid) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int column = block * 8 + threadIdx.x % 4 * 2, j = 4 * block + 2 * r;
      if (!valid || column >= params_.head_dim_v) continue;
      if constexpr (kSpec.o_dtype == Dtype::kF32) {
        reinterpret_cast<float*>(begin)[column] = acc_o[j];
        reinterpret_cast<float*>(begin)[column + 1] = acc_o[j + 1];
      } else {
        const u32 x = ptx::pack<kSpec.o_dtype>(acc_o[j], acc_o[j + 1]);
        reinterpret_cast<unsigned short*>(begin)[column] = static_cast<unsigned short>(x);
        reinterpret_cast<unsigned short*>(begin)[column + 1] = static_cast<unsigned short>(x >> 16);
      }
    }
  }

  const ForwardParams& params_;
  const ForwardTile& tile_;
};

}  // namespace tegula::device
