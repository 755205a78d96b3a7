// SPDX-License-Identifier: Apache-2.0
// Field report B20: offsets beyond 2^31 elements. The tensors are sparse reservations: only the
// pages that hold needed rows are ever touched.
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cmath>
#include <utility>
#include <vector>

#include "tests/cases/random.hpp"
#include "tests/unit/run_util.hpp"

namespace tegula::cases {
namespace {

class Sparse {
 public:
  explicit Sparse(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Sparse() {
    if (ok()) munmap(data_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kDim = 32;

std::uint16_t half(std::uint64_t stream, std::int64_t row, std::int64_t column) {
  const std::uint64_t index = static_cast<std::uint64_t>(row) * 64 + static_cast<std::uint64_t>(column);
  return static_cast<std::uint16_t>(
      oracle::encode(oracle::Format::kFp16, value(stream_seed(9, stream), index, 0)));
}

void put_row(void* base, std::int64_t offset, std::uint64_t stream, std::int64_t row) {
  auto* to = static_cast<std::uint16_t*>(base) + offset;
  for (std::int64_t n = 0; n < kHeads * kDim; ++n) to[n] = half(stream, row, n);
}

// The compact copy: the last `keys` rows of the sequence, in fp64.
void expect_right(const std::vector<std::uint16_t>& o, std::int64_t first, std::int64_t keys) {
  oracle::Attention call;
  call.seqlen_q = 1;
  call.seqlen_k = keys;
  call.num_heads_q = call.num_heads_kv = kHeads;
  call.head_dim = call.head_dim_v = kDim;
  call.softmax_scale = 1.0 / std::sqrt(static_cast<double>(kDim));
  const auto number = [](std::uint64_t stream, std::int64_t row, std::int64_t column) {
    return oracle::decode(oracle::Format::kFp16, half(stream, row, column));
  };
  for (std::int64_t n = 0; n < kHeads * kDim; ++n) call.q.push_back(number(1, 0, n));
  for (std::int64_t j = 0; j < keys; ++j) {
    for (std::int64_t n = 0; n < kHeads * kDim; ++n) {
      call.k.push_back(number(2, first + j, n));
      call.v.push_back(number(3, first + j, n));
    }
  }
  const oracle::Limits limits = oracle::limits_for(oracle::DeviceClass::kCpu, oracle::Format::kFp16);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    const oracle::Row row = oracle::attend_row(call, 0, h);
    for (std::int64_t d = 0; d < kDim; ++d) {
      const double got = oracle::decode(oracle::Format::kFp16, o[static_cast<std::size_t>(h * kDim + d)]);
      EXPECT_LE(oracle::o_ratio(limits, row, d, oracle::Format::kFp16, got), 1.0) << h << "," << d;
    }
  }
}

struct Query {
  Query() : q(kHeads * kDim), o(kHeads * kDim) {
    put_row(q.data(), 0, 1, 0);
    const std::int64_t shape[4] = {1, 1, kHeads, kDim};
    tegula_tensor_init(&q_tensor, q.data(), TEGULA_F16, 4, shape);
    tegula_tensor_init(&o_tensor, o.data(), TEGULA_F16, 4, shape);
  }

  tegula_status forward(tegula_forward_args& args, std::int64_t window_left) {
    args.q = &q_tensor;
    args.o = &o_tensor;
    tegula_problem problem{};
    tegula_problem_init(&problem);
    tegula_status status = tegula_describe_forward(&args, &problem);
    if (status != TEGULA_OK) return status;
    problem.window_left = window_left;
    tegula_plan* plan = nullptr;
    status = tegula_plan_create(&problem, nullptr, &plan);
    if (status != TEGULA_OK) return status;
    status = tegula_forward(plan, &args, nullptr);
    tegula_plan_destroy(plan);
    return status;
  }

  std::vector<std::uint16_t> q, o;
  tegula_tensor q_tensor{}, o_tensor{};
};

TEST(FieldReports, B20_TokenStrideOfAFusedView) {
  constexpr std::int64_t kStride = 3 * 56 * 128;
  for (const std::int64_t length : {99864, 99865, 99866, 99870}) {
    const Sparse memory(static_cast<std::size_t>(length * kStride) * 2);
    ASSERT_TRUE(memory.ok());
    constexpr std::int64_t kKeys = 9;
    const std::int64_t first = length - kKeys;
    const std::int64_t shape[4] = {1, length, kHeads, kDim};
    tegula_tensor k{};
    tegula_tensor v{};
    tegula_tensor_init(&k, memory.data(), TEGULA_F16, 4, shape);
    tegula_tensor_init(&v, memory.data(), TEGULA_F16, 4, shape);
    k.strides[1] = v.strides[1] = kStride;
    k.strides[0] = v.strides[0] = length * kStride;
    k.strides[2] = v.strides[2] = 128;
    v.byte_offset = 56 * 128 * 2;
    // Heads are 128 apart in the fused row.
    for (std::int64_t j = first; j < length; ++j) {
      for (const auto& [base, stream] : {std::pair<std::int64_t, std::uint64_t>{0, 2}, {56 * 128, 3}}) {
        auto* row = static_cast<std::uint16_t*>(memory.data()) + j * kStride + base;
        for (std::int64_t h = 0; h < kHeads; ++h) {
          for (std::int64_t d = 0; d < kDim; ++d) row[h * 128 + d] = half(stream, j, h * kDim + d);
        }
      }
    }
    Query query;
    tegula_forward_args args{};
    tegula_forward_args_init(&args);
    args.k = &k;
    args.v = &v;
    ASSERT_EQ(query.forward(args, kKeys - 1), TEGULA_OK) << tegula_last_error();
    expect_right(query.o, first, kKeys);
  }
}

TEST(FieldReports, B20_PagesBeyond32Bits) {
  // Page p lies at p * 2^20 elements: ids on both sides of 2^31 / 2^20 = 2048.
  constexpr std::int64_t kPageStride = std::int64_t{1} << 20;
  constexpr std::int64_t kPageSize = 16;
  const std::int32_t ids[] = {2047, 2048, 5, 2049, 4095, 4097};
  constexpr std::int64_t kPages = 4100;
  const Sparse memory(static_cast<std::size_t>(kPages * kPageStride) * 2);
  ASSERT_TRUE(memory.ok());
  constexpr std::int64_t kKeys = 6 * kPageSize - 3;
  constexpr std::int64_t kValues = kPageStride / 2;
  for (std::int64_t j = 0; j < kKeys; ++j) {
    const std::int64_t at = ids[j / kPageSize] * kPageStride + j % kPageSize * kHeads * kDim;
    put_row(memory.data(), at, 2, j);
    put_row(memory.data(), at + kValues, 3, j);
  }
  const std::int64_t shape[4] = {kPages, kPageSize, kHeads, kDim};
  tegula_tensor k{};
  tegula_tensor v{};
  tegula_tensor_init(&k, memory.data(), TEGULA_F16, 4, shape);
  tegula_tensor_init(&v, memory.data(), TEGULA_F16, 4, shape);
  k.strides[0] = v.strides[0] = kPageStride;
  v.byte_offset = kValues * 2;
  const Operand table = make_operand(TEGULA_I32, {1, 6}, {6, 1}, 0, Placement::kGuarded, kPoison);
  for (std::int64_t n = 0; n < 6; ++n) table.set(ids[n], 0, n);
  const Operand lengths = make_index({kKeys}, TEGULA_I32, Placement::kGuarded);
  const tegula_index page_table{table.tensor, nullptr};
  const tegula_index seqused_k{lengths.tensor, nullptr};
  Query query;
  tegula_forward_args args{};
  tegula_forward_args_init(&args);
  args.k = &k;
  args.v = &v;
  args.page_table = &page_table;
  args.seqused_k = &seqused_k;
  ASSERT_EQ(query.forward(args, -1), TEGULA_OK) << tegula_last_error();
  expect_right(query.o, 0, kKeys);
}

TEST(FieldReports, B20_Backward) { GTEST_SKIP() << "the backward is a later release"; }

}  // namespace
}  // namespace tegula::cases
