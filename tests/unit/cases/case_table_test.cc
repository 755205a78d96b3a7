// SPDX-License-Identifier: Apache-2.0
// The committed table: readable, large enough, and with every legal pair of feature values.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "tests/cases/features.hpp"
#include "tests/cases/random.hpp"
#include "tests/cases/verify.hpp"

namespace tegula::cases {
namespace {

std::vector<Case> table() { return load_table(default_folder() + "/table"); }

TEST(CaseTable, HasAtLeast500Cases) {
  const std::vector<Case> cases = table();
  EXPECT_GE(cases.size(), 500u);
  std::map<Op, int> count;
  int fast = 0;
  for (const Case& item : cases) {
    ++count[item.op];
    fast += item.has_tag("fast") ? 1 : 0;
  }
  EXPECT_GE(count[Op::kForward], 350);
  EXPECT_GE(count[Op::kAppendKv], 60);
  EXPECT_GE(count[Op::kCombine], 40);
  EXPECT_GE(fast, 300);
}

TEST(CaseTable, EveryLegalPairOfFeatureValues) {
  const std::vector<std::string> missing =
      missing_pairs(load_axes(default_folder() + "/axes.json"), table());
  for (std::size_t n = 0; n < std::min<std::size_t>(missing.size(), 20); ++n) {
    ADD_FAILURE() << "no case has " << missing[n];
  }
  EXPECT_TRUE(missing.empty()) << missing.size() << " pairs are missing";
}

TEST(CaseTable, APairThatIsRemovedIsMissed) {
  std::vector<Case> cases = table();
  std::erase_if(cases, [](const Case& item) { return item.attention_chunk > 0 && item.sink; });
  const std::vector<std::string> missing =
      missing_pairs(load_axes(default_folder() + "/axes.json"), cases);
  EXPECT_NE(std::find(missing.begin(), missing.end(), "mask=chunk with sink=on"), missing.end());
}

// (The named cases also stand where a pair cannot be asked of every table: one empty sequence alone.)
TEST(CaseTable, NoIllegalPairAmongTheGeneratedOnes) {
  const Axes axes = load_axes(default_folder() + "/axes.json");
  for (const Case& item : table()) {
    if (item.id.rfind("pair-", 0) != 0) continue;
    const auto features = features_of(item);
    for (const auto& [axis, value] : features) {
      for (const auto& [with, other] : features) {
        EXPECT_TRUE(axis == with || axes.legal(axis, value, with, other))
            << item.id << ": " << axis << "=" << value << " with " << with << "=" << other;
      }
    }
  }
}

TEST(CaseTable, SizesAndRatiosThatTheContractAsksFor) {
  std::set<std::int64_t> rows, keys, ratios, dims;
  bool pool_unused = false;
  for (const Case& item : table()) {
    if (item.op != Op::kForward) continue;
    rows.insert(item.seqlens_q.begin(), item.seqlens_q.end());
    keys.insert(item.seqlens_k.begin(), item.seqlens_k.end());
    ratios.insert(item.num_heads_q / item.num_heads_kv);
    dims.insert(item.head_dim);
    pool_unused = pool_unused || (item.paged() && item.window_left >= 0);
  }
  for (const std::int64_t size : {0, 1, 2, 31, 33, 127, 129, 257}) {
    EXPECT_TRUE(rows.count(size) == 1 && keys.count(size) == 1) << size;
  }
  for (const std::int64_t ratio : {1, 2, 3, 5, 7, 8, 12, 16, 71}) EXPECT_EQ(ratios.count(ratio), 1u) << ratio;
  EXPECT_EQ(dims.count(1), 1u);
  EXPECT_EQ(dims.count(512), 1u);
  EXPECT_TRUE(pool_unused);
}

TEST(CaseTable, ParserNamesWhatIsWrong) {
  const auto error = [](const char* line) {
    try {
      parse_case(line);
    } catch (const std::exception& caught) {
      return std::string(caught.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(error(R"({"id":"a","seqlens_q":[1],"seqlens_k":[1]})"), "accepted");
  EXPECT_EQ(error(R"({"id":"a","colour":1})"), "unknown field \"colour\"");
  EXPECT_EQ(error(R"({"id":"a","q_dtype":"f8"})"), "dtype: unknown value \"f8\"");
  EXPECT_EQ(error(R"({"id":"a","seqlens_q":[1,2],"seqlens_k":[1,1]})"),
            "seqlens_q: differ in a dense layout without seqused_q");
  EXPECT_NE(error(R"({"id":"a","seqlens_q":[1],"seqlens_k":"x"})").find("seqlens_k"),
            std::string::npos);
  EXPECT_NE(error("{").find("parse error"), std::string::npos);
}

// The first numbers of splitmix64 from seed 0, as published with the generator, and what the inputs
// make of them: any other language must find the same.
TEST(CaseInputs, SplitMixAndBell) {
  EXPECT_EQ(splitmix64(0, 0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(splitmix64(0, 1), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(splitmix64(0, 2), 0x06c45d188009454fu);
  const std::int64_t sum = std::int64_t{0xe220a839} + 0x7b1dcdaf + 0x6e789e6a + 0xa1b965f4;
  EXPECT_EQ(bell(0, 0), sum - (std::int64_t{1} << 33));
  EXPECT_EQ(value(0, 0, 31), static_cast<double>(bell(0, 0)));
  double mean = 0.0;
  double square = 0.0;
  for (std::uint64_t n = 0; n < 100000; ++n) {
    const double x = value(5, n, 0);
    mean += x;
    square += x * x;
  }
  EXPECT_NEAR(mean / 1e5, 0.0, 0.02);
  EXPECT_NEAR(square / 1e5, 4.0 / 3.0, 0.02);
}

}  // namespace
}  // namespace tegula::cases
