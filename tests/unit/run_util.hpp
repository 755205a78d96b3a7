// SPDX-License-Identifier: Apache-2.0
// Runs forwards of hand-made cases through the public API, for tests of properties and reports.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <tegula/tegula.h>

#include "tests/cases/forward_case.hpp"
#include "tests/cases/report_cases.hpp"

namespace tegula::cases {

using ChangeProblem = std::function<void(tegula_problem& problem)>;

struct RunOptions {
  tegula_isa isa = TEGULA_ISA_AUTO;
  int num_workers = 0;  // 0: what the device has
  const tegula_executor* executor = nullptr;
  ChangeProblem change;  // after the case's own settings
};

struct RunResult {
  tegula_status status = TEGULA_OK;
  std::string error;  // "" or the library's text
};

// describe, plan, forward.
RunResult run(const ForwardData& data, const RunOptions& options = {});

// The same for arguments that a test has changed.
RunResult run_args(const ForwardData& data, const tegula_forward_args& args,
                   const RunOptions& options = {});

// "" if the case runs and every element is within tolerance, else what went wrong.
std::string check(const Case& item, const RunOptions& options = {});
std::string check(ForwardData& data, const RunOptions& options = {});

// The used bits of one run of the case; empty, and a test failure, if it does not run.
std::vector<std::byte> bits_of(const Case& item, const RunOptions& options = {});
std::vector<std::byte> bits_of(ForwardData& data, const RunOptions& options = {});

// Those that this machine runs.
std::vector<tegula_isa> isas();

}  // namespace tegula::cases
