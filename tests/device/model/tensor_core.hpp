// SPDX-License-Identifier: Apache-2.0
// wgmma on the model. Between issue and wait an accumulator holds NaN, and operands are read when
// the product is made: at once or as late as the wait allows (machine.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/device/model/include/model/api.hpp"

namespace tegula::model {

// An accumulator in use by products that a thread has not waited for.
struct Accumulator {
  float* home;
  int count;
  std::size_t last;  // operations of the warpgroup up to the last one that writes it
  float values[128];
};

// A thread's side: what it has issued, in groups.
class WgmmaThread {
 public:
  void commit() { groups_.push_back(issued_); }
  // Operations that must be done for all but the last `outstanding` groups.
  std::size_t goal(int outstanding) const {
    const std::size_t left = static_cast<std::size_t>(outstanding);
    return groups_.size() > left ? groups_[groups_.size() - 1 - left] : 0;
  }
  // Gives back the accumulators of operations that are done.
  void collect(std::size_t done);
  bool in_flight() const { return !accumulators_.empty(); }

 private:
  friend class WarpgroupQueue;
  std::size_t issued_ = 0;
  std::vector<std::size_t> groups_;  // operations issued at each commit
  std::vector<std::unique_ptr<Accumulator>> accumulators_;
};

// The products of a warpgroup, in order.
class WarpgroupQueue {
 public:
  using Address = std::function<const char*(unsigned address)>;  // nullptr: outside

  // nullptr, or what is wrong.
  const char* issue(WgmmaThread& thread, const Wgmma& operation, unsigned lane);
  // Does the next operation if all threads have issued it.
  bool run(const Address& address);
  std::size_t done() const { return done_; }

 private:
  struct Operation {
    Wgmma shape;
    int joined = 0;
    const unsigned* a_registers[128];
    Accumulator* accumulators[128];
  };

  std::deque<Operation> operations_;
  std::size_t done_ = 0;
};

}  // namespace tegula::model
