// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/bars.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include <fmt/format.h>

namespace tegula::program {
namespace {

constexpr std::array<std::pair<const char*, Measure>, 5> kMeasures = {
    {{"of_limit", Measure::kOfLimit},
     {"time_over_limit", Measure::kTimeOverLimit},
     {"peer", Measure::kPeer},
     {"speed", Measure::kSpeed},
     {"time", Measure::kTime}}};

Measure measure_of(const std::string& name) {
  for (const auto& [known, measure] : kMeasures) {
    if (name == known) return measure;
  }
  throw Failure(fmt::format("bars: {} is no measure", name));
}

Bar parse_bar(const Json& json) {
  Bar bar;
  bool bounded = false, directed = false;
  for (const auto& [key, value] : json.items()) {
    if (key == "bar") {
      bar.text = value;
    } else if (key == "cells") {
      bar.cells = value;
    } else if (key == "excluded") {
      bar.excluded = value;
    } else if (key == "if_run") {
      bar.if_run = value;
    } else if (key == "measure") {
      bar.measure = measure_of(value);
    } else if (key == "over") {
      bar.replaced = value.at(0);
      bar.by = value.at(1);
    } else if (key == "aim") {
      bar.aim = value;
    } else if (key == "at_least" || key == "at_most") {
      bar.bound = value;
      bar.at_least = key == "at_least";
      bounded = true;
    } else if (key == "direction") {
      bar.at_least = value == "at_least";
      directed = true;
    } else {
      throw Failure(fmt::format("bars: {} is no part of a bar", key));
    }
  }
  bar.reported_only = !bounded;
  const bool compares = bar.measure == Measure::kSpeed || bar.measure == Measure::kTime;
  if (bar.text.empty() || bar.cells.empty() || bounded == directed ||
      compares == bar.replaced.empty()) {
    throw Failure(fmt::format("bars: '{}' is incomplete", bar.text));
  }
  return bar;
}

}  // namespace

BarTable bars_of(const std::string& machine_class, const std::string& text) {
  const Json json = Json::parse(text);
  std::vector<std::string> known;
  for (const auto& [key, value] : json.items()) {
    if (value.is_array() && key != "both") known.push_back(key);
  }
  if (std::find(known.begin(), known.end(), machine_class) == known.end()) {
    throw Failure(fmt::format(
        "--check: there are no bars for machines of class '{}'; the table (bench/bars.json) has {}",
        machine_class, fmt::join(known, ", ")));
  }
  BarTable table;
  table.threads = json.at("threads");
  for (const std::string& part : {machine_class, std::string("both")}) {
    for (const Json& bar : json.at(part)) table.bars.push_back(parse_bar(bar));
  }
  return table;
}

std::vector<Json> read_lines(const std::vector<std::string>& files) {
  std::vector<Json> lines;
  for (const std::string& file : files) {
    std::ifstream stream(file);
    if (!stream) throw Failure(fmt::format("{}: cannot be read", file));
    std::string text;
    for (int number = 1; std::getline(stream, text); ++number) {
      if (text.empty()) continue;
      lines.push_back(Json::parse(text, nullptr, false));
      if (!lines.back().is_object())
        throw Failure(fmt::format("{}:{}: is no result line", file, number));
    }
  }
  return lines;
}

std::string class_of_lines(const std::vector<Json>& lines) {
  std::string name;
  for (const Json& line : lines) {
    const std::string machine = line.value("machine", ""), key = "; class ";
    const std::size_t at = machine.find(key);
    if (at == std::string::npos) continue;
    const std::string found = machine.substr(
        at + key.size(), machine.find_first_of(",;", at + key.size()) - at - key.size());
    if (!name.empty() && name != found)
      throw Failure(fmt::format("--lines: of two classes, {} and {}", name, found));
    name = found;
  }
  if (name.empty())
    throw Failure(
        "--lines: no line names its machine's class ('...; class NAME, ...' in `machine`)");
  return name;
}

}  // namespace tegula::program
