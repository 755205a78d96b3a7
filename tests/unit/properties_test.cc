// SPDX-License-Identifier: Apache-2.0
// What must hold between two calls, on every instruction set that this machine runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "tests/unit/run_util.hpp"

namespace tegula::cases {
namespace {

class Property : public ::testing::TestWithParam<tegula_isa> {
 protected:
  RunOptions options() const {
    RunOptions options;
    options.isa = GetParam();
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu, Property, ::testing::ValuesIn(isas()),
                         [](const auto& instance) { return tegula_isa_name(instance.param); });

// A few cases that differ in what a kernel does: types, masks, ratios, odd sizes.
std::vector<Case> varied() {
  std::vector<Case> list;
  list.push_back(plain(TEGULA_F32, 33, 129, 6, 2, 40));
  list.back().causal = true;
  list.push_back(plain(TEGULA_BF16, 1, 257, 8, 2, 64));
  list.push_back(plain(TEGULA_F16, 65, 65, 3, 3, 33));
  list.back().window_left = 20;
  list.back().window_right = 4;
  list.back().sink = true;
  list.push_back(plain(TEGULA_BF16, 7, 300, 5, 1, 128));
  list.back().kv_dtype = TEGULA_E4M3;
  list.back().descale = PerHead::kHeads;
  list.back().head_dim_v = 72;
  list.push_back(plain(TEGULA_E5M2, 17, 100, 4, 1, 48));
  list.back().softcap = 5.0;
  list.back().alibi = PerHead::kHeads;
  return list;
}

// Every element of b within the sum of both tolerances of a's.
void expect_near(const ForwardData& a, const ForwardData& b, const char* what) {
  const ForwardReference reference(a, oracle::DeviceClass::kCpu);
  const oracle::Limits limits =
      oracle::limits_for(oracle::DeviceClass::kCpu, format_of(a.item().q_dtype));
  for (std::int64_t s = 0; s < a.item().batch(); ++s) {
    for (std::int64_t i = 0; i < a.used_q(s); ++i) {
      for (std::int64_t h = 0; h < a.item().num_heads_q; ++h) {
        const oracle::Row& row = reference.row(s, i, h);
        for (std::int64_t d = 0; d < a.item().head_dim_v; ++d) {
          ASSERT_LE(std::fabs(a.o(s, i, h, d) - b.o(s, i, h, d)),
                    2 * oracle::o_bound(limits, row, d, format_of(a.item().o_dtype)))
              << what << " o " << s << "," << i << "," << h << "," << d;
        }
        const double x = a.lse(s, i, h);
        const double y = b.lse(s, i, h);
        if (x == y) continue;  // -inf too
        ASSERT_LE(std::fabs(x - y), 2 * oracle::lse_bound(limits, row)) << what << " lse";
      }
    }
  }
}

TEST_P(Property, SplitsMergeToTheUnsplitResult) {
  for (Case item : varied()) {
    item.num_splits = 1;
    ForwardData whole(item, Placement::kAligned, kPoison);
    ASSERT_EQ(run(whole, options()).error, "");
    for (const std::int64_t splits : {2, 3, 7, 64, 1024}) {
      item.num_splits = splits;
      ForwardData split(item, Placement::kAligned, kPoison);
      ASSERT_EQ(run(split, options()).error, "");
      expect_near(whole, split, "splits");
    }
    item.num_splits = 0;
    for (const std::int64_t tokens : {1, 64, 100, 256}) {
      item.fixed_split = tokens;
      ForwardData split(item, Placement::kAligned, kPoison);
      ASSERT_EQ(run(split, options()).error, "");
      expect_near(whole, split, "fixed_split");
    }
  }
}

// The same through the public combine: two halves of the keys, merged by the caller.
TEST_P(Property, CombinedHalvesAreTheWhole) {
  for (const tegula_dtype dtype : {TEGULA_F32, TEGULA_BF16}) {
    Case item = plain(dtype, 5, 150, 4, 2, 32);
    item.o_dtype = TEGULA_F32;
    ForwardData whole(item, Placement::kAligned, kPoison);
    ASSERT_EQ(run(whole, options()).error, "");
    const std::int64_t rows[2] = {97, 53};
    const std::int64_t o_shape[5] = {2, 1, 5, 4, 32};
    const std::int64_t lse_shape[4] = {2, 1, 4, 5};
    std::vector<float> o_partial(2 * 5 * 4 * 32);
    std::vector<float> lse_partial(2 * 4 * 5);
    std::int64_t first = 0;
    for (int part = 0; part < 2; ++part) {
      tegula_forward_args args = whole.args();
      tegula_tensor k = *args.k;
      tegula_tensor v = *args.v;
      k.shape[1] = v.shape[1] = rows[part];
      k.byte_offset += static_cast<std::uint64_t>(first * k.strides[1]) * whole.k.element_size();
      v.byte_offset += static_cast<std::uint64_t>(first * v.strides[1]) * whole.v.element_size();
      tegula_tensor o{};
      tegula_tensor lse{};
      tegula_tensor_init(&o, o_partial.data() + part * 5 * 4 * 32, TEGULA_F32, 4, o_shape + 1);
      tegula_tensor_init(&lse, lse_partial.data() + part * 4 * 5, TEGULA_F32, 3, lse_shape + 1);
      args.k = &k;
      args.v = &v;
      args.o = &o;
      args.lse = &lse;
      ASSERT_EQ(run_args(whole, args, options()).error, "");
      first += rows[part];
    }
    ForwardData merged(item, Placement::kAligned, kPoison);
    tegula_combine_args combine{};
    tegula_combine_args_init(&combine);
    tegula_tensor o{};
    tegula_tensor lse{};
    tegula_tensor_init(&o, o_partial.data(), TEGULA_F32, 5, o_shape);
    tegula_tensor_init(&lse, lse_partial.data(), TEGULA_F32, 4, lse_shape);
    combine.o_partial = &o;
    combine.lse_partial = &lse;
    combine.o = merged.args().o;
    combine.lse = merged.args().lse;
    ASSERT_EQ(tegula_combine(&combine, nullptr), TEGULA_OK) << tegula_last_error();
    expect_near(whole, merged, "combine");
  }
}

TEST_P(Property, PagePermutationChangesNoBit) {
  for (const tegula_dtype cache : {TEGULA_BF16, TEGULA_E4M3}) {
    for (const std::int64_t page_size : {1, 5, 16, 64}) {
      Case item = plain(TEGULA_BF16, 3, 130, 4, 2, 48);
      item.kv_dtype = cache;
      item.layout_k = LayoutK::kPageTable;
      item.page_size = page_size;
      item.seqused_k = true;
      item.causal = true;
      item.seqlens_q = {3, 3};
      item.seqlens_k = {130, 71};
      ForwardData data(item, Placement::kAligned, kPoison);
      const std::vector<std::byte> bits = bits_of(data, options());
      // Page p moves to last - p, in the pools and in the table.
      const std::int64_t last = data.k.tensor.shape[0] - 1;
      for (const Operand* pool : {&data.k, &data.v}) {
        const std::size_t bytes = pool->memory.size() / static_cast<std::size_t>(last + 1);
        for (std::int64_t p = 0; p < last - p; ++p) {
          std::byte* here = pool->memory.data() + static_cast<std::size_t>(p) * bytes;
          std::byte* there = pool->memory.data() + static_cast<std::size_t>(last - p) * bytes;
          std::swap_ranges(here, here + bytes, there);
        }
      }
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t n = 0; n < data.page_table.tensor.shape[1]; ++n) {
          const auto id = static_cast<std::int64_t>(data.page_table.get(b, n));
          if (id >= 0 && id <= last) {
            data.page_table.set(static_cast<double>(last - id), b, n);
          }
        }
      }
      data.refill_outputs(0x5a);
      EXPECT_EQ(bits_of(data, options()), bits) << page_size;
    }
  }
}

TEST_P(Property, GqaEqualsRepeatedHeads) {
  for (const std::int64_t ratio : {2, 3, 7, 12}) {
    Case grouped = plain(TEGULA_BF16, 9, 77, 2 * ratio, 2, 40);
    grouped.causal = true;
    ForwardData few(grouped, Placement::kAligned, kPoison);
    ASSERT_EQ(run(few, options()).error, "");
    Case repeated = grouped;
    repeated.num_heads_kv = grouped.num_heads_q;
    ForwardData many(repeated, Placement::kAligned, kPoison);
    for (std::int64_t j = 0; j < 77; ++j) {
      for (std::int64_t h = 0; h < repeated.num_heads_kv; ++h) {
        for (std::int64_t d = 0; d < 40; ++d) {
          many.k.set(few.k.get(0, j, h / ratio, d), 0, j, h, d);
          many.v.set(few.v.get(0, j, h / ratio, d), 0, j, h, d);
        }
      }
    }
    ASSERT_EQ(run(many, options()).error, "");
    expect_near(few, many, "repeated heads");
  }
}

TEST_P(Property, CausalIsWindowRightZero) {
  for (const auto& [q, k] : {std::pair<int, int>{33, 129}, {65, 65}, {40, 9}, {1, 200}}) {
    for (const tegula_dtype dtype : {TEGULA_F32, TEGULA_F16}) {
      Case item = plain(dtype, q, k, 4, 2, 32);
      item.causal = true;
      const std::vector<std::byte> causal = bits_of(item, options());
      item.causal = false;
      item.window_right = 0;
      EXPECT_EQ(bits_of(item, options()), causal) << q << "x" << k;
      item.window_left = k + q;  // wider than all keys
      EXPECT_EQ(bits_of(item, options()), causal) << q << "x" << k;
    }
  }
}

TEST_P(Property, AConstantAddedToARowMovesOnlyItsLse) {
  Case item = plain(TEGULA_F32, 6, 90, 2, 1, 32);
  item.bias_dtype = TEGULA_F32;
  ForwardData data(item, Placement::kAligned, kPoison);
  ForwardData moved(item, Placement::kAligned, kPoison);
  const double constants[6] = {0.0, 1.0, -3.5, 100.0, -1000.0, 4096.0};
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < 6; ++i) {
      for (std::int64_t j = 0; j < 90; ++j) {
        data.bias.set(0.0, 0, h, i, j);
        moved.bias.set(constants[i], 0, h, i, j);
      }
    }
  }
  ASSERT_EQ(check(data, options()), "");
  ASSERT_EQ(check(moved, options()), "");
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < 6; ++i) {
      const double rounding = 0x1p-20 * (8.0 + std::fabs(constants[i]));
      EXPECT_NEAR(moved.lse(0, i, h) - data.lse(0, i, h), constants[i], rounding);
      for (std::int64_t d = 0; d < 32; ++d) {
        EXPECT_NEAR(moved.o(0, i, h, d), data.o(0, i, h, d), 4 * rounding) << i;
      }
    }
  }
}

