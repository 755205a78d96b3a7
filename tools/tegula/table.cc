// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/table.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

namespace tegula::program {
namespace {

// Three significant digits, never an exponent: 0.123, 1.23, 12.3, 123, 1234.
std::string three_digits(double value) {
  const double size = std::fabs(value);
  if (size < 9.995) return fmt::format("{:.2f}", value);
  if (size < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

void append_padded(std::string& line, const std::string& cell, std::size_t width, Table::Align align) {
  const std::size_t padding = width - std::min(width, cell.size());
  if (align == Table::Align::kRight) line.append(padding, ' ');
  line += cell;
  if (align == Table::Align::kLeft) line.append(padding, ' ');
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

void Table::add_rule() { rows_.emplace_back(); }

std::string Table::text(int indent) const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = columns_[c].title.size();
    for (const auto& row : rows_) {
      if (!row.empty()) width = std::max(width, row[c].size());
    }
    widths.push_back(width);
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line(static_cast<std::size_t>(indent), ' ');
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (c > 0) line += "  ";
      append_padded(line, cell_of(c), widths[c], columns_[c].align);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  const auto rule = [&](std::size_t c) { return std::string(widths[c], '-'); };
  const bool titled = std::any_of(columns_.begin(), columns_.end(),
                                  [](const Column& column) { return !column.title.empty(); });
  if (titled) {
    add_line([&](std::size_t c) { return columns_[c].title; });
    add_line(rule);
  }
  for (const auto& row : rows_) {
    if (row.empty()) {
      add_line(rule);
    } else {
      add_line([&](std::size_t c) { return row[c]; });
    }
  }
  return text;
}

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1023.5 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{} {}", three_digits(bytes), kUnits[unit]);
}

std::string time_text(double seconds) {
  if (seconds < 999.5e-6) return three_digits(seconds * 1e6) + " us";
  if (seconds < 999.5e-3) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds) + " s";
}

std::string count_text(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::ptrdiff_t first = number < 0 ? 1 : 0;
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::string rate_text(double per_second) {
  if (per_second < 9995) return count_text(std::llround(per_second));
  if (per_second < 999.5e3) return three_digits(per_second / 1e3) + " k";
  if (per_second < 999.5e6) return three_digits(per_second / 1e6) + " M";
  return three_digits(per_second / 1e9) + " G";
}

std::string number_text(double number) {
  if (number == 0) return "0";
  if (std::fabs(number) < 0.01 || std::fabs(number) >= 1e5) return fmt::format("{:.2e}", number);
  return fmt::format("{:.3g}", number);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace tegula::program
