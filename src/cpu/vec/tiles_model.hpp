// SPDX-License-Identifier: Apache-2.0
// The meaning of vec/tiles_amx.hpp in plain C++, so that the kernels on tiles are tested on every
// machine. Never chosen by itself: TEGULA_ISA=amx_model.
#pragma once

#include <stdint.h>

#include "src/cpu/kernels/convert.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

#define TEGULA_TILES

struct alignas(64) Tile {
  char rows[16][64];
};
struct TileFile {
  Tile tiles[8];
  bool usable;
};
static thread_local TileFile tile_file;

// A tile instruction outside of a scope is an invalid one.
template <int kTile>
TEGULA_INLINE Tile& tile_at() {
  static_assert(kTile >= 0 && kTile < 8);
  if (!tile_file.usable) __builtin_trap();
  return tile_file.tiles[kTile];
}

class TileScope {
 public:
  TileScope() { tile_file = {.tiles = {}, .usable = true}; }
  ~TileScope() { tile_file.usable = false; }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

template <int kTile>
inline void tile_load(const void* base, int64_t stride) {
  for (int i = 0; i < 16; ++i)
    __builtin_memcpy(tile_at<kTile>().rows[i], static_cast<const char*>(base) + i * stride, 64);
}
template <int kTile>
inline void tile_stream(const void* base, int64_t stride) {
  tile_load<kTile>(base, stride);
}
template <int kTile>
inline void tile_store(void* base, int64_t stride) {
  for (int i = 0; i < 16; ++i)
    __builtin_memcpy(static_cast<char*>(base) + i * stride, tile_at<kTile>().rows[i], 64);
}
template <int kTile>
inline void tile_zero() {
  tile_at<kTile>() = {};
}

TEGULA_INLINE float flush(float a) {
  return __builtin_fabsf(a) < 0x1p-126f ? a * 0.0f : a;
}

inline void tile_dot_rows(Tile& acc, const Tile& a, const Tile& b) {
  const auto value = [](const Tile& tile, int row, int i) {
    return flush(widen<TEGULA_BF16>(tile.rows[row] + 2 * i));
  };
  for (int m = 0; m < 16; ++m) {
    float sum[16];
    __builtin_memcpy(sum, acc.rows[m], sizeof sum);
    for (int k = 0; k < 16; ++k) {
      const float even = value(a, m, 2 * k), odd = value(a, m, 2 * k + 1);
      for (int n = 0; n < 16; ++n) {
        sum[n] = flush(sum[n] + even * value(b, k, 2 * n));
        sum[n] = flush(sum[n] + odd * value(b, k, 2 * n + 1));
      }
    }
    __builtin_memcpy(acc.rows[m], sum, sizeof sum);
  }
}
template <int kAcc, int kA, int kB>
inline void tile_dot() {
  tile_dot_rows(tile_at<kAcc>(), tile_at<kA>(), tile_at<kB>());
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
