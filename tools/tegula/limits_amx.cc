// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/limits_kernels.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <random>

#include "src/cpu/executor/topology.hpp"

namespace tegula::program {

#if defined(__x86_64__)

namespace {

constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, for all threads of the process
constexpr long kTileData = 18;
constexpr std::int64_t kSteps = 400;  // of eight products

// What ldtilecfg reads: eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct alignas(64) Tiles {
  std::uint16_t values[4][16][32];
};

Tiles random_tiles() {
  Tiles tiles;
  std::mt19937 random(7);
  for (auto& tile : tiles.values) {
    for (auto& row : tile) {
      // bf16 of either sign, of magnitude 2^-3 to 2: random sign, low exponent bits and fraction.
      for (std::uint16_t& value : row)
        value = static_cast<std::uint16_t>((random() & 0x81ff) + 0x3e00);
    }
  }
  return tiles;
}

}  // namespace

bool has_amx() {
  static const bool usable = [] {
    const cpu::X86Features& x86 = cpu::cpu_info().x86;
    return x86.amx_tile && x86.amx_bf16 && x86.os_amx &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return usable;
}

// One statement from ldtilecfg to tilerelease: the compiler knows nothing of tiles, and no thread
// may leave with them.
double amx_block() {
  static const Tiles tiles = random_tiles();
  static const TileConfig config;
  std::int64_t steps = kSteps;
  asm volatile(
      "ldtilecfg (%[config])\n\t"
      "tilezero %%tmm0\n\t"
      "tilezero %%tmm1\n\t"
      "tilezero %%tmm2\n\t"
      "tilezero %%tmm3\n\t"
      "tileloadd (%[data], %[stride], 1), %%tmm4\n\t"
      "tileloadd 1024(%[data], %[stride], 1), %%tmm5\n\t"
      "tileloadd 2048(%[data], %[stride], 1), %%tmm6\n\t"
      "tileloadd 3072(%[data], %[stride], 1), %%tmm7\n\t"
      "1:\n\t"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
      "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
      "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
      "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
      "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"
      "dec %[steps]\n\t"
      "jnz 1b\n\t"
      "tilerelease"
      : [steps] "+r"(steps)
      : [config] "r"(&config), [data] "r"(tiles.values), [stride] "r"(std::int64_t{64})
      : "memory", "cc");
  return 2.0 * 16 * 16 * 32 * 8 * kSteps;
}

#else

bool has_amx() {
  return false;
}
double amx_block() {
  return 0.0;
}

#endif

}  // namespace tegula::program
