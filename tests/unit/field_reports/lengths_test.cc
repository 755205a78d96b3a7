// SPDX-License-Identifier: Apache-2.0
// Field reports about lengths, empty rows, windows and splits: B01, B02, B03, B05, B06, and B04's
// limits. Each test names its report; parts that wait for a later release are skipped with a reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/cases/random.hpp"
#include "tests/unit/run_util.hpp"

namespace tegula::cases {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Case paged(Case item, std::int64_t page_size) {
  item.layout_k = LayoutK::kPageTable;
  item.page_size = page_size;
  item.seqused_k = true;
  return item;
}

// Rows [first, first + count) of a ragged tensor as a dense batch of one.
tegula_tensor slice(const Operand& operand, std::int64_t first, std::int64_t count) {
  tegula_tensor view = operand.tensor;
  view.ndim = 4;
  view.shape[0] = 1;
  view.strides[0] = 0;
  for (int n = 0; n < 3; ++n) {
    view.shape[n + 1] = operand.tensor.shape[n];
    view.strides[n + 1] = operand.tensor.strides[n];
  }
  view.shape[1] = count;
  view.byte_offset += static_cast<std::uint64_t>(first * view.strides[1]) * operand.element_size();
  return view;
}

TEST(FieldReports, B01_VarlenWithEmptyQueries) {
  for (const EmptySequences& report : empty_sequences()) {
    for (const bool causal : {false, true}) {
      Case item = ragged(plain(TEGULA_BF16, 0, 0, report.heads_q, report.heads_kv, report.dim),
                         report.lens_q, report.lens_k);
      item.causal = causal;
      RunOptions options;
      options.change = [](tegula_problem& problem) { problem.max_seqlen_q = 1; };
      ForwardData data(item, Placement::kGuarded, kPoison);
      EXPECT_EQ(check(data, options), "");

      // Each sequence alone, dense, over the same memory.
      std::int64_t first_q = 0;
      std::int64_t first_k = 0;
      for (std::size_t b = 0; b < report.lens_q.size(); ++b) {
        Case alone = plain(TEGULA_BF16, report.lens_q[b], report.lens_k[b], report.heads_q,
                           report.heads_kv, report.dim);
        alone.causal = causal;
        ForwardData dense(alone, Placement::kGuarded, kPoison);
        tegula_forward_args args = dense.args();
        const tegula_tensor q = slice(data.q, first_q, report.lens_q[b]);
        const tegula_tensor k = slice(data.k, first_k, report.lens_k[b]);
        const tegula_tensor v = slice(data.v, first_k, report.lens_k[b]);
        args.q = &q;
        args.k = &k;
        args.v = &v;
        ASSERT_EQ(run_args(dense, args).error, "");
        for (std::int64_t i = 0; i < report.lens_q[b]; ++i) {
          for (std::int64_t h = 0; h < report.heads_q; ++h) {
            const auto s = static_cast<std::int64_t>(b);
            if (data.lse(s, i, h) != dense.lse(0, i, h)) {
              EXPECT_NEAR(data.lse(s, i, h), dense.lse(0, i, h), 1e-4);
            }
            for (std::int64_t d = 0; d < report.dim; ++d) {
              EXPECT_NEAR(data.o(s, i, h, d), dense.o(0, i, h, d), 0.02);
            }
          }
        }
        first_q += report.lens_q[b];
        first_k += report.lens_k[b];
      }
    }
  }
}

TEST(FieldReports, B01_NothingAtAll) {
  for (const bool causal : {false, true}) {
    for (const auto& [batch, q, k] : {std::tuple<int, int, int>{2, 3, 0}, {2, 0, 3}, {2, 0, 0}, {0, 3, 3}}) {
      Case item = plain(TEGULA_F32, q, k, 4, 2, 64);
      item.seqlens_q.assign(static_cast<std::size_t>(batch), q);
      item.seqlens_k.assign(static_cast<std::size_t>(batch), k);
      item.causal = causal;
      EXPECT_EQ(check(item), "") << batch << " " << q << " " << k;
    }
  }
}

void expect_empty_row(const ForwardData& data, std::int64_t b, std::int64_t i) {
  for (std::int64_t h = 0; h < data.item().num_heads_q; ++h) {
    EXPECT_EQ(data.lse(b, i, h), -kInf);
    for (std::int64_t d = 0; d < data.item().head_dim_v; ++d) EXPECT_EQ(data.o(b, i, h, d), 0.0);
  }
}

TEST(FieldReports, B02_RowsWithoutKeys) {
  for (const std::int64_t splits : {0, 1, 4}) {
    for (const bool pages : {false, true}) {
      Case item = plain(TEGULA_BF16, 5, 2, 4, 2, 64);
      if (pages) item = paged(item, 16);
      item.causal = true;
      item.num_splits = splits;
      ForwardData data(item, Placement::kGuarded, kPoison);
      EXPECT_EQ(check(data), "");
      for (std::int64_t i = 0; i < 3; ++i) expect_empty_row(data, 0, i);
      EXPECT_TRUE(std::isfinite(data.lse(0, 3, 0)) && std::isfinite(data.lse(0, 4, 0)));

      // A window that excludes every key of rows 0 to 2, and no key at all.
      item.causal = false;
      item.window_left = item.window_right = 0;
      ForwardData window(item, Placement::kGuarded, kPoison);
      EXPECT_EQ(check(window), "");
      for (std::int64_t i = 0; i < 3; ++i) expect_empty_row(window, 0, i);
      item.seqlens_k = {0};
      ForwardData none(item, Placement::kGuarded, kPoison);
      EXPECT_EQ(check(none), "");
      for (std::int64_t i = 0; i < 5; ++i) expect_empty_row(none, 0, i);
    }
  }
  // Every key is padding on the left.
  Case item = plain(TEGULA_F16, 3, 40, 2, 1, 64);
  item.leftpad_k = {40};
  ForwardData data(item, Placement::kGuarded, kPoison);
  EXPECT_EQ(check(data), "");
  for (std::int64_t i = 0; i < 3; ++i) expect_empty_row(data, 0, i);
}

TEST(FieldReports, B02_Backward) { GTEST_SKIP() << "gradients of empty rows: the backward is a later release"; }

// Elements that nobody sees are all ones: those become `value`.
void fill_unseen(const Operand& operand, double value) {
  const std::size_t size = operand.element_size();
  const std::uint32_t bits = oracle::encode(format_of(operand.dtype), value);
  const std::uint32_t ones = ~0u;
  std::byte* const data = operand.memory.data();
  for (std::size_t n = 0; n < operand.memory.size(); n += size) {
    if (data[n] == std::byte{0xff} && std::memcmp(data + n, &ones, size) == 0) {
      std::memcpy(data + n, &bits, size);  // little-endian: the low bytes
    }
  }
}

void expect_tails_do_not_matter(const Case& item) {
  ForwardData data(item, Placement::kAligned, kPoison);
  fill_unseen(data.k, 0.0);
  fill_unseen(data.v, 0.0);
  ASSERT_EQ(check(data), "");
  const std::vector<std::byte> bits = data.used_bits();
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), kInf, -kInf}) {
    ForwardData tails(item, Placement::kGuarded, kPoison);
    fill_unseen(tails.k, value);
    fill_unseen(tails.v, value);
    EXPECT_EQ(bits_of(tails), bits) << value << " lens " << item.seqlens_k[0];
  }
}

