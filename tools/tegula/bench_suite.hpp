// SPDX-License-Identifier: Apache-2.0
// The suites: the cells by which a back end is judged.
#pragma once

#include <vector>

#include "tools/tegula/bench_cell.hpp"
#include "tools/tegula/bench_machine.hpp"

namespace tegula::program {

// In the order in which they are measured. The class decides how many bytes stay inside the last
// cache level.
std::vector<Cell> suite_cpu(MachineClass machine, int threads);

// "h200-forward": 16,384 tokens, 2048 / head_dim heads, bf16, unless the cell's name says otherwise.
std::vector<Cell> suite_h200_forward();

}  // namespace tegula::program
