// SPDX-License-Identifier: Apache-2.0
// Runs the case table on a device through the public API and judges every result. Used by
// `tegula verify` and by the unit tests.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <tegula/tegula.h>

#include "tests/cases/cases.hpp"
#include "tests/cases/forward_case.hpp"
#include "tests/cases/gpu.hpp"
#include "tests/oracle/oracle.hpp"

namespace tegula::cases {

enum class Outcome { kPassed, kFailed, kRefused, kSkipped };
const char* name_of(Outcome outcome);

struct CaseResult {
  std::string id;
  Outcome outcome = Outcome::kPassed;
  double worst = 0.0;  // largest ratio of error to tolerance
  double naive = -1.0;  // the same of a naive fp32 kernel; < 0: not computed. Nothing is judged by it.
  std::string text;    // one line: why it failed, was refused or skipped
};

// What runs the calls: the public API, or a test's stand-in. `data` is the call's own operands.
struct Runner {
  std::function<tegula_status(const tegula_problem&, ForwardData&)> forward;  // empty: the library
};

struct VerifyOptions {
  tegula_device device{};                    // zeroed: this machine's CPU, or gpu's
  Gpu* gpu = nullptr;                        // where the operands lie; NULL: in host memory
  const tegula_executor* executor = nullptr;  // NULL: the library's pool
  oracle::DeviceClass device_class = oracle::DeviceClass::kCpu;
  std::string table = default_folder() + "/table";
  std::string refusals;              // "": the list of the device's kind under tests/cases/refusals
  std::vector<std::string> tags;     // a case runs only with all of these
  std::vector<std::string> filters;  // and if its id contains one of these (none: every id)
  std::function<bool(const Case&)> select;  // and if this holds (empty: always)
  // Those tagged "gpu" too: made for the tiles of a GPU's kernel, minutes of a CPU's time that its own
  // cases spend better.
  bool gpu_cases = false;
  int repeats = 20;                  // runs of each forward and combine, all bit-equal; >= 2
  int jobs = 1;                      // cases at once
  bool naive = false;
  bool stop_at_first_failure = false;
  Runner runner;
};

struct Totals {
  std::int64_t passed = 0;
  std::int64_t failed = 0;
  std::int64_t refused = 0;
  std::int64_t skipped = 0;
  std::int64_t total() const { return passed + failed + refused + skipped; }
};

// done counts from 1 to total. Called under a lock, in order of completion.
using VerifyCallback =
    std::function<void(const CaseResult& result, std::int64_t done, std::int64_t total)>;

// Throws std::runtime_error if the table or the list of refusals cannot be read, or names a case
// that does not exist.
Totals verify_all(const VerifyOptions& options, const VerifyCallback& callback);

// One case, whatever the filters say.
CaseResult verify_case(const Case& item, const VerifyOptions& options,
                       const std::map<std::string, std::string>& refusals);

// Lines "id  cell of docs/contract.md, 2"; '#' begins a comment. Result: id to cell.
std::map<std::string, std::string> load_refusals(const std::string& path);

// Plain fp32 attention on materialised scores: what our error is shown beside.
void run_naive(ForwardData& data);

// The oracle's own rows, rounded to the outputs' types. `change` may alter the sequence first: a
// wrong kernel for tests of the judge.
using ChangeSequence = std::function<void(std::int64_t b, oracle::Attention& call)>;
void run_oracle(ForwardData& data, const ChangeSequence& change = {});

}  // namespace tegula::cases
