// SPDX-License-Identifier: Apache-2.0
// What a benchmark says: result lines for files, tables for people.
#pragma once

#include <string>
#include <vector>

#include "tools/tegula/bench_cell.hpp"
#include "tools/tegula/bench_run.hpp"

namespace tegula::program {

struct LimitReading {
  Probe probe;
  int threads;
  double rate;
  ReadVariant variant;  // reads
};

struct LimitReport {
  std::vector<LimitReading> readings;
  std::vector<std::pair<int, LaunchTimes>> launches;  // threads and times
  std::int64_t l3_bytes = 0;
};

// Fields that all lines of a run share.
struct RunFields {
  std::string machine, commit, clocks;
};

// "AMD EPYC; class zen4, 2 CPUs; fma 234.1 GFLOP/s, ...": the limits of the most threads.
std::string machine_text(const std::string& brand, const std::string& machine_class, int threads,
                         const LimitReport& limits);
std::string clocks_text();  // "2600 MHz" of the first CPU; empty where the system does not tell

// What every line of a cell begins with, and what it ends with.
Json start_line(const std::string& suite, const std::string& device, const Cell& cell,
                const std::string& implementation, const RunFields& fields);
void add_run_fields(Json& line, const RunFields& fields);
Json line_of(const CellResult& result, const RunFields& fields);
std::vector<Json> lines_of(const LimitReport& limits, const RunFields& fields);

std::string limits_text(const LimitReport& limits);
// A table for each group in a stage, a matrix where its cells are one; then what the limits did
// meanwhile.
std::string stage_text(const std::vector<CellResult>& results, const Runner::Drifts& drifts);

}  // namespace tegula::program
