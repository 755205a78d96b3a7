// SPDX-License-Identifier: Apache-2.0
// Legal calls of append_kv and combine: what goes where, and the empty ones.
#include <cmath>
#include <limits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tests/unit/api/call_fixture.hpp"

namespace {

using namespace tegula_test;
using A = AppendFixture;
using C = CombineFixture;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Row r of k_new is all r + 1, of v_new all -(r + 1).
void number_rows(A& a) {
  for (int r = 0; r < 4; ++r) {
    std::fill_n(a.k_new.buffer->f32() + r * 16, 16, static_cast<float>(r + 1));
    std::fill_n(a.v_new.buffer->f32() + r * 32, 32, -static_cast<float>(r + 1));
  }
}

// The cache's rows (batch or page, token) hold the numbered row; every other byte is untouched.
void expect_rows(const A& a, std::initializer_list<std::pair<int, int>> cache_row_to_new) {
  std::vector<int> owner(40, 0);
  for (const auto& [row, number] : cache_row_to_new) owner[static_cast<size_t>(row)] = number;
  for (int row = 0; row < 40; ++row) {
    const int number = owner[static_cast<size_t>(row)];
    for (int i = 0; i < 16; ++i) {
      float expected;
      std::memset(&expected, Buffer::kFill, sizeof expected);
      if (number != 0) expected = static_cast<float>(number);
      ASSERT_EQ(a.k_cache.buffer->f32()[row * 16 + i], expected) << "row " << row;
    }
    for (int i = 0; i < 32; ++i) {
      float expected;
      std::memset(&expected, Buffer::kFill, sizeof expected);
      if (number != 0) expected = -static_cast<float>(number);
      ASSERT_EQ(a.v_cache.buffer->f32()[row * 32 + i], expected) << "row " << row;
    }
  }
}

void run(A& a) {
  number_rows(a);
  ASSERT_EQ(tegula_append_kv(&a.args, nullptr), TEGULA_OK) << tegula_last_error();
}

TEST(LegalAppend, Dense) {
  A a(Layout::kDense);  // capacity 8, lengths 3 and 6
  run(a);
  expect_rows(a, {{3, 1}, {4, 2}, {14, 3}, {15, 4}});
  EXPECT_EQ(a.seqused_k.buffer->i32()[0], 3) << "lengths are the caller's";
}

TEST(LegalAppend, Ragged) {
  A a(Layout::kRagged);  // 3 rows and 1 row
  run(a);
  expect_rows(a, {{3, 1}, {4, 2}, {5, 3}, {14, 4}});
}

TEST(LegalAppend, Paged) {
  A a(Layout::kPaged);  // rows {3, 1} and {0, 4} of pages of 4
  run(a);
  expect_rows(a, {{3 * 4 + 3, 1}, {1 * 4 + 0, 2}, {4 * 4 + 2, 3}, {4 * 4 + 3, 4}});
}

TEST(LegalAppend, PageIndices) {
  A a(Layout::kPageIndices);
  run(a);
  expect_rows(a, {{3 * 4 + 3, 1}, {1 * 4 + 0, 2}, {4 * 4 + 2, 3}, {4 * 4 + 3, 4}});
}

TEST(LegalAppend, SlotsSkipNegativeOnes) {
  A a(Layout::kPaged);
  a.use_slots();  // 3, 19, -1, 7
  a.args.seqused_k = nullptr;
  run(a);
  expect_rows(a, {{3, 1}, {19, 2}, {7, 4}});
}

TEST(LegalAppend, RowsWithSlotsNeedNoOffsets) {
  A a(Layout::kPaged);
  a.k_new.set(TEGULA_F32, {4, 2, 8});
  a.v_new.set(TEGULA_F32, {4, 2, 16});
  a.use_slots();
  a.args.seqused_k = nullptr;
  run(a);
  expect_rows(a, {{3, 1}, {19, 2}, {7, 4}});
}

TEST(LegalAppend, PositionsOfSkippedRowsAreNotRead) {
  A a(Layout::kPaged);
  a.use_slots();
  a.add_rotary();
  a.add_positions();
  a.positions.buffer->i32()[2] = INT32_MAX;  // row 2 is skipped
  EXPECT_EQ(tegula_append_kv(&a.args, nullptr), TEGULA_OK) << tegula_last_error();
}

TEST(LegalAppend, EntriesOfOtherPagesMayBeGarbage) {
  A a(Layout::kPaged);
  a.seqused_k.set({2}, {4, 0});  // page 1 of sequence 0, page 0 of sequence 1
  a.page_table.set({2, 2}, {-1, 1, 0, INT32_MIN});
  run(a);
  expect_rows(a, {{4, 1}, {5, 2}, {0, 3}, {1, 4}});
}

TEST(LegalAppend, NoRows) {
  A a(Layout::kPaged);
  a.k_new.tensor = make_tensor(nullptr, TEGULA_F32, {2, 0, 2, 8});
  a.v_new.tensor = make_tensor(nullptr, TEGULA_F32, {2, 0, 2, 16});
  EXPECT_EQ(tegula_append_kv(&a.args, nullptr), TEGULA_OK) << tegula_last_error();
  EXPECT_TRUE(a.outputs_untouched());
}

TEST(LegalAppend, Batch0) {
  A a(Layout::kDense);
  a.k_new.tensor = make_tensor(nullptr, TEGULA_F32, {0, 2, 2, 8});
  a.v_new.tensor = make_tensor(nullptr, TEGULA_F32, {0, 2, 2, 16});
  a.k_cache.tensor = make_tensor(nullptr, TEGULA_F32, {0, 8, 2, 8});
  a.v_cache.tensor = make_tensor(nullptr, TEGULA_F32, {0, 8, 2, 16});
  a.seqused_k.index.tensor = make_tensor(nullptr, TEGULA_I32, {0});
  EXPECT_EQ(tegula_append_kv(&a.args, nullptr), TEGULA_OK) << tegula_last_error();
}

TEST(LegalAppend, QueriesAreRotatedInPlaceToTheSameBits) {
  A apart(Layout::kDense), in_place(Layout::kDense);
  for (A* a : {&apart, &in_place}) {
    a->add_rotary();
    a->add_q();
    for (int i = 0; i < 32; ++i) {
      a->cos.buffer->f32()[i] = std::cos(0.1f * static_cast<float>(i));
      a->sin.buffer->f32()[i] = std::sin(0.1f * static_cast<float>(i));
    }
    for (int i = 0; i < 2 * 2 * 4 * 8; ++i) {
      a->q.buffer->f32()[i] = static_cast<float>(i % 7) - 3;
    }
  }
  in_place.q_out.tensor.data = in_place.q.tensor.data;
  ASSERT_EQ(tegula_append_kv(&apart.args, nullptr), TEGULA_OK) << tegula_last_error();
  ASSERT_EQ(tegula_append_kv(&in_place.args, nullptr), TEGULA_OK) << tegula_last_error();
  EXPECT_EQ(std::memcmp(apart.q_out.buffer->data(), in_place.q.buffer->data(), 128 * 4), 0);
  // Head 0 of token 0 of sequence 0 stands at position 3: x' = x cos - y sin.
  const float x = -3, y = 1, angle_cos = std::cos(1.2f), angle_sin = std::sin(1.2f);
  EXPECT_EQ(apart.q_out.buffer->f32()[0], std::fma(x, angle_cos, -(y * angle_sin)));
}

TEST(LegalAppend, EightBitRowsAreCopied) {
  A a(Layout::kDense, TEGULA_E4M3);
  for (int i = 0; i < 128; ++i) a.k_new.buffer->data()[i] = static_cast<unsigned char>(i);
  ASSERT_EQ(tegula_append_kv(&a.args, nullptr), TEGULA_OK) << tegula_last_error();
  // 16 bytes a row, all of them: 0x7f is NaN and stays so.
  EXPECT_EQ(std::memcmp(a.k_cache.buffer->data() + 3 * 16, a.k_new.buffer->data(), 32), 0);
}

TEST(LegalCombine, TheOOfAnEmptyPartialIsNotRead) {
  C c(Layout::kDense);
  c.args.sink = nullptr;
  float* lse = c.lse_partial.buffer->f32();
  float* o = c.o_partial.buffer->f32();
  const int rows = 2 * 4 * 3, values = rows * 8;
  for (int i = 0; i < rows; ++i) {
    lse[i] = -kInfinity;
    lse[rows + i] = 0.5f;
    lse[2 * rows + i] = kInfinity;
  }
  for (int i = 0; i < values; ++i) {
    o[i] = o[2 * values + i] = std::numeric_limits<float>::quiet_NaN();
    o[values + i] = static_cast<float>(i);
  }
  ASSERT_EQ(tegula_combine(&c.args, nullptr), TEGULA_OK) << tegula_last_error();
  for (int i = 0; i < values; ++i) ASSERT_EQ(c.o.buffer->f32()[i], static_cast<float>(i));
  for (int i = 0; i < rows; ++i) ASSERT_EQ(c.lse.buffer->f32()[i], 0.5f);
}

TEST(LegalCombine, AllEmpty) {
  C c(Layout::kRagged);
  for (int i = 0; i < 3 * 4 * 5; ++i) c.lse_partial.buffer->f32()[i] = -kInfinity;
  for (int h = 0; h < 4; ++h) c.sink.buffer->f32()[h] = static_cast<float>(h);
  ASSERT_EQ(tegula_combine(&c.args, nullptr), TEGULA_OK) << tegula_last_error();
  for (int i = 0; i < 5 * 4 * 8; ++i) ASSERT_EQ(c.o.buffer->f32()[i], 0.0f);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(c.lse.buffer->f32()[i], static_cast<float>(i / 5));
}

#if defined(__x86_64__)
TEST(LegalAppend, DenormalDescaleWhereDenormalsCountAsZero) {
  A plain(Layout::kDense, TEGULA_F32, TEGULA_E4M3);
  A flushed(Layout::kDense, TEGULA_F32, TEGULA_E4M3);
  for (A* a : {&plain, &flushed}) {
    a->add_descales();
    std::fill_n(a->descale_k.buffer->f32(), 4, 0x1p-130f);
    std::fill_n(a->k_new.buffer->f32(), 2 * 2 * 2 * 8, 0x1.8p-128f);
  }
  ASSERT_EQ(tegula_append_kv(&plain.args, nullptr), TEGULA_OK) << tegula_last_error();
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040u);  // flush to zero, denormals are zero
  const tegula_status status = tegula_append_kv(&flushed.args, nullptr);
  _mm_setcsr(before);
  ASSERT_EQ(status, TEGULA_OK) << tegula_last_error();
  const void* const bytes = plain.k_cache.buffer->data();
  EXPECT_EQ(std::memcmp(flushed.k_cache.buffer->data(), bytes, Buffer::kSize), 0);
  EXPECT_EQ(static_cast<const unsigned char*>(bytes)[3 * 16], 0x4c) << "6 in e4m3";
}
#endif

