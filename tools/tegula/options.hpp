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

  void add_to(CLI::App& command) {
    const std::string group = "Attention";
    command.add_flag("--causal", causal, "Key j is visible to row i iff j <= i + seqlen_k - seqlen_q")->group(group);
    command.add_option("--window-left", window_left, "Keys visible to the left of the row's own; -1: all")
        ->type_name("N")->group(group);
    command.add_option("--window-right", window_right, "Likewise to the right; --causal makes it 0")
        ->type_name("N")->group(group);
    command.add_option("--chunk", attention_chunk, "Keys of the row's own chunk of N alone; 0: no chunks")
        ->type_name("N")->group(group);
    command.add_option("--scale", softmax_scale, "Softmax scale (default: head_dim^-1/2)")
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

  // The library checks the values: its messages name them as the options do.
  void apply(tegula_problem& problem) const {
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
};

}  // namespace tegula::program