TEST(FieldReports, B03_TailsOfTheCache) {
  Case small = plain(TEGULA_F16, 1, 3, 1, 1, 64);
  small.seqlens_q = {1, 1};
  small.seqlens_k = {1, 3};
  small.seqused_k = true;
  expect_tails_do_not_matter(small);
  for (const std::int64_t rows : {1, 20}) {  // decode, prefill
    for (const tegula_dtype cache : {TEGULA_BF16, TEGULA_E4M3, TEGULA_E5M2}) {
      Case item = plain(TEGULA_BF16, 1, 1, 8, 8, 64);
      item.kv_dtype = cache;
      item.seqlens_q.assign(4, rows);
      item.seqlens_k = {32, 64, 96, 48};
      item.seqused_k = true;
      item.slack_k = 32;
      item.causal = true;
      expect_tails_do_not_matter(item);
      for (const std::int64_t page_size : {1, 16, 64, 256}) {
        expect_tails_do_not_matter(paged(item, page_size));
        Case odd = paged(item, page_size);
        odd.seqlens_k = {31, 65, 127, 1};
        expect_tails_do_not_matter(odd);
      }
    }
  }
}

// The report is about CUDA grids; the CPU must serve the same sizes (contract.md, 11).
TEST(FieldReports, B04_MoreThan65535BatchesAndHeads) {
  const struct {
    std::int64_t batch, heads, rows;
    bool ragged;
  } sizes[] = {{65535, 1, 16, false}, {65536, 1, 16, false}, {65537, 1, 16, false},
               {1, 70000, 4, false},  {70000, 1, 1, true}};
  constexpr std::int64_t kDim = 16;
  for (const auto& size : sizes) {
    const auto count = static_cast<std::size_t>(size.batch * size.rows * size.heads * kDim);
    std::vector<float> q(count);
    std::vector<float> o(count, -1.0f);
    for (std::size_t n = 0; n < count; ++n) {
      q[n] = static_cast<float>(static_cast<std::int64_t>(splitmix64(3, n) >> 40) - (1 << 23)) * 0x1p-23f;
    }
    std::vector<std::int32_t> offsets;
    for (std::int64_t b = 0; b <= size.batch; ++b) offsets.push_back(static_cast<std::int32_t>(b * size.rows));
    const std::int64_t dense[4] = {size.batch, size.rows, size.heads, kDim};
    const std::int64_t flat[3] = {size.batch * size.rows, size.heads, kDim};
    const std::int64_t entries[1] = {size.batch + 1};
    tegula_tensor in{};
    tegula_tensor out{};
    tegula_index cu{};
    const std::int32_t rank = size.ragged ? 3 : 4;
    tegula_tensor_init(&in, q.data(), TEGULA_F32, rank, size.ragged ? flat : dense);
    tegula_tensor_init(&out, o.data(), TEGULA_F32, rank, size.ragged ? flat : dense);
    tegula_tensor_init(&cu.tensor, offsets.data(), TEGULA_I32, 1, entries);
    tegula_forward_args args{};
    tegula_forward_args_init(&args);
    args.q = args.k = args.v = &in;
    args.o = &out;
    if (size.ragged) args.cu_seqlens_q = args.cu_seqlens_k = &cu;
    tegula_problem problem{};
    tegula_problem_init(&problem);
    ASSERT_EQ(tegula_describe_forward(&args, &problem), TEGULA_OK) << tegula_last_error();
    tegula_plan* plan = nullptr;
    ASSERT_EQ(tegula_plan_create(&problem, nullptr, &plan), TEGULA_OK) << tegula_last_error();
    ASSERT_EQ(tegula_forward(plan, &args, nullptr), TEGULA_OK) << tegula_last_error();
    tegula_plan_destroy(plan);

    for (const std::int64_t b : {std::int64_t{0}, size.batch / 2, size.batch - 1}) {
      oracle::Attention call;
      call.seqlen_q = call.seqlen_k = size.rows;
      call.num_heads_q = call.num_heads_kv = size.heads;
      call.head_dim = call.head_dim_v = kDim;
      call.softmax_scale = 0.25;
      const auto first = static_cast<std::ptrdiff_t>(b * size.rows * size.heads * kDim);
      call.q.assign(q.begin() + first, q.begin() + first + size.rows * size.heads * kDim);
      call.k = call.v = call.q;
      const oracle::Limits limits = oracle::limits_for(oracle::DeviceClass::kCpu, oracle::Format::kFp32);
      for (const std::int64_t h : {std::int64_t{0}, size.heads - 1}) {
        const oracle::Row row = oracle::attend_row(call, size.rows - 1, h);
        for (std::int64_t d = 0; d < kDim; ++d) {
          const auto at = static_cast<std::size_t>(first + ((size.rows - 1) * size.heads + h) * kDim + d);
          EXPECT_LE(oracle::o_ratio(limits, row, d, oracle::Format::kFp32, static_cast<double>(o[at])), 1.0)
              << size.batch << " " << b;
        }
      }
    }
  }
}

