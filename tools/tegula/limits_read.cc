// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3 (tools/CMakeLists.txt).
#include <atomic>
#include <cstring>

#include "tools/tegula/limits_kernels.hpp"
#include "tools/tegula/vector_type.hpp"

namespace tegula::program {
namespace {

constexpr std::size_t kLine = 64;

// Read only so that the loops below have to run.
std::atomic<std::int32_t> unused_result{0};

// Combines by exclusive or, which waits for nothing but the load.
template <int kLanes, int kStreams, bool kPrefetch>
TEGULA_INLINE std::int32_t read_body(const std::byte* data, std::size_t stride, std::size_t bytes,
                                     int ahead) {
  using Vector = typename VectorType<kLanes>::integer;
  constexpr std::size_t kStep = 4 * kLine;
  constexpr int kVectors = static_cast<int>(kStep / sizeof(Vector));
  Vector acc[4] = {};
  for (std::size_t at = 0; at < bytes; at += kStep) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* from = data + static_cast<std::size_t>(s) * stride + at;
      if constexpr (kPrefetch) {
        for (std::size_t line = 0; line < kStep; line += kLine)
          __builtin_prefetch(from + ahead + line, 0, 3);
      }
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        Vector x;
        std::memcpy(&x, from + static_cast<std::size_t>(j) * sizeof x, sizeof x);
        acc[j % 4] ^= x;
      }
    }
  }
  const Vector all = acc[0] ^ acc[1] ^ acc[2] ^ acc[3];
  std::int32_t result = 0;
  for (int lane = 0; lane < kLanes; ++lane) result ^= all[lane];
  return result;
}

template <int kLanes>
TEGULA_INLINE std::int32_t read_as(const std::byte* data, std::size_t stride, std::size_t bytes,
                                   ReadVariant how) {
  const int ahead = how.prefetch_bytes;
  if (ahead > 0) {
    if (how.streams == 1) return read_body<kLanes, 1, true>(data, stride, bytes, ahead);
    if (how.streams == 2) return read_body<kLanes, 2, true>(data, stride, bytes, ahead);
    return read_body<kLanes, 4, true>(data, stride, bytes, ahead);
  }
  if (how.streams == 1) return read_body<kLanes, 1, false>(data, stride, bytes, 0);
  if (how.streams == 2) return read_body<kLanes, 2, false>(data, stride, bytes, 0);
  return read_body<kLanes, 4, false>(data, stride, bytes, 0);
}

using Read = std::int32_t (*)(const std::byte*, std::size_t, std::size_t, ReadVariant);

std::int32_t read_base(const std::byte* data, std::size_t stride, std::size_t bytes,
                       ReadVariant how) {
  return read_as<4>(data, stride, bytes, how);
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) std::int32_t read_avx2(const std::byte* data, std::size_t stride,
                                                       std::size_t bytes, ReadVariant how) {
  return read_as<8>(data, stride, bytes, how);
}
__attribute__((target("avx512f"))) std::int32_t read_avx512(const std::byte* data,
                                                            std::size_t stride, std::size_t bytes,
                                                            ReadVariant how) {
  return read_as<16>(data, stride, bytes, how);
}
#endif

Read widest_read() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
  return read_base;
}

}  // namespace

void read_block(const std::byte* data, std::size_t stride, std::size_t bytes, ReadVariant variant) {
  static const Read read = widest_read();
  unused_result = read(data, stride, bytes, variant);
}

}  // namespace tegula::program
