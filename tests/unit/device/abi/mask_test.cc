// SPDX-License-Identifier: Apache-2.0
#include "device/abi/mask.hpp"

#include <gtest/gtest.h>

#include "src/core/mask.hpp"

namespace tegula::device {
namespace {

struct Shape {
  int seqlen_q, seqlen_k, leftpad, window_left, window_right, chunk;
};

template <MaskKind kKind>
Mask<kKind> make(const Shape& s) {
  const auto window = [](int given) { return given < 0 ? kMaxLength : given; };
  return {
      {window(s.window_left), window(s.window_right), s.chunk}, s.seqlen_q, s.seqlen_k, s.leftpad};
}

tegula::Mask reference(const Shape& s) {
  tegula_problem problem{};
  problem.window_left = s.window_left;
  problem.window_right = s.window_right;
  problem.attention_chunk = s.chunk;
  Sequence sequence{};
  sequence.seqlen_q = s.seqlen_q;
  sequence.seqlen_k = s.seqlen_k;
  sequence.leftpad = s.leftpad;
  return {problem, sequence};
}

template <typename F>
void for_each_shape(const F& visit) {
  for (int q : {1, 2, 5, 64, 200}) {
    for (int k : {0, 1, 3, 64, 130, 300}) {
      for (int pad : {0, 2, 70}) {
        for (int left : {-1, 0, 3, 100}) {
          for (int right : {-1, 0, 5}) {
            for (int chunk : {0, 1, 7, 64, 1000, kMaxLength}) {
              if (pad <= k) visit(Shape{q, k, pad, left, right, chunk});
            }
          }
        }
      }
    }
  }
}

// Against the CPU back end's mask, which the oracle checks.
TEST(DeviceMask, RowsSeeWhatTheContractSays) {
  for_each_shape([](const Shape& s) {
    const auto mask = make<MaskKind::kInterval>(s);
    const tegula::Mask expected = reference(s);
    for (int i = 0; i < s.seqlen_q; ++i) {
      const KeyRange got = mask.keys(i);
      const tegula::KeyRange want = expected.keys(i);
      ASSERT_EQ(got.empty(), want.empty()) << s.seqlen_q << " " << s.seqlen_k << " row " << i;
      if (want.empty()) continue;
      ASSERT_EQ(got.begin, want.begin);
      ASSERT_EQ(got.end, want.end);
    }
  });
}

TEST(DeviceMask, KindsAgreeWhereTheyApply) {
  for_each_shape([](const Shape& s) {
    const auto all = make<MaskKind::kInterval>(s);
    if (s.leftpad != 0 || s.window_left >= 0 || s.chunk != 0) return;
    const auto right = make<MaskKind::kRight>(s);
    for (int i = 0; i < s.seqlen_q; ++i) {
      if (all.keys(i).empty()) {
        ASSERT_TRUE(right.keys(i).empty());
      } else {
        ASSERT_EQ(right.keys(i).begin, all.keys(i).begin);
        ASSERT_EQ(right.keys(i).end, all.keys(i).end);
      }
      if (s.window_right < 0) {
        ASSERT_EQ(make<MaskKind::kLength>(s).keys(i).end, s.seqlen_k);
      }
    }
  });
}

// A tile's blocks hold every key that one of its rows sees, none of them lies left of the first
// row's or right of the last one's, and rows of V outside seen() are seen by no row.
TEST(DeviceMask, BlocksHoldWhatRowsSee) {
  for_each_shape([](const Shape& s) {
    const auto mask = make<MaskKind::kInterval>(s);
    const KeyRange seen = mask.seen();
    for (int begin = 0; begin < round_up(s.seqlen_q, 64); begin += 64) {
      for (int tile_n : {64, 80}) {
        const KeyRange blocks = mask.blocks(begin, begin + 64, tile_n);
        ASSERT_LE(0, blocks.begin);
        ASSERT_LE(blocks.begin, blocks.end);
        ASSERT_LE(blocks.end, ceil_div(s.seqlen_k, tile_n));
        for (int i = begin; i < least(begin + 64, s.seqlen_q); ++i) {
          const KeyRange keys = mask.keys(i);
          if (keys.empty()) continue;
          ASSERT_LE(blocks.begin * tile_n, keys.begin);
          ASSERT_GE(blocks.end * tile_n, keys.end);
          ASSERT_LE(seen.begin, keys.begin);
          ASSERT_GE(seen.end, keys.end);
        }
      }
    }
  });
}

TEST(DeviceMask, RangesNeverDecrease) {
  for_each_shape([](const Shape& s) {
    const auto mask = make<MaskKind::kInterval>(s);
    for (int i = 1; i < s.seqlen_q; ++i) {
      ASSERT_LE(mask.keys(i - 1).begin, mask.keys(i).begin);
      ASSERT_LE(mask.keys(i - 1).end, mask.keys(i).end);
    }
  });
}

TEST(DeviceMask, LongestLengthsDoNotOverflow) {
  const Mask<MaskKind::kInterval> mask{
      {kMaxLength, kMaxLength, kMaxLength}, kMaxLength, kMaxLength, 0};
  EXPECT_EQ(mask.keys(0).begin, 0);
  EXPECT_EQ(mask.keys(0).end, kMaxLength);
  EXPECT_EQ(mask.keys(kMaxLength - 1).end, kMaxLength);
  const Mask<MaskKind::kInterval> behind{{kMaxLength, 0, kMaxLength}, kMaxLength, 1, 0};
  EXPECT_TRUE(behind.keys(0).empty());
  EXPECT_EQ(behind.keys(kMaxLength - 1).end, 1);
}

}  // namespace
}  // namespace tegula::device
