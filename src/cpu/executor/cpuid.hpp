// SPDX-License-Identifier: Apache-2.0
// The part of CpuInfo that x86 tells by instruction; elsewhere these leave their argument alone.
#pragma once

#include "src/cpu/executor/topology.hpp"

namespace tegula::cpu {

// vendor, brand, family, model, stepping, x86.
void read_x86_identity(CpuInfo& info) noexcept;

// False if the CPU does not tell.
bool cpuid_cache_sizes(CacheSizes& sizes) noexcept;

struct CpuidRegisters {
  uint32_t eax, ebx, ecx, edx;
};

// What the features follow from: leaves 1, 7.0, 7.1, 0x80000001 and XCR0 (0 without OSXSAVE).
struct CpuidFeatureLeaves {
  CpuidRegisters leaf1, leaf7, leaf7_1, extended1;
  uint64_t xcr0;
};
X86Features decode_features(const CpuidFeatureLeaves& leaves) noexcept;

}  // namespace tegula::cpu
