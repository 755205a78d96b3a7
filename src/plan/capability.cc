// SPDX-License-Identifier: Apache-2.0
// tegula_capability's names, and the memory that all back ends keep between calls.
#include <cstring>

#include "src/core/limits.hpp"
#include "src/cpu/executor/scratch_pool.hpp"
#include "src/cpu/executor/topology.hpp"
#include "src/cpu/families.hpp"
#include "src/plan/plan.hpp"

namespace tegula {
namespace {

template <tegula_isa kIsa>
int64_t isa_capability(const tegula_device&) {
  return (cpu::find_family(kIsa) != nullptr ? 1 : 0) | (cpu::machine_runs(kIsa) ? 2 : 0);
}

struct Entry {
  const char* name;
  int64_t (*value)(const tegula_device& device);
};

// The CUDA back end is not in this build: what is true of the CPU is 0 there.
int64_t on_cpu(const tegula_device& device, int64_t value) {
  return device.kind == TEGULA_CPU ? value : 0;
}

constexpr Entry kEntries[] = {
    {"isa.scalar", isa_capability<TEGULA_ISA_SCALAR>},
    {"isa.avx2", isa_capability<TEGULA_ISA_AVX2>},
    {"isa.avx512", isa_capability<TEGULA_ISA_AVX512>},
    {"isa.avx512bf16", isa_capability<TEGULA_ISA_AVX512BF16>},
    {"isa.amx", isa_capability<TEGULA_ISA_AMX>},
    {"isa.amx_model", isa_capability<TEGULA_ISA_AMX_MODEL>},
    {"cuda", [](const tegula_device&) { return int64_t{0}; }},
    {"forward", [](const tegula_device& device) { return on_cpu(device, 1); }},
    {"append_kv", [](const tegula_device& device) { return on_cpu(device, 1); }},
    {"combine", [](const tegula_device& device) { return on_cpu(device, 1); }},
    {"backward", [](const tegula_device&) { return int64_t{0}; }},
    {"head_dim.max", [](const tegula_device& device) { return on_cpu(device, kMaxHeadDim); }},
    {"head_dim_v.max", [](const tegula_device& device) { return on_cpu(device, kMaxHeadDim); }},
    {"num_splits.max", [](const tegula_device& device) { return on_cpu(device, kMaxSplits); }},
    {"num_workers", [](const tegula_device&) { return int64_t{cpu::default_num_workers()}; }},
};

}  // namespace

Status capability(const tegula_device& device, const char* name, int64_t* value) {
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.name, name) == 0) {
      *value = entry.value(device);
      return {};
    }
  }
  char known[256] = "";
  size_t used = 0;
  for (const Entry& entry : kEntries) {
    const size_t length = std::strlen(entry.name);
    if (used + length + 3 > sizeof known) break;
    if (used > 0) used += static_cast<size_t>(std::strlen(std::strcpy(known + used, ", ")));
    std::memcpy(known + used, entry.name, length + 1);
    used += length;
  }
  return fail(TEGULA_INVALID_ARGUMENT, "name: \"%.64s\" is not one of %s", name, known);
}

size_t trim_memory() {
  return static_cast<size_t>(cpu::ScratchPool::process_pool().trim());
}

}  // namespace tegula
