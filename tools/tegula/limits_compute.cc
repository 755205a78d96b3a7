// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3 -ffp-contract=fast (tools/CMakeLists.txt): x = x * a + b is one multiply-add.
#include <atomic>
#include <cstdint>
#include <cstring>

#include "src/cpu/executor/topology.hpp"
#include "tools/tegula/limits_kernels.hpp"
#include "tools/tegula/vector_type.hpp"

namespace tegula::program {
namespace {

constexpr int kChains =
    10;  // enough for a latency of 4 cycles on two pipes, and 14 registers with the factors
constexpr int kDotChains = 12;  // latency 6
constexpr std::int64_t kSteps = 4000;

// Read only so that the loops below have to run.
std::atomic<float> unused_result{0.0F};

// The factors alternate, so that the sums never settle: operands that stay the same flatter the
// clock.
template <int kLanes>
TEGULA_INLINE float chains_body(float seed) {
  using Vector = typename VectorType<kLanes>::type;
  Vector acc[kChains], a[2], b[2];
  for (int lane = 0; lane < kLanes; ++lane) {
    const float x = static_cast<float>(lane + 1) * seed;
    a[0][lane] = 0.731F + 0.011F * x;
    a[1][lane] = -0.877F + 0.007F * x;
    b[0][lane] = 1.379F - 0.053F * x;
    b[1][lane] = 0.618F + 0.031F * x;
  }
  for (int i = 0; i < kChains; ++i) acc[i] = a[0] + static_cast<float>(i) * b[1];
  for (std::int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 10
    for (int i = 0; i < kChains; ++i) acc[i] = acc[i] * a[0] + b[0];
#pragma GCC unroll 10
    for (int i = 0; i < kChains; ++i) acc[i] = acc[i] * a[1] + b[1];
  }
  float sum = 0.0F;
  for (int i = 0; i < kChains; ++i) sum += acc[i][0];
  return sum;
}

float chains_base(float seed) {
  return chains_body<4>(seed);
}
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float chains_avx2(float seed) {
  return chains_body<8>(seed);
}
__attribute__((target("avx512f,avx2,fma"))) float chains_avx512(float seed) {
  return chains_body<16>(seed);
}

__attribute__((target("avx512f"))) float chains_dot() {
  using Vector = VectorType<16>::type;
  Vector a[2], b[2];
  for (int lane = 0; lane < 16; ++lane) {  // pairs of bf16 of either sign, of magnitude 0.5 to 2
    const std::uint32_t bits[4] = {0x3f31bf8cU + 0x00070013U * static_cast<std::uint32_t>(lane),
                                   0xbf653fa7U - 0x00030005U * static_cast<std::uint32_t>(lane),
                                   0x3f9abf5bU + 0x00050009U * static_cast<std::uint32_t>(lane),
                                   0x3f4bbf13U + 0x00020007U * static_cast<std::uint32_t>(lane)};
    float values[4];
    std::memcpy(values, bits, sizeof values);
    a[0][lane] = values[0];
    a[1][lane] = values[1];
    b[0][lane] = values[2];
    b[1][lane] = values[3];
  }
  // One statement: an array of accumulators would live in memory.
  Vector c0 = {}, c1 = {}, c2 = {}, c3 = {}, c4 = {}, c5 = {}, c6 = {}, c7 = {}, c8 = {}, c9 = {},
         c10 = {}, c11 = {};
  for (std::int64_t step = 0; step < kSteps; ++step) {
    asm("vdpbf16ps %13, %12, %0\n\t"
        "vdpbf16ps %13, %12, %1\n\t"
        "vdpbf16ps %13, %12, %2\n\t"
        "vdpbf16ps %13, %12, %3\n\t"
        "vdpbf16ps %13, %12, %4\n\t"
        "vdpbf16ps %13, %12, %5\n\t"
        "vdpbf16ps %13, %12, %6\n\t"
        "vdpbf16ps %13, %12, %7\n\t"
        "vdpbf16ps %13, %12, %8\n\t"
        "vdpbf16ps %13, %12, %9\n\t"
        "vdpbf16ps %13, %12, %10\n\t"
        "vdpbf16ps %13, %12, %11\n\t"
        "vdpbf16ps %15, %14, %0\n\t"
        "vdpbf16ps %15, %14, %1\n\t"
        "vdpbf16ps %15, %14, %2\n\t"
        "vdpbf16ps %15, %14, %3\n\t"
        "vdpbf16ps %15, %14, %4\n\t"
        "vdpbf16ps %15, %14, %5\n\t"
        "vdpbf16ps %15, %14, %6\n\t"
        "vdpbf16ps %15, %14, %7\n\t"
        "vdpbf16ps %15, %14, %8\n\t"
        "vdpbf16ps %15, %14, %9\n\t"
        "vdpbf16ps %15, %14, %10\n\t"
        "vdpbf16ps %15, %14, %11"
        : "+v"(c0), "+v"(c1), "+v"(c2), "+v"(c3), "+v"(c4), "+v"(c5), "+v"(c6), "+v"(c7), "+v"(c8),
          "+v"(c9), "+v"(c10), "+v"(c11)
        : "v"(a[0]), "v"(b[0]), "v"(a[1]), "v"(b[1]));
  }
  const Vector sum = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11;
  return sum[0];
}
#endif

struct Chains {
  float (*run)(float seed);
  int lanes;
};

Chains widest_chains() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {chains_avx512, 16};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {chains_avx2, 8};
#endif
  return {chains_base, 4};
}

}  // namespace

double fma_block() {
  static const Chains chains = widest_chains();
  unused_result = chains.run(1.0F);
  return 2.0 * 2 * kChains * kSteps * chains.lanes;
}

bool has_dot() {
#if defined(__x86_64__)
  const cpu::X86Features& x86 = cpu::cpu_info().x86;
  return x86.avx512_bf16 && x86.os_avx512;
#else
  return false;
#endif
}

double dot_block() {
#if defined(__x86_64__)
  unused_result = chains_dot();
  return 2.0 * 2 * kDotChains * kSteps * 32;
#else
  return 0.0;
#endif
}

}  // namespace tegula::program
