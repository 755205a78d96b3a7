// SPDX-License-Identifier: Apache-2.0
// Copies, loads, stores and conversions: one function for each instruction.
#pragma once

#include "device/abi/forward.hpp"
#include "device/ptx/sync.hpp"

namespace tegula::device::ptx {

// A box of a 4-dimensional tensor into shared memory; completes on the barrier.
TEGULA_DEVICE void tma_load(u32 destination, const TensorMap* map, int column, int row, int head,
                            int batch, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(destination),
      "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier)
      : "memory");
}

// 16 bytes; writes zeros if !valid (and reads nothing).
TEGULA_DEVICE void cp_async_16(u32 destination, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(__cvta_generic_to_global(source)), "r"(valid ? 16 : 0)
               : "memory");
}
TEGULA_DEVICE void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kOutstanding>
TEGULA_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOutstanding) : "memory");
}

TEGULA_DEVICE void store_shared_16(u32 address, const u32 (&x)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
}
TEGULA_DEVICE void store_global_16(void* address, const u32 (&x)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
}
// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
TEGULA_DEVICE void ldmatrix_4(u32 (&x)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}
TEGULA_DEVICE u32 load_u16(const void* address) {
  unsigned short x;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(x) : "l"(address));
  return x;
}

// Two values rounded to 16 bits, low first.
template <Dtype kDtype>
TEGULA_DEVICE u32 pack(float low, float high) {
  u32 packed;
  if constexpr (kDtype == Dtype::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

TEGULA_DEVICE float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TEGULA_DEVICE float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TEGULA_DEVICE float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tegula::device::ptx
