// SPDX-License-Identifier: Apache-2.0
// A progress bar on stderr, for people only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tegula::program {

// Shows nothing unless stderr is a terminal, and nothing in the first second: short work stays
// quiet. Erased at the end. One thread at a time may call advance().
class Progress {
 public:
  Progress(std::string label, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(std::int64_t steps = 1);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  bool enabled_;
  bool drawn_ = false;
  Clock::time_point begin_;
  Clock::time_point last_;
};

}  // namespace tegula::program
