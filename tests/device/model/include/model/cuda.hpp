// SPDX-License-Identifier: Apache-2.0
// What CUDA C++ brings by itself, for the host's compiler. Included before a kernel's text.
#pragma once

#include <cmath>

#include "tests/device/model/include/model/api.hpp"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
// All threads of a block run on one thread of the host.
#define __shared__ thread_local

namespace tegula::model {

inline const Api* api = nullptr;

template <class Parameters>
void call(void (*kernel)(Parameters), void** parameters) {
  kernel(*static_cast<const Parameters*>(parameters[0]));
}

// Each lane brings a value and gets all.
template <class T>
struct Lane {
  T value;
  T all[32];
};
template <class T>
void exchange(void* const (&lanes)[32]) {
  for (void* to : lanes) {
    if (to == nullptr) continue;
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr)
        static_cast<Lane<T>*>(to)->all[i] = static_cast<Lane<T>*>(lanes[i])->value;
    }
  }
}
template <class T>
T shuffle(T value, int lane) {
  Lane<T> mine{value, {}};
  api->collective(exchange<T>, &mine);
  return mine.all[lane & 31];
}

}  // namespace tegula::model

#define threadIdx ((*tegula::model::api->current)->thread)
#define blockIdx ((*tegula::model::api->current)->block)
#define gridDim ((*tegula::model::api->current)->grid)

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

inline float __fdividef(float a, float b) {
  return a / b;
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline void __syncthreads() {
  tegula::model::api->barrier_sync(0, 0);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

inline int tegula_model_lane() {
  return static_cast<int>(threadIdx.x % 32);
}
inline void __syncwarp() {
  tegula::model::shuffle(0, 0);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return tegula::model::shuffle(value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
  return tegula::model::shuffle(value, tegula_model_lane() ^ lanes);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int lanes) {
  const int from = tegula_model_lane() - lanes;
  return tegula::model::shuffle(value, from < 0 ? tegula_model_lane() : from);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int lanes) {
  const int from = tegula_model_lane() + lanes;
  return tegula::model::shuffle(value, from > 31 ? tegula_model_lane() : from);
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
  tegula::model::Lane<int> mine{predicate ? 1 : 0, {}};
  tegula::model::api->collective(tegula::model::exchange<int>, &mine);
  unsigned set = 0;
  for (int i = 0; i < 32; ++i) set |= static_cast<unsigned>(mine.all[i]) << i;
  return set;
}
inline bool __any_sync(unsigned mask, bool predicate) {
  return __ballot_sync(mask, predicate) != 0;
}

template <class T, class U>
T atomicAdd(T* address, U value) {
  const T old = *address;
  *address = static_cast<T>(old + value);
  return old;
}
template <class T, class U>
T atomicMax(T* address, U value) {
  const T old = *address;
  if (static_cast<T>(value) > old) *address = static_cast<T>(value);
  return old;
}
template <class T, class U>
T atomicExch(T* address, U value) {
  const T old = *address;
  *address = static_cast<T>(value);
  return old;
}

namespace tegula::device {
alignas(1024) thread_local char memory[tegula::model::kSharedBytes];
}

// What the machine looks for in a kernel's library.
extern "C" __attribute__((visibility("default"))) char* tegula_model_attach(
    const tegula::model::Api* api) {
  tegula::model::api = api;
  return tegula::device::memory;
}
