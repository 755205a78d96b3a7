// SPDX-License-Identifier: Apache-2.0
// Where an element of a tile lies: 128-byte-swizzled shared memory, and the registers of wgmma.
// A tile of 16-bit elements lies as panels of 64 columns; a row of a panel is 128 bytes, its
// 16-byte chunks permuted by the row's low three bits (the pattern of CU_TENSOR_MAP_SWIZZLE_128B,
// which counts from the 1,024-byte-aligned start of the panel).
#pragma once

#include "device/abi/types.hpp"

namespace tegula::device {

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kChunkBytes = 16;
inline constexpr int kChunkColumns = 8;

TEGULA_BOTH constexpr int panels_of(int columns) {
  return ceil_div(columns, kPanelColumns);
}
TEGULA_BOTH constexpr int tile_bytes(int rows, int columns) {
  return panels_of(columns) * rows * kPanelRowBytes;
}
// Byte offset of the 16-byte chunk that holds columns 8 chunk ... 8 chunk + 7 of a row.
TEGULA_BOTH constexpr int swizzled_chunk(int rows, int row, int chunk) {
  const int panel = chunk / (kPanelColumns / kChunkColumns);
  const int place = chunk % (kPanelColumns / kChunkColumns) ^ row % 8;
  return panel * rows * kPanelRowBytes + row * kPanelRowBytes + place * kChunkBytes;
}

// Accumulator of a warpgroup, 64 rows: register i of a thread holds (row, column).
TEGULA_BOTH constexpr int acc_row(int thread, int i) {
  return thread % kWarpgroup / kWarp * 16 + thread % kWarp / 4 + (i / 2 % 2) * 8;
}
TEGULA_BOTH constexpr int acc_column(int thread, int i) {
  return i / 4 * 8 + thread % 4 * 2 + i % 2;
}

// Operand A in registers, 64 rows of 16 columns: half h (0 or 1) of register i of a thread.
// Registers 2 j and 2 j + 1 of an accumulator, rounded to 16 bits, are register j of the operand
// whose k is the accumulator's column: P needs no shuffle.
TEGULA_BOTH constexpr int operand_row(int thread, int i) {
  return acc_row(thread, 2 * i);
}
TEGULA_BOTH constexpr int operand_column(int thread, int i, int h) {
  return i / 2 * 8 + thread % 4 * 2 + h;
}

// Matrix descriptor of wgmma for 128-byte swizzle, without the address: bits 16-29 the leading
// offset, 32-45 the stride offset (8 rows of 128 bytes), both in 16 bytes, 62-63 the swizzle.
// K-major operands ignore the leading offset; MN-major ones (V) step by it from panel to panel.
TEGULA_BOTH constexpr unsigned long long descriptor_base(int leading_bytes) {
  return static_cast<unsigned long long>(leading_bytes / 16) << 16 |
         static_cast<unsigned long long>(8 * kPanelRowBytes / 16) << 32 | 1ull << 62;
}
// In units of the descriptor's address field: from one step of 16 in k to the next.
TEGULA_BOTH constexpr int k_major_step(int rows, int step) {
  return step / 4 * (rows * kPanelRowBytes / 16) + step % 4 * 2;
}
TEGULA_BOTH constexpr int mn_major_step(int step) {
  return step * (16 * kPanelRowBytes / 16);
}

}  // namespace tegula::device
