// SPDX-License-Identifier: Apache-2.0
// The bars that result lines are held against, from bench/bars.json.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/tegula/bench_cell.hpp"
#include "tools/tegula/bench_machine.hpp"

namespace tegula::program {

extern const char* const kBarsJson;  // bench/bars.json as it was when the program was built

enum class Measure {
  kOfLimit,        // the cell's share of its limit
  kTimeOverLimit,  // the inverse: time over the limit's time
  kPeer,           // PyTorch's time over ours
  kSpeed,          // visible keys a second over those of another cell
  kTime,           // time a visible key over that of another cell
};

struct Bar {
  std::string text;
  std::string cells;     // patterns of the cells that must meet it,
  std::string excluded;  // without these,
  std::string if_run;    // and with these where a line of the kind is there
  Measure measure = Measure::kOfLimit;
  std::string replaced, by;  // kSpeed, kTime: the other cell's name has `by` in place of `replaced`
  double bound = 0.0;        // without one the bar is only reported
  double aim = 0.0;          // of the same sense, beyond the bound; 0: none
  bool at_least = true;      // else at most
  bool reported_only = false;

  bool meets(double value) const {
    return reported_only || (at_least ? value >= bound : value <= bound);
  }
  bool wants(const std::string& cell) const { return matches(cells, cell) && !is_excluded(cell); }
  bool is_excluded(const std::string& cell) const {
    return !excluded.empty() && matches(excluded, cell);
  }
};

struct BarTable {
  int threads = 0;  // that every line has to which the bars apply, but for those of group scaling
  std::vector<Bar> bars;
};

// Of a class; Failure that names the known classes if it is none of them.
BarTable bars_of(const std::string& machine_class, const std::string& json = kBarsJson);

enum class Verdict { kMet, kBelow, kNotRun };

struct Judgement {
  const Bar* bar;
  std::string cell;
  Verdict verdict;
  double value = 0.0;  // not with kNotRun
};

struct CheckOptions {
  std::string filter;        // only cells that match it
  bool judges_peers = true;  // false: bars beside PyTorch are left to another call
};

struct CheckReport {
  std::vector<Judgement> judgements;
  std::vector<std::string>
      faults;              // lines that cannot be: above their limit, too few rounds, unknown cells
  int peer_bars_left = 0;  // bars that judges_peers = false left

  int count(Verdict verdict) const;
  // Nothing below, no fault, and with a full suite nothing that was not run.
  bool passed(bool full) const;
};

// Of several lines of a cell the last counts.
CheckReport check_lines(const BarTable& table, const std::vector<Json>& lines,
                        const std::vector<Cell>& suite, const CheckOptions& options);

// Lines of files; Failure for what is no JSON line.
std::vector<Json> read_lines(const std::vector<std::string>& files);
// The class that all lines name in `machine`; Failure if they do not, or differ.
std::string class_of_lines(const std::vector<Json>& lines);
std::string report_text(const CheckReport& report, bool full);
Json report_json(const CheckReport& report, bool full);

}  // namespace tegula::program
