// SPDX-License-Identifier: Apache-2.0
// What every command of the program shares: how it is registered, how it fails, how it reports.
#pragma once

#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tools/tegula/failure.hpp"

namespace tegula::program {

// Fields come out in the order in which they were set.
using Json = nlohmann::ordered_json;

enum ExitStatus : int {
  kDone = 0,
  kFailed = 1,  // an error, or a check that did not pass
  kUsage = 2,   // the command line itself is wrong
};

// State that main() owns and the commands' callbacks fill.
struct Session {
  bool json = false;  // one JSON document on stdout, nothing else there
  int status = kDone;
};

// Each adds its subcommand; the work happens in the subcommand's callback.
void add_run(CLI::App& program, Session& session);
void add_replay(CLI::App& program, Session& session);
void add_bench(CLI::App& program, Session& session);
void add_explain(CLI::App& program, Session& session);
void add_verify(CLI::App& program, Session& session);
void add_doctor(CLI::App& program, Session& session);
void add_pack(CLI::App& program, Session& session);

// A subcommand with what all have in common: --json, and the options in the order they are added.
CLI::App* add_command(CLI::App& program, Session& session, const std::string& name,
                      const std::string& description);

// The document of a --json run, with bytes that are no UTF-8 replaced.
void print_json(const Json& document);

}  // namespace tegula::program
