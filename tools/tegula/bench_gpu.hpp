// SPDX-License-Identifier: Apache-2.0
// Measures cells on a GPU: bursts of calls between events, all cells in turn, round after round.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/cases/gpu.hpp"
#include "tools/tegula/bench_cell.hpp"
#include "tools/tegula/nvml.hpp"

namespace tegula::program {

struct GpuPace {
  double pause;  // seconds before a burst, in which the GPU cools down and its clocks rise
  double warm;   // seconds of calls that are not counted
  double burst;  // seconds of calls that are
  int most_calls;
  int rounds;
};
inline constexpr GpuPace kFullGpuPace = {0.15, 0.025, 0.15, 50, 5};
inline constexpr GpuPace kQuickGpuPace = {0.02, 0.005, 0.02, 10, 2};

struct GpuResult {
  Cell cell;
  std::string implementation;
  std::string refusal;          // not empty: the library does not take it
  std::vector<double> seconds;  // of a call, one a round
  std::vector<double> mhz, watts;

  bool measured() const { return !seconds.empty(); }
  double median_seconds() const;
};

// Throws Failure. `advance` is called after each burst.
std::vector<GpuResult> measure_on_gpu(cases::Gpu& gpu, const Nvml& nvml,
                                      const std::vector<Cell>& cells, const GpuPace& pace,
                                      const std::function<void()>& advance);

std::string pci_bus_id(cases::Gpu& gpu);  // "0000:0a:00.0"

}  // namespace tegula::program
