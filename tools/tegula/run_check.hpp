// SPDX-License-Identifier: Apache-2.0
// Judges one forward of the library against the fp64 reference, whatever its layout.
#pragma once

#include <cstdint>
#include <string>

#include <tegula/tegula.hpp>

#include "tools/tegula/workers.hpp"

namespace tegula::program {

struct RunErrors {
  std::int64_t values = 0;
  double o = 0.0, lse = 0.0;  // worst ratio of error to tolerance
  std::string first_failure;  // empty: all within
};

// `args` was run (outputs are filled) with `problem`, both accepted by the library. args.lse may be absent.
RunErrors check_run(ForwardArgs args, const Problem& problem, Workers& workers);

}  // namespace tegula::program
