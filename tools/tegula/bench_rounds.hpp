// SPDX-License-Identifier: Apache-2.0
// Which rounds of a cell count. Cores fall into slow states for seconds, so each round stands
// between two short probes of the cell's limit, and one of them being slow drops it.
#pragma once

#include <algorithm>
#include <vector>

#include "tools/tegula/table.hpp"

namespace tegula::program {

struct Round {
  double before = 0.0;   // the probe's rate
  double seconds = 0.0;  // of a call
  double after = 0.0;
};

struct KeptRounds {
  std::vector<double> seconds;  // of the kept rounds
  double limit = 0.0;           // median of the kept rounds, of each the better probe
  int dropped = 0;

  int kept() const { return static_cast<int>(seconds.size()); }
};

inline constexpr double kSlow = 0.9;  // of the best probe
inline constexpr int kFewestRounds = 5;

// Compute rates scatter by 1 %, and the best reading is the machine's. Bandwidth scatters by 8 %
// with the neighbours (12 ms each, 1 s of them: 42 to 52 GB/s), and the longer one reads the
// further out lies the highest reading: there the best is what one reading in ten reaches.
inline double best_probe(const std::vector<Round>& rounds, bool scatters) {
  std::vector<double> probes;
  for (const Round& round : rounds) probes.insert(probes.end(), {round.before, round.after});
  if (probes.empty()) return 0.0;
  std::sort(probes.begin(), probes.end());
  return scatters ? probes[probes.size() - 1 - probes.size() / 10] : probes.back();
}

inline KeptRounds keep_rounds(const std::vector<Round>& rounds, double best) {
  KeptRounds kept;
  std::vector<double> limits;
  for (const Round& round : rounds) {
    if (std::min(round.before, round.after) < kSlow * best) {
      ++kept.dropped;
      continue;
    }
    kept.seconds.push_back(round.seconds);
    limits.push_back(std::max(round.before, round.after));
  }
  if (!limits.empty()) kept.limit = median(limits);
  return kept;
}

}  // namespace tegula::program
