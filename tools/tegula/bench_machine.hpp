// SPDX-License-Identifier: Apache-2.0
// The machine as a benchmark sees it: its class, by which bars are chosen, and the CPUs that its
// threads are pinned to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/cpu/executor/topology.hpp"

namespace tegula::program {

enum class MachineClass { kUnknown, kZen4, kSapphireRapids };

// zen4: AMD family 25 with AVX512_BF16. sapphire_rapids: Sapphire and Emerald Rapids, Intel with
// AMX_BF16 and without AMX_FP16 (Granite Rapids has it, and other rates).
MachineClass class_of(const cpu::CpuInfo& info);
const char* class_name(MachineClass machine);  // "unknown" for kUnknown
MachineClass class_named(const std::string& name);

// Bytes of K and V that stay inside the last cache level and outside the others.
std::int64_t l3_cache_bytes(MachineClass machine);

// CPUs for `count` threads (0: one for each that the process may use) from the affinity mask, one
// of each core first.
std::vector<int> choose_cpus(int count);
// "0,2-5"; Failure for a list with other than CPUs that the process may use.
std::vector<int> parse_cpus(const std::string& list);

// Restricts the calling thread, and threads that it starts, to these CPUs: before the library
// counts them.
void confine(const std::vector<int>& cpus);
// Binds threads of the process that started since `known` was taken, which are the library's, to
// cpus[1], cpus[2], ...
std::vector<int> thread_ids();
std::size_t pin_new_threads(const std::vector<int>& known, const std::vector<int>& cpus);
void pin_thread(int thread_id, int cpu);  // 0: the calling thread; Failure if the system refuses

}  // namespace tegula::program
