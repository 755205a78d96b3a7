// SPDX-License-Identifier: Apache-2.0
#include "device/abi/layout.hpp"

#include <set>

#include <gtest/gtest.h>

namespace tegula::device {
namespace {

TEST(DeviceLayout, SwizzledChunksCoverTheTileOnce) {
  constexpr int kRows = 80, kColumns = 192;
  std::set<int> seen;
  for (int row = 0; row < kRows; ++row) {
    for (int chunk = 0; chunk < kColumns / kChunkColumns; ++chunk) {
      const int offset = swizzled_chunk(kRows, row, chunk);
      EXPECT_EQ(offset % kChunkBytes, 0);
      EXPECT_GE(offset, 0);
      EXPECT_LT(offset, tile_bytes(kRows, kColumns));
      EXPECT_TRUE(seen.insert(offset).second) << row << " " << chunk;
      // A row of a panel stays within its own 128 bytes: zeroing a row needs no swizzle.
      EXPECT_EQ(offset / kPanelRowBytes, chunk / 8 * kRows + row);
    }
  }
  EXPECT_EQ(seen.size() * kChunkBytes, static_cast<size_t>(tile_bytes(kRows, kColumns)));
}

// The hardware's rule: address bits 4-6 are XORed with bits 7-9.
TEST(DeviceLayout, SwizzleIsTheAddressRule) {
  for (int row = 0; row < 64; ++row) {
    for (int chunk = 0; chunk < 8; ++chunk) {
      const int plain = row * kPanelRowBytes + chunk * kChunkBytes;
      EXPECT_EQ(swizzled_chunk(64, row, chunk), plain ^ (plain >> 7 & 7) << 4);
    }
  }
}

TEST(DeviceLayout, ChunksOfEightRowsLieInDifferentBanks) {
  for (int chunk = 0; chunk < 8; ++chunk) {
    std::set<int> banks;
    for (int row = 0; row < 8; ++row) banks.insert(swizzled_chunk(64, row, chunk) % 128);
    EXPECT_EQ(banks.size(), 8u);
  }
}

TEST(DeviceLayout, AccumulatorCoversTheTileOnce) {
  constexpr int kColumns = 80;
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = acc_row(thread, i), column = acc_column(thread, i);
      EXPECT_TRUE(row >= 0 && row < 64 && column >= 0 && column < kColumns);
      EXPECT_TRUE(seen.insert({row, column}).second);
    }
  }
  EXPECT_EQ(seen.size(), 64u * kColumns);
}

// P goes from accumulator to operand A without a shuffle.
TEST(DeviceLayout, RoundedAccumulatorIsAnOperand) {
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    for (int i = 0; i < 32; ++i) {
      const int step = i / 4;  // of 16 keys
      for (int h = 0; h < 2; ++h) {
        EXPECT_EQ(acc_row(thread, 2 * i + h), operand_row(thread, i % 4));
        EXPECT_EQ(acc_column(thread, 2 * i + h), 16 * step + operand_column(thread, i % 4, h));
      }
    }
  }
}

TEST(DeviceLayout, DescriptorFields) {
  const unsigned long long descriptor = descriptor_base(128 * 128);
  EXPECT_EQ(descriptor & 0xffff, 0u);
  EXPECT_EQ(descriptor >> 16 & 0x3fff, 1024u);
  EXPECT_EQ(descriptor >> 32 & 0x3fff, 64u);
  EXPECT_EQ(descriptor >> 62, 1u);
  // Steps of 16 columns: 32 bytes within a panel's row, then the next panel.
  for (int step = 0; step < 16; ++step) {
    EXPECT_EQ(k_major_step(128, step) * 16, step / 4 * 128 * kPanelRowBytes + step % 4 * 16 * 2);
    EXPECT_EQ(mn_major_step(step) * 16, step * 16 * kPanelRowBytes);
  }
}

}  // namespace
}  // namespace tegula::device
