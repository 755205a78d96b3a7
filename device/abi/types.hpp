// SPDX-License-Identifier: Apache-2.0
// What every header here needs. The headers of this folder are read by the host's compiler and by
// NVRTC alike: constexpr, no standard header, sizes of int and long long alone.
#pragma once

#if defined(__CUDACC__)
#define TEGULA_BOTH __host__ __device__
#else
#define TEGULA_BOTH
#endif

namespace tegula::device {

// tegula_dtype's numbers (src/cuda/ops compares them).
enum class Dtype : int { kNone = 0, kF32 = 1, kF16 = 2, kBf16 = 3, kE4m3 = 4, kE5m2 = 5 };

TEGULA_BOTH constexpr int size_of(Dtype dtype) {
  return dtype == Dtype::kF32 ? 4 : dtype == Dtype::kF16 || dtype == Dtype::kBf16 ? 2 : 1;
}

TEGULA_BOTH constexpr int ceil_div(int a, int b) {
  return a / b + (a % b != 0);
}
TEGULA_BOTH constexpr int round_up(int a, int b) {
  return ceil_div(a, b) * b;
}
TEGULA_BOTH constexpr int least(int a, int b) {
  return a < b ? a : b;
}
TEGULA_BOTH constexpr int most(int a, int b) {
  return a > b ? a : b;
}
TEGULA_BOTH constexpr int clamp(int value, int low, int high) {
  return most(low, least(value, high));
}

inline constexpr int kWarp = 32;
inline constexpr int kWarpgroup = 128;
inline constexpr int kSmemLimit = 227 * 1024;  // bytes of a thread block on sm_90
inline constexpr int kRegisters = 65536;       // of an SM

// Longest sequence and widest window that int arithmetic on positions holds: the sum of two of them
// and 1 is still an int.
inline constexpr int kMaxLength = (1 << 30) - 1;

}  // namespace tegula::device
