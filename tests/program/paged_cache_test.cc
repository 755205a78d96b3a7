// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tools/tegula/failure.hpp"
#include "tools/tegula/paged_cache.hpp"

namespace tegula::program {
namespace {

TEST(PageAllocator, GivesEachPageToOneOwnerInShuffledOrder) {
  PageAllocator pages(50, 1);
  std::vector<std::int32_t> taken;
  for (int i = 0; i < 50; ++i) taken.push_back(pages.take());
  EXPECT_EQ(std::set<std::int32_t>(taken.begin(), taken.end()).size(), 50U);
  EXPECT_EQ(*std::max_element(taken.begin(), taken.end()), 49);
  EXPECT_FALSE(std::is_sorted(taken.begin(), taken.end()));
  EXPECT_EQ(pages.reused(), 0);
  EXPECT_EQ(pages.peak(), 50);
  EXPECT_THROW(pages.take(), Failure);
  const std::vector<std::int32_t> returned(taken.begin(), taken.begin() + 3);
  pages.give_back(returned);
  const std::int32_t again = pages.take();
  EXPECT_TRUE(std::find(returned.begin(), returned.end(), again) != returned.end());
  EXPECT_EQ(pages.reused(), 1);
  EXPECT_EQ(pages.peak(), 50);
}

TEST(PageAllocator, AnotherSeedGivesAnotherOrder) {
  const auto order = [](std::uint64_t seed) {
    PageAllocator pages(50, seed);
    std::vector<std::int32_t> taken;
    for (int i = 0; i < 50; ++i) taken.push_back(pages.take());
    return taken;
  };
  EXPECT_EQ(order(3), order(3));
  EXPECT_NE(order(3), order(4));
}

TEST(LayerCache, BeginsAsNaNAndFindsRowsThroughThePages) {
  LayerCache cache(3, 4, 2, 8, 5, Dtype::kF32);
  const auto* values = reinterpret_cast<const float*>(cache.v_pages.data());
  for (int i = 0; i < 3 * 4 * 2 * 5; ++i) ASSERT_TRUE(std::isnan(values[i]));
  EXPECT_EQ(cache.k().size(0), 3);
  EXPECT_EQ(cache.v().size(3), 5);
  const std::vector<std::int32_t> pages = {2, 0};
  EXPECT_EQ(cache.k_row(pages, 0), cache.k_pages.data() + 2 * 4 * 2 * 8 * 4);
  EXPECT_EQ(cache.v_row(pages, 5), cache.v_pages.data() + 1 * 2 * 5 * 4);
}

}  // namespace
}  // namespace tegula::program
