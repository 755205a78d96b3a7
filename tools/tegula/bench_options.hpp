// SPDX-License-Identifier: Apache-2.0
// What the suites of `tegula bench` share: options, the choice of cells, the file of lines.
#pragma once

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tools/tegula/bench_cell.hpp"
#include "tools/tegula/command.hpp"

namespace tegula::program {

struct BenchOptions {
  std::string suite = "cpu", device = "cuda", filter, cpus, out, commit;
  std::vector<std::string> lines;
  int threads = 0;
  bool list = false, limits = false, quick = false, check = false;
};

// Appends; nothing that stands in the file is touched.
class LineFile {
 public:
  explicit LineFile(const std::string& path) : path_(path) {
    if (path.empty()) return;
    stream_.open(path, std::ios::app);
    if (!stream_) throw Failure(fmt::format("{}: cannot be opened for appending", path));
  }
  void add(const Json& line) {
    lines_.push_back(line);
    if (path_.empty()) return;
    stream_ << line.dump() << '\n' << std::flush;
    if (!stream_) throw Failure(fmt::format("{}: cannot be written", path_));
  }
  const std::vector<Json>& lines() const { return lines_; }

 private:
  std::string path_;
  std::ofstream stream_;
  std::vector<Json> lines_;
};

inline std::vector<Cell> chosen(const std::vector<Cell>& suite, const std::string& filter) {
  std::vector<Cell> cells;
  std::copy_if(suite.begin(), suite.end(), std::back_inserter(cells),
               [&](const Cell& cell) { return matches(filter, cell.name); });
  if (cells.empty())
    throw Failure(fmt::format("--filter: no cell matches {} (--list shows them)", filter));
  return cells;
}

// --suite h200-forward.
void bench_h200(const BenchOptions& options, Session& session);

}  // namespace tegula::program
