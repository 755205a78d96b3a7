// SPDX-License-Identifier: Apache-2.0
// Products of tiles by a warpgroup: 64 rows each, asynchronous, one commit group a call. Tiles lie
// in 128-byte-swizzled panels (abi/layout.hpp).
#pragma once

#include "device/abi/layout.hpp"
#include "device/ptx/memory.hpp"
#include "device/ptx/wgmma.hpp"

namespace tegula::device {

TEGULA_DEVICE u64 descriptor(u32 address, int leading_bytes) {
  return descriptor_base(leading_bytes) | (address & 0x3ffff) >> 4;
}

// acc = A B^T over kK columns, both K-major in shared memory: tiles of kRowsA and kRowsB rows; a
// points at the first of the warpgroup's rows.
template <Dtype kDtype, int kN, int kK, int kRowsA>
TEGULA_DEVICE void product(float (&acc)[kN / 2], u32 a, u32 b) {
  const u64 left = descriptor(a, 16), right = descriptor(b, 16);
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
    ptx::Wgmma<kDtype, kN>::ss(acc, left + k_major_step(kRowsA, step),
                               right + k_major_step(kN, step), step > 0);
  }
  ptx::wgmma_commit();
}

// The same with A in registers.
template <Dtype kDtype, int kN, int kK>
TEGULA_DEVICE void product(float (&acc)[kN / 2], const u32 (&a)[kK / 4], u32 b) {
  const u64 right = descriptor(b, 16);
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
    ptx::Wgmma<kDtype, kN>::template rs<false>(acc, a + 4 * step, right + k_major_step(kN, step),
                                               step > 0);
  }
  ptx::wgmma_commit();
}

// acc (+)= A B with A of kK columns in registers and B a tile of kK rows and kN columns.
template <Dtype kDtype, int kN, int kK>
TEGULA_DEVICE void product_transposed(float (&acc)[kN / 2], const u32 (&a)[kK / 4], u32 b,
                                      bool accumulate) {
  const u64 right = descriptor(b, kK * kPanelRowBytes);
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
    ptx::Wgmma<kDtype, kN>::template rs<true>(acc, a + 4 * step, right + mn_major_step(step),
                                              step > 0 || accumulate);
  }
  ptx::wgmma_commit();
}

// An accumulator, rounded, as operand A of the next product.
template <Dtype kDtype, int kCount>
TEGULA_DEVICE void round_to_operand(u32 (&a)[kCount / 2], const float (&acc)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) a[i] = ptx::pack<kDtype>(acc[2 * i], acc[2 * i + 1]);
}

// The warpgroup's 64 rows of a tile of kRows rows as operand A, from row `first` on.
template <int kRows, int kK>
TEGULA_DEVICE void load_operand(u32 (&a)[kK / 4], u32 tile, int first) {
  const int lane = threadIdx.x % kWarp;
  const int row = first + threadIdx.x % kWarpgroup / kWarp * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
    u32 x[4];
    ptx::ldmatrix_4(x, tile + swizzled_chunk(kRows, row, 2 * step + lane / 16));
#pragma unroll
    for (int i = 0; i < 4; ++i) a[4 * step + i] = x[i];
  }
}

// Rows of a tile of kRows rows that lie outside [begin, end) become zero; by a whole warpgroup. The
// tensor cores may read them after fence_proxy_async() and a barrier.
template <int kRows, int kColumns>
TEGULA_DEVICE void zero_rows_outside(u32 tile, int begin, int end) {
  const u32 zeros[4] = {0, 0, 0, 0};
  for (int i = threadIdx.x % kWarpgroup; i < panels_of(kColumns) * kRows * 8; i += kWarpgroup) {
    const int row = i / 8 % kRows;
    if (row < begin || row >= end) ptx::store_shared_16(tile + i * kChunkBytes, zeros);
  }
}

}  // namespace tegula::device
