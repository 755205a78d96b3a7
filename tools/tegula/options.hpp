// SPDX-License-Identifier: Apache-2.0
// Attention as options of a command line: what run and explain share. Names and meaning are the problem's.
#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>
#include <tegula/tegula.hpp>

#include "tools/tegula/library.hpp"

namespace tegula::program {

struct AttentionOptions {
  bool causal = false;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  std::int64_t attention_chunk = 0;
  double softmax_scale = 0.0;
  double softcap = 0.0;
  std::int64_t num_splits = 0;
  std::int64_t fixed_split = 0;
  std::string o_dtype;  // empty: the default

  void add_to(CLI::App& command);
  // The library checks the values: its messages name them as the options do.
  void apply(tegula_problem& problem) const;
};

// Adds an option whose value names a type.
CLI::Option* add_dtype(CLI::App& command, const std::string& option, std::string& value,
                       const std::string& description);

// --threads and --isa.
void add_machine(CLI::App& command, MachineOptions& options);

}  // namespace tegula::program