TEST(LegalCombine, NoRowsNoLse) {
  C c(Layout::kRagged);
  c.o_partial.tensor = make_tensor(nullptr, TEGULA_F32, {3, 0, 4, 8});
  c.lse_partial.tensor = make_tensor(nullptr, TEGULA_F32, {3, 4, 0});
  c.o.tensor = make_tensor(nullptr, TEGULA_F32, {0, 4, 8});
  c.args.lse = nullptr;
  EXPECT_EQ(tegula_combine(&c.args, nullptr), TEGULA_OK) << tegula_last_error();
}

TEST(LegalCombine, FreeStridesOfThePartials) {
  C packed(Layout::kDense), strided(Layout::kDense);
  for (int i = 0; i < 3 * 2 * 4 * 3; ++i) {
    packed.lse_partial.buffer->f32()[i] = 0.01f * static_cast<float>(i * 7 % 31);
  }
  for (int i = 0; i < 3 * 2 * 3 * 4 * 8; ++i) {
    packed.o_partial.buffer->f32()[i] = strided.o_partial.buffer->f32()[i] =
        static_cast<float>(i % 13);
  }
  // lse_partial [split, batch, head, token] stored as [token, head, batch, split].
  int64_t* strides = strided.lse_partial.tensor.strides;
  strides[0] = 1, strides[1] = 3, strides[2] = 6, strides[3] = 24;
  for (int s = 0; s < 3; ++s) {
    for (int b = 0; b < 2; ++b) {
      for (int h = 0; h < 4; ++h) {
        for (int t = 0; t < 3; ++t) {
          strided.lse_partial.buffer->f32()[s + 3 * b + 6 * h + 24 * t] =
              packed.lse_partial.buffer->f32()[((s * 2 + b) * 4 + h) * 3 + t];
        }
      }
    }
  }
  ASSERT_EQ(tegula_combine(&packed.args, nullptr), TEGULA_OK) << tegula_last_error();
  ASSERT_EQ(tegula_combine(&strided.args, nullptr), TEGULA_OK) << tegula_last_error();
  EXPECT_EQ(std::memcmp(packed.o.buffer->data(), strided.o.buffer->data(), Buffer::kSize), 0);
  EXPECT_EQ(std::memcmp(packed.lse.buffer->data(), strided.lse.buffer->data(), Buffer::kSize), 0);
}

}  // namespace
