// SPDX-License-Identifier: Apache-2.0
// Legal calls that are easily refused or broken: contract.md, 10 and 11.
#include <sys/mman.h>

#include <cmath>
#include <limits>

#include "tests/unit/api/call_fixture.hpp"

namespace {

using namespace tegula_test;
using F = ForwardFixture;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void run(F& f) {
  ASSERT_EQ(f.describe(), TEGULA_OK) << tegula_last_error();
  const PlanHandle plan = make_plan(f.problem);
  ASSERT_NE(plan, nullptr);
  ASSERT_EQ(tegula_forward(plan.get(), &f.args, nullptr), TEGULA_OK) << tegula_last_error();
}

// Values that differ everywhere.
void scatter(Operand& operand, float scale = 1.0f) {
  float* values = operand.buffer->f32();
  uint32_t state = 12345;
  for (size_t i = 0; i < Buffer::kSize / sizeof(float); ++i) {
    state = state * 1664525u + 1013904223u;
    values[i] = scale * (static_cast<float>(state >> 8) / (1 << 23) - 1.0f);
  }
}

std::vector<float> floats(const Operand& operand, size_t count) {
  return std::vector<float>(operand.buffer->f32(), operand.buffer->f32() + count);
}

TEST(LegalForward, Batch0WithNullData) {
  F f(Layout::kDense);
  f.q.tensor = make_tensor(nullptr, TEGULA_F32, {0, 3, 4, 8});
  f.k.tensor = make_tensor(nullptr, TEGULA_F32, {0, 6, 2, 8});
  f.v.tensor = make_tensor(nullptr, TEGULA_F32, {0, 6, 2, 16});
  f.o.tensor = make_tensor(nullptr, TEGULA_F32, {0, 3, 4, 16});
  f.lse.tensor = make_tensor(nullptr, TEGULA_F32, {0, 4, 3});
  f.seqused_k.index.tensor = make_tensor(nullptr, TEGULA_I32, {0});
  f.args.seqused_k = &f.seqused_k.index;
  run(f);
}

TEST(LegalForward, Batch0Ragged) {
  F f(Layout::kRagged);
  f.q.tensor = make_tensor(nullptr, TEGULA_F32, {0, 4, 8});
  f.k.tensor = make_tensor(nullptr, TEGULA_F32, {0, 2, 8});
  f.v.tensor = make_tensor(nullptr, TEGULA_F32, {0, 2, 16});
  f.o.tensor = make_tensor(nullptr, TEGULA_F32, {0, 4, 16});
  f.lse.tensor = make_tensor(nullptr, TEGULA_F32, {4, 0});
  f.cu_seqlens_q.set({1}, {0});
  f.cu_seqlens_k.set({1}, {0});
  run(f);
}

TEST(LegalForward, AHugeBatchWithoutTokensReturnsAtOnce) {
  F f(Layout::kDense);
  const int64_t batch = int64_t{1} << 40;
  f.q.tensor = make_tensor(nullptr, TEGULA_F32, {batch, 0, 4, 8});
  f.o.tensor = make_tensor(nullptr, TEGULA_F32, {batch, 0, 4, 16});
  f.lse.tensor = make_tensor(nullptr, TEGULA_F32, {batch, 4, 0});
  f.k.tensor = make_tensor(f.k.buffer->data(), TEGULA_F32, {1, 6, 2, 8});
  f.v.tensor = make_tensor(f.v.buffer->data(), TEGULA_F32, {1, 6, 2, 16});
  f.k.tensor.shape[0] = f.v.tensor.shape[0] = batch;
  f.k.tensor.strides[0] = f.v.tensor.strides[0] = 0;
  run(f);
}

TEST(LegalForward, SeqlenQ0) {
  F f(Layout::kDense);
  f.q.tensor = make_tensor(nullptr, TEGULA_F32, {2, 0, 4, 8});
  f.o.tensor = make_tensor(nullptr, TEGULA_F32, {2, 0, 4, 16});
  f.lse.tensor = make_tensor(nullptr, TEGULA_F32, {2, 4, 0});
  run(f);
}

TEST(LegalForward, SeqlenK0GivesZeroAndMinusInfinity) {
  F f(Layout::kDense);
  f.k.tensor = make_tensor(nullptr, TEGULA_F32, {2, 0, 2, 8});
  f.v.tensor = make_tensor(nullptr, TEGULA_F32, {2, 0, 2, 16});
  run(f);
  for (float value : floats(f.o, 2 * 3 * 4 * 16)) ASSERT_EQ(value, 0.0f);
  for (float value : floats(f.lse, 2 * 4 * 3)) ASSERT_EQ(value, -kInfinity);
}

TEST(LegalForward, SeqlenK0WithSinkGivesTheSink) {
  F f(Layout::kDense);
  f.add_sink();
  for (int h = 0; h < 4; ++h) f.sink.buffer->f32()[h] = 0.25f * static_cast<float>(h);
  f.k.tensor = make_tensor(nullptr, TEGULA_F32, {2, 0, 2, 8});
  f.v.tensor = make_tensor(nullptr, TEGULA_F32, {2, 0, 2, 16});
  run(f);
  for (float value : floats(f.o, 2 * 3 * 4 * 16)) ASSERT_EQ(value, 0.0f);
  for (int i = 0; i < 2 * 4 * 3; ++i) {
    ASSERT_EQ(f.lse.buffer->f32()[i], 0.25f * static_cast<float>(i / 3 % 4));
  }
}

TEST(LegalForward, PagesWithoutAnEntry) {
  F f(Layout::kPaged);
  f.page_table.index.tensor = make_tensor(nullptr, TEGULA_I32, {2, 0});
  f.seqused_k.set({2}, {0, 0});
  run(f);
  for (float value : floats(f.lse, 2 * 4 * 3)) ASSERT_EQ(value, -kInfinity);
}

TEST(LegalForward, EmptySequencesInARaggedBatch) {
  F f(Layout::kRagged);
  f.cu_seqlens_q.set({5}, {0, 0, 1, 1, 5});
  f.cu_seqlens_k.set({5}, {0, 3, 3, 3, 8});
  run(f);  // sequence 1: a query without keys
  for (int h = 0; h < 4; ++h) EXPECT_EQ(f.lse.buffer->f32()[h * 5], -kInfinity);
  EXPECT_NEAR(f.lse.buffer->f32()[1], std::log(5.0f), 1e-5f);
}

TEST(LegalForward, RowsOutsideTheSequencesStayAsTheyAre) {
  F f(Layout::kRagged);
  f.cu_seqlens_q.set({3}, {0, 1, 4});  // row 4 belongs to none
  f.seqused_q.set({2}, {1, 2});        // row 3 is not used
  f.args.seqused_q = &f.seqused_q.index;
  run(f);
  const auto* o = f.o.buffer->data();
  for (size_t i = 3 * 4 * 16 * 4; i < 5 * 4 * 16 * 4; ++i) ASSERT_EQ(o[i], Buffer::kFill);
  const auto* lse = f.lse.buffer->data();
  for (size_t h = 0; h < 4; ++h) {
    for (size_t i = 3 * 4; i < 5 * 4; ++i) ASSERT_EQ(lse[h * 20 + i], Buffer::kFill);
  }
}

TEST(LegalForward, MoreQueriesThanKeysWithCausal) {
  F f(Layout::kDense);
  scatter(f.q);
  scatter(f.k);
  scatter(f.v);
  f.k.set(TEGULA_F32, {2, 2, 2, 8});
  f.v.set(TEGULA_F32, {2, 2, 2, 16});
  f.problem.causal = 1;
  run(f);
  for (int b = 0; b < 2; ++b) {
    for (int h = 0; h < 4; ++h) {
      EXPECT_EQ(f.lse.buffer->f32()[(b * 4 + h) * 3], -kInfinity);
      for (int d = 0; d < 16; ++d) {
        EXPECT_EQ(f.o.buffer->f32()[((b * 3) * 4 + h) * 16 + d], 0.0f);
        // The second row sees key 0 alone.
        EXPECT_NEAR(f.o.buffer->f32()[((b * 3 + 1) * 4 + h) * 16 + d],
                    f.v.buffer->f32()[((b * 2) * 2 + h / 2) * 16 + d], 1e-6f);
      }
    }
  }
}

TEST(LegalForward, StridesOfSingleDimensionsAreIgnored) {
  std::vector<float> expected;
  for (const int64_t stride : {int64_t{0}, int64_t{-7}, INT64_MAX, INT64_MIN}) {
    F f(Layout::kDense);
    scatter(f.q);
    scatter(f.k);
    scatter(f.v);
    f.q.set(TEGULA_F32, {1, 1, 2, 8});
    f.k.set(TEGULA_F32, {1, 6, 1, 8});
    f.v.set(TEGULA_F32, {1, 6, 1, 1});
    f.o.set(TEGULA_F32, {1, 1, 2, 1});
    f.lse.set(TEGULA_F32, {1, 2, 1});
    if (stride != 0) {
      for (tegula_tensor* t : {&f.q.tensor, &f.k.tensor, &f.v.tensor, &f.o.tensor, &f.lse.tensor}) {
        for (int i = 0; i < t->ndim; ++i) {
          if (t->shape[i] == 1) t->strides[i] = stride;
        }
      }
    }
    run(f);
    const std::vector<float> o = floats(f.o, 2);
    if (expected.empty()) expected = o;
    EXPECT_EQ(o, expected) << stride;
  }
}

TEST(LegalForward, BroadcastInputs) {
  F f(Layout::kDense);
  scatter(f.q);
  scatter(f.k);
  scatter(f.v);
  f.k.tensor.strides[0] = f.v.tensor.strides[0] = 0;  // one sequence's keys for all
  f.k.tensor.strides[2] = f.v.tensor.strides[2] = 0;  // one head's
  f.q.tensor.strides[0] = 0;
  run(f);
  const size_t half = 3 * 4 * 16;
  for (size_t i = 0; i < half; ++i) {
    ASSERT_EQ(f.o.buffer->f32()[i], f.o.buffer->f32()[half + i]);
  }
}

TEST(LegalForward, KeysAndValuesInOnePlace) {
  F f(Layout::kDense);
  scatter(f.q);
  scatter(f.k);
  f.k.set(TEGULA_F32, {2, 6, 2, 8});
  f.v.tensor = f.k.tensor;  // values are the first dims of keys, as in MLA
  f.v.tensor.shape[3] = 4;
  f.o.set(TEGULA_F32, {2, 3, 4, 4});
  run(f);
}

// contract.md, 10: entries of pages that no query row sees may be anything.
TEST(LegalForward, PageEntriesThatNothingSees) {
  const struct {
    const char* what;
    void (*prepare)(F&);
    int unseen;  // entry of the table
  } table[] = {
      {"past the length", [](F& f) { f.seqused_k.set({2}, {4, 8}); }, 1},
      {"left of every window", [](F& f) { f.problem.window_left = 1; }, 2},
      {"before leftpad",
       [](F& f) {
         f.leftpad_k.set({2}, {0, 4});
         f.args.leftpad_k = &f.leftpad_k.index;
       },
       2},
      {"another chunk", [](F& f) { f.problem.attention_chunk = 4, f.problem.causal = 1; }, 2},
      {"a sequence without queries",
       [](F& f) {
         f.seqused_q.set({2}, {0, 3});
         f.args.seqused_q = &f.seqused_q.index;
       },
       0},
  };
  for (const auto& test : table) {
    for (const int32_t garbage : {-1, 5, INT32_MAX, INT32_MIN}) {
      F f(Layout::kPaged);
      test.prepare(f);
      f.page_table.buffer->i32()[test.unseen] = garbage;
      ASSERT_EQ(f.describe(), TEGULA_OK) << tegula_last_error();
      const PlanHandle plan = make_plan(f.problem);
      EXPECT_EQ(tegula_forward(plan.get(), &f.args, nullptr), TEGULA_OK)
          << test.what << ": " << tegula_last_error();
    }
  }
}

TEST(LegalForward, LeftpadPastTheLength) {
  F f(Layout::kPaged);
  f.seqused_k.set({2}, {2, 8});
  f.leftpad_k.set({2}, {5, 8});
  f.args.leftpad_k = &f.leftpad_k.index;
  run(f);
  for (float value : floats(f.lse, 2 * 4 * 3)) ASSERT_EQ(value, -kInfinity);
}

TEST(LegalForward, SeqlenNewAddsToSequsedK) {
  std::vector<float> expected;
  for (int form = 0; form < 3; ++form) {
    F f(Layout::kPaged);
    scatter(f.q);
    scatter(f.k);
    scatter(f.v);
    if (form == 0) {
      f.seqused_k.set({2}, {5, 7});
    } else if (form == 1) {
      f.seqused_k.set({2}, {3, 5});
      f.args.seqlen_new = 2;
    } else {
      f.seqused_k.set({2}, {4, 4});
      f.cu_seqlens_new.set({3}, {0, 1, 4});
      f.args.cu_seqlens_new = &f.cu_seqlens_new.index;
    }
    run(f);
    const std::vector<float> o = floats(f.o, 2 * 3 * 4 * 16);
    if (form == 0) expected = o;
    EXPECT_EQ(o, expected) << form;
  }
}

TEST(LegalForward, APlanServesSmallerCalls) {
  F f(Layout::kDense);
  f.args.seqused_k = nullptr;
  ASSERT_EQ(f.describe(), TEGULA_OK);
  f.problem.batch = 9;
  f.problem.seqlen_q = 33;
  f.problem.seqlen_k = 130;
  const PlanHandle plan = make_plan(f.problem);
  EXPECT_EQ(tegula_forward(plan.get(), &f.args, nullptr), TEGULA_OK) << tegula_last_error();
}

TEST(LegalForward, PlanningNeedsNoData) {
  F f(Layout::kPaged);
  for (tegula_tensor* t : {&f.q.tensor, &f.k.tensor, &f.v.tensor, &f.o.tensor, &f.lse.tensor,
                           &f.page_table.index.tensor, &f.seqused_k.index.tensor}) {
    t->data = nullptr;
  }
  ASSERT_EQ(f.describe(), TEGULA_OK) << tegula_last_error();
  EXPECT_NE(make_plan(f.problem), nullptr);
}

TEST(LegalForward, ASinkMayBeMinusInfinity) {
  F f(Layout::kDense);
  scatter(f.q);
  scatter(f.k);
  scatter(f.v);
  run(f);
  const std::vector<float> expected = floats(f.o, 2 * 3 * 4 * 16);
  f.add_sink();
  for (int h = 0; h < 4; ++h) f.sink.buffer->f32()[h] = -kInfinity;
  run(f);
  EXPECT_EQ(floats(f.o, expected.size()), expected);
}

// Field report B04: counts that do not fit the 16 bits of a launch grid.
TEST(LegalForward, BatchAbove65535) {
  for (const int64_t batch : {65535, 65536, 65537}) {
    const int64_t seqlen_k = 2, dim = 4;
    std::vector<float> q(static_cast<size_t>(batch * dim)), o(q.size());
    std::vector<float> k(static_cast<size_t>(batch * seqlen_k * dim)), v(k.size());
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 1021);
    F f(Layout::kDense);
    f.q.tensor = make_tensor(q.data(), TEGULA_F32, {batch, 1, 1, dim});
    f.o.tensor = make_tensor(o.data(), TEGULA_F32, {batch, 1, 1, dim});
    f.k.tensor = make_tensor(k.data(), TEGULA_F32, {batch, seqlen_k, 1, dim});
    f.v.tensor = make_tensor(v.data(), TEGULA_F32, {batch, seqlen_k, 1, dim});
    f.args.lse = nullptr;
    run(f);
    for (const int64_t b : {int64_t{0}, batch - 2, batch - 1}) {
      for (int64_t d = 0; d < dim; ++d) {
        const size_t first = static_cast<size_t>(b * seqlen_k * dim + d);
        EXPECT_NEAR(o[static_cast<size_t>(b * dim + d)], (v[first] + v[first + dim]) / 2, 1e-3f);
      }
    }
  }
}

