// SPDX-License-Identifier: Apache-2.0
// The check has to see everything: what is below a bar, what was not run, what cannot be.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tools/tegula/bars.hpp"
#include "tools/tegula/bench_suite.hpp"

namespace tegula::program {
namespace {

constexpr const char* kClasses[] = {"zen4", "sapphire_rapids"};

std::vector<Cell> suite_of(const std::string& machine_class) {
  return suite_cpu(class_named(machine_class), 2);
}

// Lines with which a cell meets whatever is asked of it: one of ours alone, one of ours beside
// PyTorch.
std::vector<Json> good_lines(const Cell& cell) {
  Json alone = {{"suite", "cpu"},
                {"cell", cell.name},
                {"op", op_name(cell.op)},
                {"machine", "m; class zen4, 2 CPUs; fp32 FMA 200 GFLOP/s"},
                {"impl", "cpu_test"},
                {"threads", cell.threads},
                {"rounds", 7},
                {"ms", 1.0},
                {"tflops", 1.0}};
  Json beside = alone;
  alone["of_limit"] = 0.99;
  // Those that have to be quicker than the cell they are compared with.
  if (cell.kv_dtype == Dtype::kE4m3) alone["tflops"] = 1.7;
  if (cell.name.rfind("scaling-", 0) == 0) alone["tflops"] = cell.threads;
  beside["peer"] = "pytorch 2.13.0 sdpa";
  beside["ratio"] = 20.0;
  return {alone, beside};
}

std::vector<Json> good_lines(const std::vector<Cell>& suite) {
  std::vector<Json> lines;
  for (const Cell& cell : suite) {
    for (const Json& line : good_lines(cell)) lines.push_back(line);
  }
  return lines;
}

Json& line_named(std::vector<Json>& lines, const std::string& cell, bool beside = false) {
  return *std::find_if(lines.begin(), lines.end(), [&](const Json& line) {
    return line.at("cell") == cell && line.contains("peer") == beside;
  });
}

CheckReport check(const std::vector<Json>& lines, const CheckOptions& options = {},
                  const std::string& machine_class = "zen4") {
  static std::vector<BarTable> tables;  // the report points into its table
  tables.reserve(100);
  tables.push_back(bars_of(machine_class));
  return check_lines(tables.back(), lines, suite_of(machine_class), options);
}

TEST(Bars, EveryBarHasItsCellsAndWhatTheyAreComparedWith) {
  for (const std::string machine_class : kClasses) {
    const std::vector<Cell> suite = suite_of(machine_class);
    const BarTable table = bars_of(machine_class);
    EXPECT_EQ(table.threads, 2);
    for (const Bar& bar : table.bars) {
      SCOPED_TRACE(bar.text);
      // Each pattern of the list, not only some.
      for (std::size_t begin = 0; begin < bar.cells.size();) {
        const std::size_t end = std::min(bar.cells.find(',', begin), bar.cells.size());
        const std::string pattern = bar.cells.substr(begin, end - begin);
        EXPECT_TRUE(std::any_of(suite.begin(), suite.end(), [&](const Cell& cell) {
          return matches(pattern, cell.name) && bar.wants(cell.name);
        })) << pattern;
        begin = end + 1;
      }
      if (bar.replaced.empty()) continue;
      for (const Cell& cell : suite) {
        if (!bar.wants(cell.name)) continue;
        std::string other = cell.name;
        ASSERT_NE(other.find(bar.replaced), std::string::npos) << cell.name;
        other.replace(other.find(bar.replaced), bar.replaced.size(), bar.by);
        const auto found = std::find_if(suite.begin(), suite.end(),
                                        [&](const Cell& c) { return c.name == other; });
        ASSERT_NE(found, suite.end()) << other;
        EXPECT_EQ(found->heads_q, cell.heads_q);
        EXPECT_EQ(found->head_dim, cell.head_dim);
        EXPECT_EQ(found->set, cell.set) << "measured in other rounds than " << other;
      }
    }
  }
}

TEST(Bars, GoodLinesPass) {
  for (const std::string machine_class : kClasses) {
    const CheckReport report = check(good_lines(suite_of(machine_class)), {}, machine_class);
    EXPECT_TRUE(report.passed(true)) << report_text(report, true);
    EXPECT_GT(report.count(Verdict::kMet), 100);
    EXPECT_EQ(report.peer_bars_left, 0);
  }
}

TEST(Bars, EachCellBelowItsBarFails) {
  const std::vector<Json> lines = good_lines(suite_of("zen4"));
  struct Fall {
    const char* cell;
    const char* field;
    double value;
    bool fails;
  };
  for (const Fall& fall : {Fall{"forward-f32-d64-full-s1024", "of_limit", 0.879, true},
                           Fall{"forward-f32-d64-full-s1024", "of_limit", 0.88, false},
                           Fall{"forward-f32-d64-full-s512", "of_limit", 0.1, false},
                           Fall{"forward-bf16-d128-full-s4096", "of_limit", 0.82, true},
                           Fall{"forward-bf16-d128-causal-s2048", "tflops", 0.91, true},
                           Fall{"forward-f32-d128-window1024-s4096", "tflops", 0.86, true},
                           Fall{"forward-f32-d128-window1024-s4096", "tflops", 0.88, false},
                           Fall{"forward-f32-d128-window256-s4096", "tflops", 0.72, false},
                           Fall{"forward-f32-d128-full-s2048-sink", "tflops", 0.96, true},
                           Fall{"forward-f32-d64-full-s2048-softcap", "tflops", 0.90, true},
                           Fall{"forward-bf16-d64-full-s2048-softcap", "tflops", 0.86, false},
                           Fall{"decode-e4m3-ratio1-dense-dram", "tflops", 1.39, true},
                           Fall{"decode-e4m3-ratio1-dense-l3", "tflops", 1.0, false},
                           Fall{"decode-bf16-ratio1-permuted16-dram", "of_limit", 0.71, true},
                           Fall{"decode-bf16-ratio1-dense-dram", "of_limit", 0.5, false},
                           Fall{"append-bf16-paged16", "of_limit", 0.76, true},
                           Fall{"append-bf16-paged16", "of_limit", 1.5, false},
                           Fall{"scaling-forward-bf16-d128-full-s2048-t2", "tflops", 1.89, true},
                           Fall{"decode-bf16-ratio4-dense-dram", "ratio", 14.9, true},
                           Fall{"small-bf16-s128", "ratio", 2.4, true},
                           Fall{"forward-f16-d64-causal-s512", "ratio", 0.99, true}}) {
    std::vector<Json> changed = lines;
    line_named(changed, fall.cell, std::string(fall.field) == "ratio")[fall.field] = fall.value;
    const CheckReport report = check(changed);
    EXPECT_EQ(report.passed(true), !fall.fails)
        << fall.cell << " " << fall.field << " " << fall.value;
    if (fall.fails) {
      EXPECT_NE(report_text(report, true).find(fall.cell), std::string::npos);
    }
  }
}

TEST(Bars, WhatWasNotRunIsListedAndAnErrorInAFullRun) {
  std::vector<Json> lines = good_lines(suite_of("zen4"));
  lines.erase(lines.begin() + (&line_named(lines, "append-f32-dense") - lines.data()));
  const CheckReport report = check(lines);
  EXPECT_EQ(report.count(Verdict::kNotRun), 1);
  EXPECT_FALSE(report.passed(true));
  EXPECT_TRUE(report.passed(false));
  EXPECT_NE(report_text(report, true).find("append-f32-dense"), std::string::npos);
  EXPECT_TRUE(check(lines, {"forward-*", true}).passed(true));  // none of the chosen cells
  EXPECT_FALSE(check({}).passed(true));
}

TEST(Bars, LinesWithoutTheirFieldsCountAsNotRun) {
  for (const char* field : {"of_limit", "tflops", "ratio"}) {
    std::vector<Json> lines = good_lines(suite_of("zen4"));
    for (Json& line : lines) line.erase(field);
    EXPECT_FALSE(check(lines).passed(true)) << field;
  }
}

TEST(Bars, OtherPeersOtherThreadsAndOtherImplementationsDoNotCount) {
  const std::vector<Json> good = good_lines(suite_of("zen4"));
  const auto all = [&](const char* field, const Json& value) {
    std::vector<Json> lines = good;
    for (Json& line : lines) {
      if (std::string(field) != "peer" || line.contains("peer")) line[field] = value;
    }
    return check(lines);
  };
  EXPECT_FALSE(all("peer", "standard").passed(true));
  EXPECT_FALSE(all("peer", "the pytorch").passed(true));
  EXPECT_EQ(all("threads", 16).count(Verdict::kMet), 0);
  EXPECT_EQ(all("impl", "pytorch 2.13.0 sdpa").count(Verdict::kMet), 0);
  EXPECT_EQ(all("suite", "cpu_first").count(Verdict::kMet), 0);
}

TEST(Bars, TheLastLineOfACellCounts) {
  std::vector<Json> lines = good_lines(suite_of("zen4"));
  Json slow = line_named(lines, "forward-f32-d64-full-s1024");
  slow["of_limit"] = 0.5;
  lines.push_back(slow);
  EXPECT_FALSE(check(lines).passed(true));
  slow["of_limit"] = 0.9;
  lines.push_back(slow);
  EXPECT_TRUE(check(lines).passed(true));
}

TEST(Bars, ACellAboveItsLimitOrWithFewRoundsIsAFault) {
  std::vector<Json> lines = good_lines(suite_of("zen4"));
  line_named(lines, "forward-f16-d64-full-s128")["of_limit"] = 1.001;
  EXPECT_EQ(check(lines).faults.size(), 1U);
  EXPECT_FALSE(check(lines).passed(false));
  lines = good_lines(suite_of("zen4"));
  line_named(lines, "forward-f16-d64-full-s128")["rounds"] = 4;
  EXPECT_FALSE(check(lines).passed(false));
}

TEST(Bars, ARunLeavesThoseBesidePyTorch) {
  std::vector<Json> lines;
  for (const Json& line : good_lines(suite_of("zen4"))) {
    if (!line.contains("peer")) lines.push_back(line);
  }
  const CheckReport report = check(lines, {"", false});
  EXPECT_TRUE(report.passed(true));
  EXPECT_GT(report.peer_bars_left, 0);
  EXPECT_NE(report_text(report, true).find("peers_cpu.py"), std::string::npos);
}

TEST(Bars, UnknownClassesAndBrokenTablesAreRefused) {
  for (const char* name : {"unknown", "", "both", "threads", "zen5"})
    EXPECT_THROW(bars_of(name), Failure) << name;
  const auto table = [](const std::string& bar) {
    return R"({"threads": 2, "both": [], "zen4": [)" + bar + "]}";
  };
  EXPECT_EQ(
      bars_of("zen4", table(R"({"bar": "b", "cells": "*", "measure": "of_limit", "at_least": 1})"))
          .bars.size(),
      1U);
  EXPECT_THROW(bars_of("zen4", table(R"({"bar": "b", "cells": "*", "measure": "of_limit"})")),
               Failure);
  EXPECT_THROW(
      bars_of("zen4", table(R"({"bar": "b", "cells": "*", "measure": "speed", "at_least": 1})")),
      Failure);
  EXPECT_THROW(
      bars_of("zen4", table(R"({"bar": "b", "cells": "*", "measure": "luck", "at_least": 1})")),
      Failure);
  EXPECT_THROW(
      bars_of("zen4", table(R"({"bar": "b", "cells": "*", "measure": "peer", "atleast": 1})")),
      Failure);
}

TEST(Bars, LinesNameTheirClass) {
  Json zen = {{"machine", "AMD EPYC; class zen4, 2 CPUs; x"}},
       other = {{"machine", "Intel; class sapphire_rapids; y"}};
  EXPECT_EQ(class_of_lines({zen, zen, {{"machine", "old"}}}), "zen4");
  EXPECT_EQ(class_of_lines({other}), "sapphire_rapids");
  EXPECT_THROW(class_of_lines({zen, other}), Failure);
  EXPECT_THROW(class_of_lines({{{"machine", "old"}}}), Failure);
  EXPECT_THROW(class_of_lines({}), Failure);
}

}  // namespace
}  // namespace tegula::program
