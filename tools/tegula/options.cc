// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/options.hpp"

#include <fmt/format.h>

namespace tegula::program {

void AttentionOptions::add_to(CLI::App& command) {
  const std::string group = "Attention";
  command.add_flag("--causal", causal, "Key j is visible to row i iff j <= i + seqlen_k - seqlen_q")->group(group);
  command.add_option("--window-left", window_left, "Keys visible to the left of the row's own; -1: all")
      ->type_name("N")->group(group);
  command.add_option("--window-right", window_right, "Likewise to the right; --causal makes it 0")
      ->type_name("N")->group(group);
  command.add_option("--chunk", attention_chunk, "Keys of the row's own chunk of N alone; 0: no chunks")
      ->type_name("N")->group(group);
  command.add_option("--scale", softmax_scale, "Softmax scale, > 0 (default: head_dim^-1/2)")
      ->check(CLI::PositiveNumber)
      ->type_name("X")->group(group);
  command.add_option("--softcap", softcap, "Scores become X tanh(score / X); 0: none")
      ->type_name("X")->group(group);
  command.add_option("--num-splits", num_splits, "Ranges of keys worked on side by side; 0: automatic")
      ->type_name("N")->group(group);
  command.add_option("--fixed-split", fixed_split, "Tokens of a split, so that a sequence's bits are its own")
      ->type_name("N")->group(group);
  add_dtype(command, "--o-dtype", o_dtype, "Type of o: fp32, fp16, bf16 (default: q's; bf16 for 8-bit q)")
      ->group(group);
}

void AttentionOptions::apply(tegula_problem& problem) const {
  problem.causal = causal ? 1 : 0;
  problem.window_left = window_left;
  problem.window_right = window_right;
  problem.attention_chunk = attention_chunk;
  problem.softmax_scale = softmax_scale;
  problem.softcap = softcap;
  problem.num_splits = num_splits;
  problem.fixed_split = fixed_split;
  if (!o_dtype.empty()) problem.o_dtype = code_of(parse_dtype("--o-dtype", o_dtype));
}

CLI::Option* add_dtype(CLI::App& command, const std::string& option, std::string& value,
                       const std::string& description) {
  return command.add_option(option, value, description)
      ->type_name("TYPE")
      ->check(CLI::Validator(
          [](std::string& name) {
            return find_dtype(name) != Dtype::kNone
                       ? std::string()
                       : fmt::format("{} is none of {}", name, known_dtypes());
          },
          "", "dtype"));
}

void add_machine(CLI::App& command, MachineOptions& options) {
  command.add_option("--threads", options.threads, "Threads (default: all CPUs that this process may use)")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  command.add_option("--isa", options.isa, "Instruction set: auto, scalar, avx2, avx512, avx512bf16, amx, amx_model")
      ->check(CLI::Validator(
          [](std::string& name) {
            try {
              parse_isa(name);
              return std::string();
            } catch (const Failure& failure) {
              return std::string(failure.what());
            }
          },
          "", "isa"))
      ->type_name("NAME");
}

}  // namespace tegula::program
