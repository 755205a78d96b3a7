// SPDX-License-Identifier: Apache-2.0
// Measures cells: set by set, rounds of all cells of a set in turn, each between two probes of its
// limit.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/tegula/bench_calls.hpp"
#include "tools/tegula/bench_cell.hpp"
#include "tools/tegula/bench_rounds.hpp"
#include "tools/tegula/limits.hpp"

namespace tegula::program {

struct CellResult {
  Cell cell;
  std::string implementation;
  double seconds = 0.0;  // median of the kept rounds; 0 with fewer than kFewestRounds of them
  double limit = 0.0;    // in the unit of the cell's rate, from the same seconds
  int kept = 0, dropped = 0;

  bool steady() const { return kept >= kFewestRounds; }
  double of_limit() const { return limit > 0 ? cell.rate(seconds) / limit : 0.0; }
  // The row copy is a yardstick, which streaming stores may pass; nothing passes what the machine
  // can do.
  bool above_limit() const {
    return steady() && cell.limit != LimitKind::kRowCopy && of_limit() > 1.0;
  }
};

struct Pace {
  double burst;       // seconds of calls in a round
  int wanted_rounds;  // kept ones
  double patience;    // seconds for a set; longer while a cell lacks rounds, up to 24 of them
  double limit_turn;  // seconds of each variant of a limit
};
inline constexpr Pace kFullPace = {0.02, 7, 15.0, 0.05};
inline constexpr Pace kQuickPace = {0.003, 5, 3.0, 0.01};

class Runner {
 public:
  Runner(std::vector<int> cpus, std::int64_t l3_bytes, const Pace& pace);

  Limits& limits() { return limits_; }
  // All of one set.
  std::vector<CellResult> measure(const std::vector<Cell>& set);
  // Short probes of what the cells need, before the first of them: what counts as quick from now
  // on.
  void begin_stage(const std::vector<Cell>& cells);
  // The same probes once more, and an end of the stage's data.
  struct Drift {
    double before, best, after;
  };
  using Drifts = std::map<std::pair<Probe, int>, Drift>;  // by probe and threads
  Drifts end_stage();

 private:
  struct Entry;
  double probe(Entry& entry);
  double burst(Entry& entry) const;
  double best_of_some(Probe probe, int threads);

  std::vector<int> cpus_;
  Pace pace_;
  Limits limits_;
  DataStore store_;
  std::map<int, std::unique_ptr<Workers>> copiers_;
  Drifts drifts_;  // of the stage so far
};

}  // namespace tegula::program
