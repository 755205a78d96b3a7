// SPDX-License-Identifier: Apache-2.0
// Aligned ASCII tables, and numbers with units as they stand in them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tegula::program {

// Columns are as wide as their widest cell and two spaces apart; a rule of '-' stands under the header.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void add(std::vector<std::string> cells);  // one per column; missing ones are empty
  void add_rule();
  bool empty() const { return rows_.empty(); }
  std::string text(int indent = 0) const;    // ends with a newline

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

std::string bytes_text(double bytes);         // "512 B", "3.2 KiB", "1.50 GiB"
std::string cuda_version_text(int version);   // 12090 -> "12.9"
std::string time_text(double seconds);        // "12.3 us", "4.56 ms", "1.20 s"
std::string count_text(std::int64_t number);  // "1,234,567"
std::string rate_text(double per_second);     // "812", "12.3 k", "4.56 M"
std::string number_text(double number);       // three significant digits, "0" for 0

double median(std::vector<double> values);    // of at least one

}  // namespace tegula::program