TEST_P(Property, StridesAndAddressesChangeNoBit) {
  for (Case item : varied()) {
    const std::vector<std::byte> bits = bits_of(item, options());
    for (const Strides strides : {Strides::kPadded, Strides::kHeadMajor, Strides::kSliced, Strides::kShifted}) {
      item.strides_q = item.strides_k = item.strides_v = item.strides_o = strides;
      EXPECT_EQ(bits_of(item, options()), bits);
      ForwardData guarded(item, Placement::kGuarded, 0x5a);
      EXPECT_EQ(bits_of(guarded, options()), bits);
    }
  }
}

// Executors of the tests' own: all inline, last task first; and plain threads.
void inline_backwards(void*, std::int64_t count, tegula_task_fn fn, void* argument) {
  for (std::int64_t task = count; task-- > 0;) fn(argument, task, 0);
}

void plain_threads(void* context, std::int64_t count, tegula_task_fn fn, void* argument) {
  std::atomic<std::int64_t> next{0};
  std::vector<std::thread> threads;
  for (int worker = 0; worker < *static_cast<int*>(context); ++worker) {
    threads.emplace_back([&, worker] {
      for (std::int64_t task = next++; task < count; task = next++) fn(argument, task, worker);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Property, ThreadsAndExecutorsChangeNoBit) {
  std::vector<Case> list = varied();
  list.push_back(plain(TEGULA_BF16, 1, 2000, 4, 1, 64));  // few items: split over keys
  for (const Case& item : list) {
    const std::vector<std::byte> bits = bits_of(item, options());
    RunOptions one = options();
    one.num_workers = 1;
    EXPECT_EQ(bits_of(item, one), bits);
    tegula_executor executor{};
    tegula_executor_init(&executor);
    executor.parallel_for = inline_backwards;
    executor.num_workers = 1;
    one.executor = &executor;
    EXPECT_EQ(bits_of(item, one), bits);
    for (int workers : {2, 5}) {
      RunOptions some = options();
      some.num_workers = workers;
      executor.parallel_for = plain_threads;
      executor.context = &workers;
      executor.num_workers = workers;
      some.executor = &executor;
      EXPECT_EQ(bits_of(item, some), bits) << workers;
    }
  }
}

// A ragged batch whose sequence `place` has the rows of `alone`, among others of other lengths.
std::vector<std::byte> bits_in_company(const ForwardData& alone, std::vector<std::int64_t> lens_q,
                                       std::vector<std::int64_t> lens_k, std::size_t place,
                                       const RunOptions& options) {
  Case item = alone.item();
  item.seed += 77;
  item.seqlens_q = std::move(lens_q);
  item.seqlens_k = std::move(lens_k);
  ForwardData data(item, Placement::kAligned, kPoison);
  std::int64_t first_q = 0;
  std::int64_t first_k = 0;
  for (std::size_t b = 0; b < place; ++b) {
    first_q += item.seqlens_q[b];
    first_k += item.seqlens_k[b];
  }
  for (std::int64_t i = 0; i < item.seqlens_q[place]; ++i) {
    for (std::int64_t h = 0; h < item.num_heads_q; ++h) {
      for (std::int64_t d = 0; d < item.head_dim; ++d) {
        data.q.set(alone.q.get(i, h, d), first_q + i, h, d);
      }
    }
  }
  for (std::int64_t j = 0; j < item.seqlens_k[place]; ++j) {
    for (std::int64_t h = 0; h < item.num_heads_kv; ++h) {
      for (std::int64_t d = 0; d < item.head_dim; ++d) {
        data.k.set(alone.k.get(j, h, d), first_k + j, h, d);
      }
      for (std::int64_t d = 0; d < item.head_dim_v; ++d) {
        data.v.set(alone.v.get(j, h, d), first_k + j, h, d);
      }
    }
  }
  const RunResult result = run(data, options);
  EXPECT_EQ(result.error, "");
  std::vector<std::byte> bits;
  for (std::int64_t i = 0; i < item.seqlens_q[place]; ++i) {
    for (std::int64_t h = 0; h < item.num_heads_q; ++h) {
      const std::byte* row = data.out.at(first_q + i, h);
      bits.insert(bits.end(), row,
                  row + static_cast<std::size_t>(item.head_dim_v) * data.out.element_size());
      const std::byte* lse = data.log_sum_exp.at(h, first_q + i);
      bits.insert(bits.end(), lse, lse + 4);
    }
  }
  return bits;
}

TEST_P(Property, WithFixedSplitTheRestOfTheBatchChangesNoBit) {
  for (const tegula_dtype dtype : {TEGULA_F32, TEGULA_BF16}) {
    for (const auto& [q, k] : {std::pair<int, int>{1, 300}, {9, 129}, {40, 40}, {70, 500}}) {
      Case item = plain(dtype, q, k, 6, 2, 32);
      item.ragged_q = true;
      item.layout_k = LayoutK::kRagged;
      item.fixed_split = 128;
      item.causal = true;
      ForwardData alone(item, Placement::kAligned, kPoison);
      const std::vector<std::byte> bits = bits_of(alone, options());
      EXPECT_EQ(bits_in_company(alone, {q, 1}, {k, 2000}, 0, options()), bits) << q;
      EXPECT_EQ(bits_in_company(alone, {3, 0, q, 130}, {50, 7, k, 140}, 2, options()), bits) << q;
      EXPECT_EQ(bits_in_company(alone, {1, 1, 1, 1, 1, 1, 1, q}, {9, 8, 7, 6, 5, 4, 3, k}, 7, options()), bits) << q;
    }
  }
}

// real value = stored x descale, whatever its sign; 0 makes all keys alike.
TEST_P(Property, DescalesMayBeZeroOrNegative) {
  for (const int seqlen_q : {1, 40}) {
    for (const double descale : {-0.5, 0.0}) {
      Case item = plain(TEGULA_E4M3, seqlen_q, 300, 6, 2, 32);
      item.descale = PerHead::kHeads;
      item.causal = true;
      item.sink = true;
      ForwardData data(item, Placement::kAligned, kPoison);
      data.descale_k.set(descale, 1);
      EXPECT_EQ(check(data, options()), "") << seqlen_q << " " << descale;
      data.descale_v.set(descale, 0);
      data.refill_outputs(0x5a);
      EXPECT_EQ(check(data, options()), "") << seqlen_q << " " << descale;
    }
  }
}

// A NaN in one row of q: that row alone, and no bit of another one; also where masked keys follow
// the row's own in a block.
TEST_P(Property, ANanInARowOfQStaysThere) {
  for (const tegula_dtype dtype : {TEGULA_F32, TEGULA_BF16, TEGULA_F16, TEGULA_E4M3}) {
    for (const bool causal : {false, true}) {
      Case item = plain(dtype, 21, 90, 6, 2, 32);
      item.causal = causal;
      ForwardData data(item, Placement::kAligned, kPoison);
      ASSERT_EQ(check(data, options()), "");
      const std::vector<std::byte> bits = data.used_bits();
      data.q.set(std::numeric_limits<double>::quiet_NaN(), 0, 10, 3, 5);
      data.refill_outputs(0x5a);
      ASSERT_EQ(check(data, options()), "");
      EXPECT_TRUE(std::isnan(data.o(0, 10, 3, 0)) && std::isnan(data.lse(0, 10, 3))) << causal;
      const std::vector<std::byte> after = data.used_bits();
      const std::size_t row = 32 * data.out.element_size() + 4;
      for (std::size_t n = 0; n < 21 * 6; ++n) {
        if (n == 10 * 6 + 3) continue;
        EXPECT_EQ(std::memcmp(bits.data() + n * row, after.data() + n * row, row), 0) << n;
      }
    }
  }
}

// NaN in a visible key: rows of that kv head are undefined, everything else keeps its bits.
TEST_P(Property, ANanInAKeyStaysInItsHeadAndSequence) {
  Case item = plain(TEGULA_BF16, 5, 70, 6, 3, 32);
  item.seqlens_q = {5, 5};
  item.seqlens_k = {70, 70};
  ForwardData data(item, Placement::kAligned, kPoison);
  ASSERT_EQ(check(data, options()), "");
  const std::vector<std::byte> bits = data.used_bits();
  for (const Operand* operand : {&data.k, &data.v}) {
    const double before = operand->get(1, 33, 1, 3);
    operand->set(std::numeric_limits<double>::quiet_NaN(), 1, 33, 1, 3);
    data.refill_outputs(0x5a);
    ASSERT_EQ(run(data, options()).error, "");
    operand->set(before, 1, 33, 1, 3);
    const std::vector<std::byte> after = data.used_bits();
    const std::size_t row = 32 * data.out.element_size() + 4;
    for (std::size_t n = 0; n < 2 * 5 * 6; ++n) {
      if (n >= 5 * 6 && n % 6 / 2 == 1) continue;
      EXPECT_EQ(std::memcmp(bits.data() + n * row, after.data() + n * row, row), 0) << n;
    }
  }
}

}  // namespace
}  // namespace tegula::cases
