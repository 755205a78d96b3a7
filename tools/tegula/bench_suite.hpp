// SPDX-License-Identifier: Apache-2.0
// Suite "cpu": the cells by which the CPU back end is judged.
#pragma once

#include <vector>

#include "tools/tegula/bench_cell.hpp"
#include "tools/tegula/bench_machine.hpp"

namespace tegula::program {

// In the order in which they are measured. The class decides how many bytes stay inside the last
// cache level.
std::vector<Cell> suite_cpu(MachineClass machine, int threads);

}  // namespace tegula::program
