// SPDX-License-Identifier: Apache-2.0
// Runs the case table on the library that this is linked with, the fast part first, and stops at
// the first failing case. Exit status 1: a case failed (it is named); 0: none did.
#include <cstdio>
#include <exception>

#include "tests/cases/verify.hpp"

int main() {
  using namespace tegula::cases;
  try {
    for (const bool fast : {true, false}) {
      VerifyOptions options;
      if (fast) options.tags = {"fast"};
      options.repeats = 2;
      options.jobs = 2;
      options.stop_at_first_failure = true;
      bool told = false;
      const Totals totals =
          verify_all(options, [&told](const CaseResult& result, std::int64_t, std::int64_t) {
            if (result.outcome != Outcome::kFailed || told) return;
            told = true;
            std::printf("%s: %s\n", result.id.c_str(), result.text.c_str());
          });
      if (totals.failed > 0) return 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
