// SPDX-License-Identifier: Apache-2.0
// What the machine can do at best, measured in the run that is held against it.
#pragma once

#include <string>

#include "tools/tegula/workers.hpp"

namespace tegula::program {

struct Limits {
  double fma_flops = 0.0;   // fp32 multiply-adds, in operations a second, all threads
  double read_bytes = 0.0;  // bytes a second read from memory, all threads; 0: not measured
};

// About 0.2 s.
double measure_fma(Workers& workers);

// Best of 1, 2 and 4 streams a thread over 768 MiB on huge pages where the system has them: 1 to 2 s. 0 if that
// memory is not to be had.
double measure_read(Workers& workers);

}  // namespace tegula::program
