// SPDX-License-Identifier: Apache-2.0
// tegula_capability's names, and the memory that all back ends keep between calls.
#include <cstring>

#include "src/core/limits.hpp"
#include "src/cpu/executor/scratch_pool.hpp"
#include "src/cpu/executor/topology.hpp"
#include "src/cpu/families.hpp"
#include "src/cuda/driver/driver.hpp"
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

// The only GPUs that have a kernel.
bool is_served(const tegula_device& device) {
  return device.compute_capability == 90;
}

int64_t num_cuda_devices(const tegula_device&) {
  int count = 0;
  return cuda::device_count(count).ok() ? count : 0;
}

int64_t cuda_works(const tegula_device&) {
  const auto count = num_cuda_devices({});
  for (int32_t i = 0; i < count; ++i) {
    tegula_device device{};
    device.index = i;
    if (describe_cuda(device).ok() && is_served(device)) return 1;
  }
  return 0;
}

// A number for the CPU, one for GPUs that have a kernel; 0 for others.
template <int64_t kOnCpu, int64_t kOnCuda>
int64_t on(const tegula_device& device) {
  if (device.kind == TEGULA_CPU) return kOnCpu;
  return is_served(device) ? kOnCuda : 0;
}

constexpr Entry kEntries[] = {
    {"isa.scalar", isa_capability<TEGULA_ISA_SCALAR>},
    {"isa.avx2", isa_capability<TEGULA_ISA_AVX2>},
    {"isa.avx512", isa_capability<TEGULA_ISA_AVX512>},
    {"isa.avx512bf16", isa_capability<TEGULA_ISA_AVX512BF16>},
    {"isa.amx", isa_capability<TEGULA_ISA_AMX>},
    {"isa.amx_model", isa_capability<TEGULA_ISA_AMX_MODEL>},
    {"cuda", cuda_works},
    {"cuda.devices", num_cuda_devices},
    {"forward", on<1, 1>},
    {"append_kv", on<1, 0>},
    {"combine", on<1, 0>},
    {"backward", on<0, 0>},
    {"head_dim.max", on<kMaxHeadDim, 256>},
    {"head_dim_v.max", on<kMaxHeadDim, 256>},
    {"num_splits.max", on<kMaxSplits, 1>},
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
  char known[320] = "";
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
  return static_cast<size_t>(cpu::ScratchPool::process_pool().trim()) + cuda::trim_device_memory();
}

}  // namespace tegula
