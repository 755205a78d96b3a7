// SPDX-License-Identifier: Apache-2.0
// Barriers, fences, votes: one function for each instruction.
// A label inside braces is local to them. It must not equal a C++ constant: with NVRTC that one
// becomes a symbol of the same name.
#pragma once

#include "device/abi/types.hpp"

#define TEGULA_DEVICE __device__ __forceinline__

namespace tegula::device::ptx {

using u32 = unsigned;
using u64 = unsigned long long;

TEGULA_DEVICE u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

TEGULA_DEVICE void mbarrier_init(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Makes initialised barriers visible to the copy engine.
TEGULA_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
TEGULA_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
TEGULA_DEVICE void mbarrier_expect(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
TEGULA_DEVICE bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// Returns when the phase of this parity is complete.
TEGULA_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier_again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra mbarrier_done;\n"
      "bra mbarrier_again;\n"
      "mbarrier_done:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

TEGULA_DEVICE void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TEGULA_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders this thread's writes of shared memory before later reads and writes by the copy engine and
// the tensor cores.
TEGULA_DEVICE void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kCount>
TEGULA_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
TEGULA_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

TEGULA_DEVICE bool warp_any(bool predicate) {
  return __any_sync(~0u, predicate);
}
TEGULA_DEVICE void warp_sync() {
  __syncwarp();
}
template <typename T>
TEGULA_DEVICE T shuffle_xor(T value, int lanes) {
  return __shfl_xor_sync(~0u, value, lanes);
}
template <typename T>
TEGULA_DEVICE T shuffle(T value, int lane) {
  return __shfl_sync(~0u, value, lane);
}

}  // namespace tegula::device::ptx

namespace tegula::device {

using ptx::u32;
using ptx::u64;

}  // namespace tegula::device
