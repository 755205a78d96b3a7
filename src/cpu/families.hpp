// SPDX-License-Identifier: Apache-2.0
// The kernel families of this build, and which of them a call should use.
#pragma once

#include <tegula/tegula.h>

#include "src/cpu/kernel_abi.hpp"

namespace tegula::cpu {

// nullptr: not in this build (or not an instruction set). Says nothing about the machine.
const KernelFamily* find_family(tegula_isa isa);

// Whether this machine can run the family's instructions.
bool machine_runs(tegula_isa isa);

// Whether matrix tiles compute the problem: 16- and 8-bit operands. A bias may hide single keys,
// whose v may hold anything: a tile cannot leave one out.
bool suits_tiles(const tegula_problem& problem);

// A row of the committed table of CPUs. The first row that fits decides.
struct CoreRule {
  const char* vendor;    // nullptr: any
  int32_t least_family;  // x86 family
  bool use_pairs;        // the bf16 dot product is worth using
  const char* reason;    // why (not), for explain
  bool waits_for_l2;     // P V on vectors of 512 bits: P and V of a block should fit the L1
};
const CoreRule& core_rule();  // for this machine

}  // namespace tegula::cpu
