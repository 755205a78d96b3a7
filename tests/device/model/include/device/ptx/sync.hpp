// SPDX-License-Identifier: Apache-2.0
// The model's twin of device/ptx/sync.hpp.
#pragma once

#include "device/abi/types.hpp"

#define TEGULA_DEVICE inline

namespace tegula::device {

extern thread_local char memory[];

}

namespace tegula::device::ptx {

using u32 = unsigned;
using u64 = unsigned long long;
using model::api;

inline u32 shared_address(const void* pointer) {
  return static_cast<u32>(static_cast<const char*>(pointer) - memory) + model::kSharedBase;
}
inline char* shared_pointer(u32 address) {
  if (address < model::kSharedBase || address >= model::kSharedBase + model::kSharedBytes) {
    api->fail("an address outside the shared memory");
  }
  return memory + (address - model::kSharedBase);
}

inline void mbarrier_init(u32 barrier, int count) {
  api->mbarrier_init(barrier, count);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(u32 barrier) {
  api->mbarrier_arrive(barrier, 0);
}
inline void mbarrier_expect(u32 barrier, int bytes) {
  api->mbarrier_arrive(barrier, bytes);
}
inline bool mbarrier_try_wait(u32 barrier, u32 parity) {
  return api->mbarrier_test(barrier, parity);
}
inline void mbarrier_wait(u32 barrier, u32 parity) {
  api->mbarrier_wait(barrier, parity);
}

inline void named_barrier_sync(int id, int threads) {
  api->barrier_sync(id, threads);
}
inline void named_barrier_arrive(int id, int threads) {
  api->barrier_arrive(id, threads);
}

inline void fence_proxy_async() {}

template <int kCount>
void setmaxnreg_inc() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
}
template <int kCount>
void setmaxnreg_dec() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
}

inline bool warp_any(bool predicate) {
  return __any_sync(~0u, predicate);
}
inline void warp_sync() {
  __syncwarp();
}
template <typename T>
T shuffle_xor(T value, int lanes) {
  return __shfl_xor_sync(~0u, value, lanes);
}
template <typename T>
T shuffle(T value, int lane) {
  return __shfl_sync(~0u, value, lane);
}

}  // namespace tegula::device::ptx

namespace tegula::device {

using ptx::u32;
using ptx::u64;

}  // namespace tegula::device
