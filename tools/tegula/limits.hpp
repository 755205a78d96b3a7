// SPDX-License-Identifier: Apache-2.0
// What the machine can do at best, measured in the run that is held against it: at length once, and
// in some milliseconds before and after each round.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tools/tegula/bench_cell.hpp"
#include "tools/tegula/bench_memory.hpp"
#include "tools/tegula/limits_kernels.hpp"
#include "tools/tegula/workers.hpp"

namespace tegula::program {

enum class Probe { kFma, kDot, kAmx, kDram, kL3 };
const char* probe_name(Probe probe);  // fma, dot, amx, dram, l3
inline bool is_read(Probe probe) {
  return probe == Probe::kDram || probe == Probe::kL3;
}

struct LaunchTimes {
  double hot, cold;  // seconds from opening a loop to its end: threads spin, threads sleep
};

class Limits {
 public:
  // Threads are bound to the first of `cpus`; the calling thread is bound to cpus[0] already.
  // l3_bytes: what all threads together read again and again for kL3.
  Limits(std::vector<int> cpus, std::int64_t l3_bytes);

  bool has(Probe probe) const;
  // The best of all variants, each for `seconds`, in several turns. Operations or bytes a second,
  // all threads together.
  double measure(Probe probe, int threads, double seconds);
  double measured(Probe probe, int threads) const;  // 0: not yet
  ReadVariant variant(Probe probe, int threads) const;
  // The variant that was best there, for some milliseconds.
  double probe(Probe probe, int threads);

  // What bounds `kind`, and the factor between its rate and the probe's; every candidate is
  // measured first.
  struct Bound {
    Probe probe;
    double factor;
  };
  Bound bound(LimitKind kind, int threads);

  LaunchTimes launch(int threads) const;

 private:
  struct Measured {
    double rate = 0.0;
    ReadVariant variant = {1, 0};
  };
  struct Region {
    std::unique_ptr<HugePages> pages;
    std::vector<std::size_t> position;  // of each thread within its part, so that short probes go
                                        // on where the last ended
  };

  Workers& team(int threads);
  Region& region(Probe probe, int threads);
  double run(Probe probe, int threads, ReadVariant variant, double seconds);
  double read_rate(Region& region, int threads, ReadVariant variant, double seconds);

  std::vector<int> cpus_;
  std::int64_t l3_bytes_;
  std::map<int, std::unique_ptr<Workers>> teams_;
  std::map<std::pair<Probe, int>, Measured> measured_;
  std::map<Probe, Region> regions_;
};

// Units a second of all threads together: each repeats block(worker), which says how many units it
// did, until `seconds` have passed. All begin together; a slow thread keeps no quick one waiting.
double rate_of(Workers& team, double seconds, const std::function<double(int)>& block);

}  // namespace tegula::program