TEST(FieldReports, B05_SplitsAtBlockEdges) {
  for (const std::int64_t keys : {1, 63, 64, 65, 255, 256, 257, 513}) {
    for (const std::int64_t heads : {1, 3, 5, 17}) {
      for (const std::int64_t splits : {1, 2, 4, 64, 128}) {
        Case item = plain(TEGULA_BF16, 1, keys, heads, heads, 32);
        item.num_splits = splits;
        ASSERT_EQ(check(item), "") << keys << " keys, " << heads << " heads, " << splits << " splits";
      }
    }
  }
}

TEST(FieldReports, B05_MemoryNearlyFull) { GTEST_SKIP() << "device memory: the CUDA back end is a later release"; }

TEST(FieldReports, B06_WindowEdges) {
  constexpr std::int64_t kDim = 40;
  const std::pair<std::int64_t, std::int64_t> windows[] = {{7, 0}, {0, 0}, {0, 3}, {-1, 0}, {3, -1}};
  for (const auto& [left, right] : windows) {
    for (const bool causal : {false, true}) {
      for (const auto& [rows, keys] : {std::pair<std::int64_t, std::int64_t>{40, 40}, {12, 40}, {40, 25}}) {
        Case item = plain(TEGULA_F32, rows, keys, 1, 1, kDim);
        item.values = Values::kZeroQ;
        item.window_left = left;
        item.window_right = right;
        item.causal = causal;
        ForwardData data(item, Placement::kGuarded, kPoison);
        for (std::int64_t j = 0; j < keys; ++j) {
          for (std::int64_t d = 0; d < kDim; ++d) {
            if (!std::isnan(data.v.get(0, j, 0, d))) data.v.set(j == d ? 1.0 : 0.0, 0, j, 0, d);
          }
        }
        const RunResult result = run(data);
        if (causal && right > 0) {
          EXPECT_EQ(result.status, TEGULA_INVALID_ARGUMENT);
          EXPECT_NE(result.error.find("window_right"), std::string::npos) << result.error;
          continue;
        }
        ASSERT_EQ(result.error, "");
        for (std::int64_t i = 0; i < rows; ++i) {
          const std::int64_t p = i + keys - rows;
          std::int64_t count = 0;
          for (std::int64_t j = 0; j < kDim; ++j) {
            const bool wanted = j < keys && (left < 0 || j >= p - left) && (right < 0 || j <= p + right) &&
                                (!causal || j <= p);
            const bool seen = data.o(0, i, 0, j) != 0.0;
            EXPECT_EQ(seen, wanted) << "window " << left << "," << right << " row " << i << " key " << j;
            count += seen ? 1 : 0;
          }
          if (left == 7 && rows == keys) {
            EXPECT_EQ(count, std::min<std::int64_t>(i + 1, 8));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tegula::cases
