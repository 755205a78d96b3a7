// SPDX-License-Identifier: Apache-2.0
// The model's twin of device/ptx/memory.hpp.
#pragma once

#include "device/abi/forward.hpp"
#include "device/ptx/sync.hpp"

namespace tegula::device::ptx {

inline void tma_load(u32 destination, const TensorMap* map, int column, int row, int head,
                     int batch, u32 barrier) {
  api->tma_load(destination, map, {column, row, head, batch}, barrier);
}

inline void cp_async_16(u32 destination, const void* source, bool valid) {
  if (reinterpret_cast<u64>(source) % 16 != 0 && valid)
    api->fail("cp.async: an address that is no multiple of 16");
  api->cp_async(destination, source, 16, valid ? 16 : 0);
}
inline void cp_async_commit() {
  api->cp_async_commit();
}
template <int kOutstanding>
void cp_async_wait() {
  api->cp_async_wait(kOutstanding);
}

inline void store_shared_16(u32 address, const u32 (&x)[4]) {
  __builtin_memcpy(shared_pointer(address), x, 16);
}
inline void store_global_16(void* address, const u32 (&x)[4]) {
  if (reinterpret_cast<u64>(address) % 16 != 0)
    api->fail("st.global.v4: an address that is no multiple of 16");
  __builtin_memcpy(address, x, 16);
}
inline u32 load_u16(const void* address) {
  unsigned short x;
  __builtin_memcpy(&x, address, 2);
  return x;
}

// A lane of ldmatrix: the address that it brings and what it receives.
struct LdmatrixLane {
  u32 address;
  u32* x;
};
inline void ldmatrix_work(void* const (&lanes)[32]) {
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes[lane] == nullptr) continue;
    for (int matrix = 0; matrix < 4; ++matrix) {
      const auto* const row = static_cast<LdmatrixLane*>(lanes[8 * matrix + lane / 4]);
      __builtin_memcpy(static_cast<LdmatrixLane*>(lanes[lane])->x + matrix,
                       shared_pointer(row->address) + lane % 4 * 4, 4);
    }
  }
}
inline void ldmatrix_4(u32 (&x)[4], u32 address) {
  LdmatrixLane mine{address, x};
  api->collective(ldmatrix_work, &mine);
}

inline u32 bits16_of(Dtype dtype, float x) {
  if (dtype == Dtype::kF16) {
    const auto half = static_cast<_Float16>(x);
    return __builtin_bit_cast(unsigned short, half);
  }
  if (x != x) return 0x7fff;
  const u32 bits = __builtin_bit_cast(u32, x);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
template <Dtype kDtype>
u32 pack(float low, float high) {
  return bits16_of(kDtype, low) | bits16_of(kDtype, high) << 16;
}

inline float flush(float x) {
  return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}
inline float ex2(float x) {
  return flush(exp2f(flush(x)));
}
inline float lg2(float x) {
  return log2f(flush(x));
}
inline float rcp(float x) {
  return flush(1 / flush(x));
}

}  // namespace tegula::device::ptx
