// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

TEST(Table, AlignsColumnsUnderARule) {
  Table table({{"name", Table::Align::kLeft}, {"n"}, {"note", Table::Align::kLeft}});
  table.add({"a", "1,000", "x"});
  table.add({"longer", "7"});
  EXPECT_EQ(table.text(),
            "name        n  note\n"
            "------  -----  ----\n"
            "a       1,000  x\n"
            "longer      7\n");
}

TEST(Table, WithoutTitlesHasNoHeader) {
  Table table({{"", Table::Align::kLeft}, {""}});
  EXPECT_TRUE(table.empty());
  table.add({"k", "1"});
  table.add_rule();
  table.add({"key", "22"});
  EXPECT_EQ(table.text(2), "  k     1\n  ---  --\n  key  22\n");
}

TEST(Numbers, HaveUnitsAndThreeDigits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.00 KiB");
  EXPECT_EQ(bytes_text(1024 * 1023.9), "1.00 MiB");
  EXPECT_EQ(bytes_text(123456789), "118 MiB");
  EXPECT_EQ(time_text(1.5e-6), "1.50 us");
  EXPECT_EQ(time_text(999.6e-6), "1.00 ms");
  EXPECT_EQ(time_text(0.0456), "45.6 ms");
  EXPECT_EQ(time_text(75), "75.0 s");
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(-1234567), "-1,234,567");
  EXPECT_EQ(rate_text(812.4), "812");
  EXPECT_EQ(rate_text(12345), "12.3 k");
  EXPECT_EQ(rate_text(4.56e6), "4.56 M");
}

TEST(Median, IsTheMiddleOrTheMeanOfTheTwo) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

}  // namespace
}  // namespace tegula::program
