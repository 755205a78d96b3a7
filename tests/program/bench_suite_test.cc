// SPDX-License-Identifier: Apache-2.0
// The suite is what it promises to be: every cell by name, of the promised size; classes, rounds,
// result lines.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tools/tegula/bench_machine.hpp"
#include "tools/tegula/bench_report.hpp"
#include "tools/tegula/bench_rounds.hpp"
#include "tools/tegula/bench_suite.hpp"

namespace tegula::program {
namespace {

using Strings = std::vector<std::string>;

std::set<std::string> promised(const Strings& threads) {
  std::set<std::string> names;
  for (const std::string type : {"f32", "bf16", "f16"}) {
    for (const std::string dim : {"64", "128"}) {
      const std::string head = "forward-" + type + "-d" + dim + "-";
      for (const std::string mask : {"full", "causal"}) {
        for (const std::string seqlen : {"128", "512", "1024", "2048", "4096"})
          names.insert(head + mask + "-s" + seqlen);
        names.insert(head + mask + "-s2048-ratio4");
        names.insert(head + mask + "-s2048-ragged");
      }
      for (const std::string feature :
           {"full-s2048-softcap", "full-s2048-sink", "window256-s4096", "window1024-s4096"}) {
        names.insert(head + feature);
      }
    }
  }
  for (const std::string order : {"dense", "paged16", "permuted16"}) {
    for (const std::string type : {"bf16", "f32", "e4m3"}) {
      for (const std::string ratio : {"1", "4", "8", "16"}) {
        for (const std::string where : {"dram", "l3"})
          names.insert("decode-" + type + "-ratio" + ratio + "-" + order + "-" + where);
      }
    }
    for (const std::string type : {"bf16", "f32"}) names.insert("append-" + type + "-" + order);
  }
  for (const std::string type : {"f32", "bf16"}) {
    for (const std::string seqlen : {"1", "16", "64", "128"})
      names.insert("small-" + type + "-s" + seqlen);
  }
  for (const std::string cell :
       {"forward-f32-d64-full-s2048", "forward-bf16-d128-full-s2048",
        "forward-bf16-d64-causal-s1024", "decode-bf16-ratio1-paged16-dram"}) {
    for (const std::string& count : threads) names.insert("scaling-" + cell + "-t" + count);
  }
  return names;
}

TEST(BenchSuite, HasEveryPromisedCellOnceAndNoOther) {
  const std::vector<Cell> suite = suite_cpu(MachineClass::kZen4, 2);
  std::set<std::string> names;
  for (const Cell& cell : suite) EXPECT_TRUE(names.insert(cell.name).second) << cell.name;
  EXPECT_EQ(names, promised({"1", "2"}));
  std::set<std::string> many;
  for (const Cell& cell : suite_cpu(MachineClass::kSapphireRapids, 12)) many.insert(cell.name);
  EXPECT_EQ(many, promised({"1", "2", "4", "8", "12"}));
}

TEST(BenchSuite, CellsHaveThePromisedSizes) {
  constexpr double kMiB = 1024 * 1024;
  for (const auto& [machine, l3] :
       {std::pair{MachineClass::kZen4, 8.0}, std::pair{MachineClass::kSapphireRapids, 32.0}}) {
    for (const Cell& cell : suite_cpu(machine, 2)) {
      SCOPED_TRACE(cell.name);
      if (cell.op == Op::kForward) {
        EXPECT_EQ(cell.heads_q, 8);
        EXPECT_EQ(cell.seqlen_q, cell.seqlen_k);
        EXPECT_TRUE(is_compute(cell.limit));
        if (!cell.ragged()) {
          EXPECT_EQ(cell.batch, 1);
        }
        if (cell.ragged()) {
          EXPECT_EQ(*std::max_element(cell.lengths.begin(), cell.lengths.end()), 2048);
        }
      } else {
        EXPECT_EQ(cell.head_dim, 128);
        EXPECT_EQ(cell.heads_kv, 8);
      }
      if (cell.op == Op::kDecode && cell.residence == "dram") {
        EXPECT_EQ(cell.batch, 16);
        EXPECT_EQ(cell.seqlen_k, 8192);
        EXPECT_GE(static_cast<double>(cell.cache_sets) * cell.kv_bytes(), 512 * kMiB);
      }
      if (cell.residence == "l3") {
        EXPECT_EQ(cell.kv_bytes(), l3 * kMiB);
      }
      if (cell.op == Op::kAppend) {
        EXPECT_GE(cell.kv_bytes(), kMiB);
      }
    }
  }
}

// Cells of a set stand together: only then are they measured in the same rounds.
TEST(BenchSuite, SetsAndStagesAreNotTorn) {
  std::set<std::string> sets, stages;
  std::string set, stage;
  for (const Cell& cell : suite_cpu(MachineClass::kZen4, 4)) {
    EXPECT_FALSE(cell.stage.empty()) << cell.name;
    if (cell.set != set) {
      EXPECT_TRUE(sets.insert(cell.set).second) << cell.set;
    }
    if (cell.stage != stage) {
      EXPECT_TRUE(stages.insert(cell.stage).second) << cell.stage;
    }
    set = cell.set;
    stage = cell.stage;
  }
}

TEST(BenchSuite, CountsVisibleKeys) {
  Cell cell;
  cell.heads_q = 2;
  cell.head_dim = 8;
  cell.seqlen_q = cell.seqlen_k = 6;
  EXPECT_EQ(cell.flops(), 4.0 * 2 * 8 * 36);
  cell.mask = CellMask::kCausal;
  EXPECT_EQ(cell.flops(), 4.0 * 2 * 8 * 18);
  cell.mask = CellMask::kWindow;
  cell.window_left = 2;  // rows see 1, 2, 3, 3, 3, 3 keys
  EXPECT_EQ(cell.visible_keys(), 15.0);
  cell.mask = CellMask::kFull;
  cell.lengths = {6, 2};
  cell.batch = 2;
  EXPECT_EQ(cell.visible_keys(), 40.0);
}

TEST(BenchSuite, FiltersByPatterns) {
  EXPECT_TRUE(matches("", "anything"));
  EXPECT_TRUE(matches("a*,*-s128", "forward-f32-s128"));
  EXPECT_FALSE(matches("a*,*-s128", "forward-f32-s1024"));
  EXPECT_TRUE(matches("decode-*-ratio?-*", "decode-bf16-ratio4-dense"));
  EXPECT_FALSE(matches("decode-*-ratio?-*", "decode-bf16-ratio16-dense"));
}

TEST(BenchMachine, KnowsItsClassesAndNoOther) {
  cpu::CpuInfo info = {};
  const auto is = [&](const char* vendor, int family) {
    std::fill(std::begin(info.vendor), std::end(info.vendor), '\0');
    std::copy_n(vendor, std::string(vendor).size(), info.vendor);
    info.family = family;
    return class_of(info);
  };
  EXPECT_EQ(is("AuthenticAMD", 25), MachineClass::kUnknown);  // Zen 3
  info.x86.avx512_bf16 = true;
  EXPECT_EQ(is("AuthenticAMD", 25), MachineClass::kZen4);
  EXPECT_EQ(is("AuthenticAMD", 26), MachineClass::kUnknown);  // Zen 5
  EXPECT_EQ(is("GenuineIntel", 6), MachineClass::kUnknown);   // Cooper Lake
  info.x86.amx_bf16 = true;
  EXPECT_EQ(is("GenuineIntel", 6), MachineClass::kSapphireRapids);
  EXPECT_EQ(is("AuthenticAMD", 25), MachineClass::kUnknown);
  info.x86.amx_fp16 = true;
  EXPECT_EQ(is("GenuineIntel", 6), MachineClass::kUnknown);  // Granite Rapids
  for (const MachineClass machine : {MachineClass::kZen4, MachineClass::kSapphireRapids}) {
    EXPECT_EQ(class_named(class_name(machine)), machine);
  }
  EXPECT_EQ(class_named("z80"), MachineClass::kUnknown);
}

TEST(BenchRounds, ASlowProbeOnEitherSideDropsARound) {
  const std::vector<Round> rounds = {
      {100, 1.0, 99}, {89, 5.0, 100}, {100, 6.0, 50}, {91, 2.0, 90}, {100, 3.0, 100}};
  const KeptRounds kept = keep_rounds(rounds, best_probe(rounds, false));
  EXPECT_EQ(kept.seconds, (std::vector<double>{1.0, 2.0, 3.0}));
  EXPECT_EQ(kept.dropped, 2);
  EXPECT_EQ(kept.limit, 100.0);
}

TEST(BenchRounds, AnEarlierBestShowsThatAllAreSlow) {
  const std::vector<Round> rounds(8, Round{80, 1.0, 80});
  EXPECT_EQ(keep_rounds(rounds, best_probe(rounds, false)).kept(), 8);
  EXPECT_EQ(keep_rounds(rounds, 100).kept(), 0);
  EXPECT_EQ(keep_rounds(rounds, 100).limit, 0.0);
  EXPECT_EQ(keep_rounds({}, 0.0).kept(), 0);
}

TEST(BenchRounds, OneOutlierIsNoBestWhereProbesScatter) {
  std::vector<Round> rounds(10, Round{100, 1.0, 100});
  rounds[3].after = 150;
  EXPECT_EQ(best_probe(rounds, false), 150.0);
  EXPECT_EQ(best_probe(rounds, true), 100.0);
  EXPECT_EQ(keep_rounds(rounds, best_probe(rounds, true)).kept(), 10);
  EXPECT_EQ(keep_rounds(rounds, best_probe(rounds, true)).limit, 100.0);
}

// The fields of docs/measuring.md, and how often each stands in a line.
TEST(BenchLines, HaveTheDocumentedFields) {
  const std::set<std::string> numbers = {"head_dim", "head_dim_v", "heads_q",       "heads_kv",
                                         "batch",    "seqlen_q",   "seqlen_k",      "threads",
                                         "rounds",   "ms",         "tflops",        "gbps",
                                         "limit",    "of_limit",   "rounds_dropped"};
  const std::set<std::string> texts = {"suite",     "cell",   "op",    "device", "machine",
                                       "impl",      "dtype",  "mask",  "layout", "features",
                                       "residence", "commit", "clocks"};
  const RunFields fields = {"a machine; class zen4, 2 CPUs", "0123abc", "2600 MHz"};
  for (const Cell& cell : suite_cpu(MachineClass::kZen4, 2)) {
    SCOPED_TRACE(cell.name);
    CellResult result;
    result.cell = cell;
    result.implementation = "cpu_test";
    result.seconds = 0.5;
    result.limit = 2 * cell.rate(0.5);
    result.kept = 7;
    const Json line = line_of(result, fields);
    for (const auto& [key, value] : line.items()) {
      EXPECT_TRUE(value.is_number() ? numbers.count(key) : texts.count(key)) << key;
    }
    EXPECT_EQ(line.at("of_limit"), 0.5);
    EXPECT_EQ(line.at("ms"), 500.0);
    EXPECT_EQ(line.at("limit"),
              2 * line.at(cell.op == Op::kForward ? "tflops" : "gbps").get<double>());
    EXPECT_EQ(line.contains("tflops"), cell.op != Op::kAppend);
  }
  const LimitReport limits = {
      {{Probe::kDram, 2, 3e10, {2, 0}}, {Probe::kFma, 1, 1e11, {}}}, {{2, {1e-6, 1e-5}}}, 0};
  const std::vector<Json> lines = lines_of(limits, fields);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0].at("cell"), "limit-dram-t2");
  EXPECT_EQ(lines[0].at("gbps"), 30.0);
  EXPECT_EQ(lines[1].at("tflops"), 0.1);
  EXPECT_EQ(lines[2].at("cell"), "limit-launch-hot-t2");
  for (const Json& line : lines) EXPECT_EQ(line.at("op"), "limit");
}

}  // namespace
}  // namespace tegula::program