TEST(LegalForward, HeadsAbove65535) {
  const int64_t heads = 70000, dim = 2;
  std::vector<float> q(static_cast<size_t>(heads * dim)), k(q.size()), v(q.size()), o(q.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 1021);
  F f(Layout::kDense);
  f.q.tensor = make_tensor(q.data(), TEGULA_F32, {1, 1, heads, dim});
  f.o.tensor = make_tensor(o.data(), TEGULA_F32, {1, 1, heads, dim});
  f.k.tensor = make_tensor(k.data(), TEGULA_F32, {1, 1, heads, dim});
  f.v.tensor = make_tensor(v.data(), TEGULA_F32, {1, 1, heads, dim});
  f.args.lse = nullptr;
  run(f);
  for (size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(o[i], v[i], 1e-3f) << i;
}

// Reserved, hardly touched memory: offsets beyond 2^31 elements cost address space only.
class Reserved {
 public:
  explicit Reserved(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Reserved() {
    if (ok()) munmap(data_, bytes_);
  }
  bool ok() const { return data_ != MAP_FAILED; }
  uint16_t* u16() const { return static_cast<uint16_t*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

// Field report B20: page_id * page_stride past 2^31, and a token stride that carries rows past it.
TEST(LegalForward, OffsetsBeyond2To31Elements) {
  const int64_t num_pages = (int64_t{1} << 31) / (16 * 128) + 3, page = 16 * 128;
  const Reserved k(static_cast<size_t>(num_pages * page) * 2);
  if (!k.ok()) GTEST_SKIP() << "no 4 GiB of address space";
  const uint16_t one = 0x3f80;  // bf16
  const int32_t ids[] = {static_cast<int32_t>(num_pages - 1), 0};
  // All keys are 0, so o is the mean of the values: 32 of 32 rows are 1 in the far page, 0 in page
  // 0.
  for (int64_t i = 0; i < page; ++i) k.u16()[(num_pages - 1) * page + i] = one;
  std::vector<uint16_t> q(128), o(128);
  F f(Layout::kPaged);
  f.q.tensor = make_tensor(q.data(), TEGULA_BF16, {1, 1, 1, 128});
  f.o.tensor = make_tensor(o.data(), TEGULA_BF16, {1, 1, 1, 128});
  f.k.tensor = f.v.tensor = make_tensor(k.u16(), TEGULA_BF16, {num_pages, 16, 1, 128});
  f.page_table.set({1, 2}, {ids[0], ids[1]});
  f.seqused_k.set({1}, {32});
  f.args.lse = nullptr;
  run(f);
  for (uint16_t value : o) ASSERT_EQ(value, 0x3f00);  // 0.5

  // The same as a dense tensor: token 0 near, token 1 past 2^31 elements.
  std::fill(o.begin(), o.end(), uint16_t{0});
  F g(Layout::kDense);
  g.q.tensor = f.q.tensor;
  g.o.tensor = f.o.tensor;
  g.k.tensor = make_tensor(k.u16(), TEGULA_BF16, {1, 2, 1, 128});
  g.k.tensor.strides[1] = (num_pages - 1) * page;
  g.v.tensor = g.k.tensor;
  g.args.lse = nullptr;
  run(g);
  for (uint16_t value : o) ASSERT_EQ(value, 0x3f00);
}

}  // namespace
