// SPDX-License-Identifier: Apache-2.0
// Intel AMX tiles. Eight registers of 16 rows of 64 bytes; a dot product takes 16 cycles. Own
// assembly instead of intrinsics: g++ 12's _tile_loadd has no memory clobber, so that stores of a
// tile's rows may sink below its load. vec/tiles_model.hpp has the same names in plain C++.
#pragma once

#include <stdint.h>

#include "src/cpu/kernels/convert.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

#define TEGULA_TILES

struct alignas(64) TileConfig {
  uint8_t palette, start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// Tiles are usable while one of these lives. The caller's configuration is put back; by the calling
// convention the tiles' content is scratch. Released tiles cost a sleeping thread nothing (live
// ones: 8 KiB in every context switch and signal frame). About 70 ns.
class TileScope {
 public:
  TEGULA_INLINE TileScope() {
    asm volatile("sttilecfg %0" : "=m"(before_));
    TileConfig full{};
    full.palette = 1;
    for (int i = 0; i < 8; ++i) {
      full.row_bytes[i] = 64;
      full.rows[i] = 16;
    }
    asm volatile("ldtilecfg %0" : : "m"(full));
  }
  TEGULA_INLINE ~TileScope() {
    if (before_.palette != 0) {
      asm volatile("ldtilecfg %0" : : "m"(before_));
    } else {
      asm volatile("tilerelease" : :);
    }
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  TileConfig before_;
};

// Row i from base + i * stride (bytes).
template <int kTile>
TEGULA_INLINE void tile_load(const void* base, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(base), "r"(stride) : "memory");
}
// The same for data that is used once: it stays out of the L1 (25 to 45 % of a call in a
// prototype).
template <int kTile>
TEGULA_INLINE void tile_stream(const void* base, int64_t stride) {
  asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(base), "r"(stride) : "memory");
}
template <int kTile>
TEGULA_INLINE void tile_store(void* base, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(base), "r"(stride) : "memory");
}
template <int kTile>
TEGULA_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// fp32 acc[m][n] += sum over the 16 pairs k of a[m][k] . b[k][n], pairs of bf16. Denormals count as
// 0, rounding is to nearest, whatever MXCSR says.
template <int kAcc, int kA, int kB>
TEGULA_INLINE void tile_dot() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kAcc), "i"(kA), "i"(kB));
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
