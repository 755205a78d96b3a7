// SPDX-License-Identifier: Apache-2.0
// Stacks that one thread changes between.
#pragma once

#include <cstddef>

namespace tegula::model {

inline constexpr std::size_t kStackBytes = 64 << 10;

// Memory for stacks of kStackBytes each; nullptr: there is none, or the machine is no
// x86-64. Kept for the process.
char* map_stacks(std::size_t count);

// The stack pointer of a fiber that will begin with `entry`, which never returns.
void* start_fiber(char* stack, void (*entry)());

// Goes on at `to`; returns when somebody switches to *from.
void switch_fiber(void** from, void* to);

}  // namespace tegula::model
