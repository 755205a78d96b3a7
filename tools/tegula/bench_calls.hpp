// SPDX-License-Identifier: Apache-2.0
// A cell's operands and the call that is measured.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/tegula/bench_cell.hpp"
#include "tools/tegula/bench_memory.hpp"
#include "tools/tegula/workers.hpp"

namespace tegula::program {

class Call {
 public:
  virtual ~Call() = default;
  virtual void run() = 0;
  virtual std::string implementation() const = 0;
};

// On the library's own threads. `store` owns the data and outlives the call; cells of a set share
// caches of a type.
std::unique_ptr<Call> make_call(const Cell& cell, const Device& device, DataStore& store);

// memcpy of the rows that an append writes, one by one, from and to the same places, each thread
// its share of the rows.
std::unique_ptr<Call> make_row_copy(const Cell& cell, Workers& workers, DataStore& store);

}  // namespace tegula::program
