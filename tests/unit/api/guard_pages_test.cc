// SPDX-License-Identifier: Apache-2.0
// Nothing outside a tensor is read or written: every operand lies between two pages that fault,
// once at the end of its memory and once at the begin. The results agree to the bit.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "tests/unit/api/call_fixture.hpp"

namespace {

using namespace tegula_test;

enum class Place { kBegin, kEnd };

class GuardedMemory {
 public:
  GuardedMemory(size_t bytes, Place place) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t body = (bytes + page - 1) / page * page + page;
    mapped_ = body + 2 * page;
    base_ = static_cast<unsigned char*>(
        mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + page, body, PROT_READ | PROT_WRITE) != 0) abort();
    data_ = place == Place::kBegin ? base_ + page : base_ + page + body - bytes;
  }
  ~GuardedMemory() { munmap(base_, mapped_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  unsigned char* data() const { return data_; }

 private:
  unsigned char* base_;
  unsigned char* data_;
  size_t mapped_;
};

struct Shape {
  int32_t q_dtype, kv_dtype;
  int64_t head_dim, head_dim_v, seqlen_q, seqlen_k;
  bool causal, extras;
};

// Lays every tensor of a ForwardFixture-like call into guarded memory. All operands have row-major
// strides, so size = product of the shape.
class GuardedCall {
 public:
  explicit GuardedCall(Place place) : place_(place) {
    EXPECT_EQ(tegula_forward_args_init(&args), TEGULA_OK);
    EXPECT_EQ(tegula_problem_init(&problem), TEGULA_OK);
  }

  const tegula_tensor* tensor(int32_t dtype, std::initializer_list<int64_t> shape) {
    auto made = std::make_unique<tegula_tensor>(make_tensor(nullptr, dtype, shape));
    size_t count = 1;
    for (int64_t size : shape) count *= static_cast<size_t>(size);
    made->data = memory(count * tegula_dtype_size(dtype));
    fill(*made, count);
    tensors_.push_back(std::move(made));
    return tensors_.back().get();
  }
  const tegula_index* index(std::initializer_list<int64_t> shape,
                            const std::vector<int32_t>& values) {
    auto made = std::make_unique<tegula_index>();
    made->tensor = make_tensor(nullptr, TEGULA_I32, shape);
    made->tensor.data = memory(values.size() * 4);
    std::copy(values.begin(), values.end(), static_cast<int32_t*>(made->tensor.data));
    indices_.push_back(std::move(made));
    return indices_.back().get();
  }
  unsigned char* memory(size_t bytes) {
    memories_.push_back(std::make_unique<GuardedMemory>(bytes, place_));
    return memories_.back()->data();
  }

  tegula_forward_args args;
  tegula_problem problem;

 private:
  // Small numbers in any type: bit patterns whose exponent is moderate.
  void fill(const tegula_tensor& t, size_t count) {
    unsigned char* bytes = static_cast<unsigned char*>(t.data);
    for (size_t i = 0; i < count; ++i) {
      state_ = state_ * 1664525u + 1013904223u;
      const uint32_t r = state_ >> 16;
      switch (t.type_bits) {
        case 32: {
          const float value = static_cast<float>(r & 0xff) / 128 - 1;
          std::memcpy(bytes + 4 * i, &value, 4);
          break;
        }
        case 16: {
          const uint16_t value = static_cast<uint16_t>(
              (r & 0x8000) | (t.type_code == 4 ? 0x3f00 : 0x3800) | (r & 0x7f));
          std::memcpy(bytes + 2 * i, &value, 2);
          break;
        }
        default: bytes[i] = static_cast<unsigned char>((r & 0x80) | 0x30 | (r & 7)); break;
      }
    }
  }

  Place place_;
  uint32_t state_ = 7;
  std::vector<std::unique_ptr<GuardedMemory>> memories_;
  std::vector<std::unique_ptr<tegula_tensor>> tensors_;
  std::vector<std::unique_ptr<tegula_index>> indices_;
};

void set_up(GuardedCall& c, const Shape& s, Layout layout) {
  constexpr int64_t kBatch = 2, kHeadsQ = 4, kHeadsKv = 2, kPageSize = 3;
  const bool narrow_q = s.q_dtype == TEGULA_E4M3 || s.q_dtype == TEGULA_E5M2;
  const bool narrow_kv = s.kv_dtype == TEGULA_E4M3 || s.kv_dtype == TEGULA_E5M2;
  const int32_t o_dtype = narrow_q ? TEGULA_BF16 : s.q_dtype;
  tegula_forward_args& a = c.args;
  const int32_t m = static_cast<int32_t>(s.seqlen_q), n = static_cast<int32_t>(s.seqlen_k);
  if (layout == Layout::kRagged) {
    const int64_t total_q = s.seqlen_q + 1, total_k = 2 * s.seqlen_k;
    a.q = c.tensor(s.q_dtype, {total_q, kHeadsQ, s.head_dim});
    a.k = c.tensor(s.kv_dtype, {total_k, kHeadsKv, s.head_dim});
    a.v = c.tensor(s.kv_dtype, {total_k, kHeadsKv, s.head_dim_v});
    a.o = c.tensor(o_dtype, {total_q, kHeadsQ, s.head_dim_v});
    a.lse = c.tensor(TEGULA_F32, {kHeadsQ, total_q});
    a.cu_seqlens_q = c.index({kBatch + 1}, {0, 1, m + 1});
    a.cu_seqlens_k = c.index({kBatch + 1}, {0, n, 2 * n});
  } else {
    a.q = c.tensor(s.q_dtype, {kBatch, s.seqlen_q, kHeadsQ, s.head_dim});
    a.o = c.tensor(o_dtype, {kBatch, s.seqlen_q, kHeadsQ, s.head_dim_v});
    a.lse = c.tensor(TEGULA_F32, {kBatch, kHeadsQ, s.seqlen_q});
    if (layout == Layout::kDense) {
      a.k = c.tensor(s.kv_dtype, {kBatch, s.seqlen_k, kHeadsKv, s.head_dim});
      a.v = c.tensor(s.kv_dtype, {kBatch, s.seqlen_k, kHeadsKv, s.head_dim_v});
    } else {
      const int64_t row = (s.seqlen_k + kPageSize - 1) / kPageSize;
      a.k = c.tensor(s.kv_dtype, {2 * row, kPageSize, kHeadsKv, s.head_dim});
      a.v = c.tensor(s.kv_dtype, {2 * row, kPageSize, kHeadsKv, s.head_dim_v});
      std::vector<int32_t> pages(static_cast<size_t>(2 * row));
      for (size_t i = 0; i < pages.size(); ++i) {
        pages[i] = static_cast<int32_t>(pages.size() - 1 - i);  // the last one is first
      }
      a.seqused_k = c.index({kBatch}, {n, n - 1});
      if (layout == Layout::kPaged) {
        a.page_table = c.index({kBatch, row}, pages);
      } else {
        a.page_indices = c.index({2 * row}, pages);
        const auto r = static_cast<int32_t>(row);
        a.page_indptr = c.index({kBatch + 1}, {0, r, 2 * r});
      }
    }
  }
  if (narrow_q) a.descale_q = c.tensor(TEGULA_F32, {1});
  if (narrow_kv) a.descale_k = c.tensor(TEGULA_F32, {kHeadsKv});
  if (narrow_kv) a.descale_v = c.tensor(TEGULA_F32, {kBatch, kHeadsKv});
  if (s.extras) {
    a.sink = c.tensor(TEGULA_F32, {kHeadsQ});
    a.alibi_slopes = c.tensor(TEGULA_F32, {kBatch, kHeadsQ});
    a.bias = c.tensor(TEGULA_F32, {kBatch, kHeadsQ, s.seqlen_q, s.seqlen_k});
    a.leftpad_k = c.index({kBatch}, {0, 1});
  }
}

size_t bytes_of(const tegula_tensor& t) {
  size_t count = 1;
  for (int i = 0; i < t.ndim; ++i) count *= static_cast<size_t>(t.shape[i]);
  return count * t.type_bits / 8;
}

class GuardPages : public testing::TestWithParam<Shape> {};

TEST_P(GuardPages, NothingOutsideIsTouched) {
  const Shape& s = GetParam();
  for (const int32_t isa :
       {TEGULA_ISA_SCALAR, TEGULA_ISA_AVX2, TEGULA_ISA_AVX512, TEGULA_ISA_AVX512BF16,
        TEGULA_ISA_AMX, TEGULA_ISA_AMX_MODEL}) {
    int64_t can = 0;
    const std::string name = std::string("isa.") + tegula_isa_name(isa);
    ASSERT_EQ(tegula_capability(nullptr, name.c_str(), &can), TEGULA_OK);
    if (can != 3) continue;
    for (const Layout layout :
         {Layout::kDense, Layout::kRagged, Layout::kPaged, Layout::kPageIndices}) {
      std::vector<unsigned char> first;
      for (const Place place : {Place::kEnd, Place::kBegin}) {
        GuardedCall c(place);
        set_up(c, s, layout);
        ASSERT_EQ(tegula_describe_forward(&c.args, &c.problem), TEGULA_OK) << tegula_last_error();
        c.problem.causal = s.causal;
        c.problem.num_splits = s.extras ? 3 : 0;
        tegula_device device;
        ASSERT_EQ(tegula_device_init(&device), TEGULA_OK);
        device.isa = isa;
        const PlanHandle plan = make_plan(c.problem, &device);
        ASSERT_NE(plan, nullptr);
        tegula_plan_info info;
        ASSERT_EQ(tegula_plan_info_init(&info), TEGULA_OK);
        ASSERT_EQ(tegula_plan_get_info(plan.get(), &info), TEGULA_OK);
        tegula_execution execution;
        ASSERT_EQ(tegula_execution_init(&execution), TEGULA_OK);
        execution.workspace = c.memory(info.scratch_bytes);
        execution.workspace_size = info.scratch_bytes;
        ASSERT_EQ(tegula_forward(plan.get(), &c.args, &execution), TEGULA_OK)
            << tegula_last_error();
        const auto* o = static_cast<const unsigned char*>(c.args.o->data);
        const auto* lse = static_cast<const unsigned char*>(c.args.lse->data);
        std::vector<unsigned char> all(o, o + bytes_of(*c.args.o));
        all.insert(all.end(), lse, lse + bytes_of(*c.args.lse));
        if (first.empty()) {
          first = all;
        } else {
          EXPECT_EQ(all, first) << name << ", layout " << static_cast<int>(layout);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GuardPages,
    testing::Values(Shape{TEGULA_F32, TEGULA_F32, 1, 1, 1, 5, false, false},
                    Shape{TEGULA_F32, TEGULA_F32, 33, 7, 3, 65, true, true},
                    Shape{TEGULA_F16, TEGULA_F16, 64, 64, 17, 129, true, false},
                    Shape{TEGULA_BF16, TEGULA_BF16, 65, 31, 5, 67, true, true},
                    Shape{TEGULA_BF16, TEGULA_BF16, 128, 128, 40, 300, false, false},
                    Shape{TEGULA_BF16, TEGULA_E4M3, 66, 63, 2, 70, true, false},
                    Shape{TEGULA_E4M3, TEGULA_E4M3, 13, 129, 4, 31, false, true},
                    Shape{TEGULA_E5M2, TEGULA_E5M2, 512, 512, 1, 9, true, false}),
    [](const auto& test) {
      const Shape& s = test.param;
      return std::string(tegula_dtype_name(s.q_dtype)) + "_" + tegula_dtype_name(s.kv_dtype) + "_" +
             std::to_string(s.head_dim) + "_" + std::to_string(s.head_dim_v) + "_" +
             std::to_string(s.seqlen_q) + "x" + std::to_string(s.seqlen_k);
    });

// contract.md, 10: entries of the page table that nothing sees may be past the end of memory, or
// before its begin.
TEST(GuardedPageTable, UnseenEntriesAreNotRead) {
  for (const bool left : {false, true}) {
    ForwardFixture f(Layout::kPaged);
    for (Operand* operand : {&f.q, &f.k, &f.v}) operand->buffer->zero();
    // 8 pages of 4 keys. Left of the windows: lengths 32, keys 27 to 31 are seen, pages 6 and 7.
    // Past the lengths: 5 keys, pages 0 and 1.
    const GuardedMemory memory(2 * sizeof(int32_t), left ? Place::kBegin : Place::kEnd);
    const int32_t seen[] = {3, 1};
    std::memcpy(memory.data(), seen, sizeof seen);
    f.q.set(TEGULA_F32, {1, 3, 4, 8});
    f.o.set(TEGULA_F32, {1, 3, 4, 16});
    f.lse.set(TEGULA_F32, {1, 4, 3});
    f.page_table.index.tensor =
        make_tensor(memory.data() - (left ? 6 * sizeof(int32_t) : 0), TEGULA_I32, {1, 8});
    f.seqused_k.set({1}, {left ? 32 : 5});
    f.problem.window_left = left ? 2 : -1;
    f.problem.causal = 1;
    ASSERT_EQ(f.describe(), TEGULA_OK) << tegula_last_error();
    const PlanHandle plan = make_plan(f.problem);
    EXPECT_EQ(tegula_forward(plan.get(), &f.args, nullptr), TEGULA_OK) << tegula_last_error();

    // append_kv reads the entries of the pages that it writes, and no other.
    AppendFixture a(Layout::kPaged);
    a.k_new.set(TEGULA_F32, {1, 2, 2, 8});
    a.v_new.set(TEGULA_F32, {1, 2, 2, 16});
    a.seqused_k.set({1}, {left ? 27 : 3});
    a.page_table.index.tensor = f.page_table.index.tensor;
    EXPECT_EQ(tegula_append_kv(&a.args, nullptr), TEGULA_OK) << tegula_last_error();
  }
}

}  // namespace
