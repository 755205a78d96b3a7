// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/families.hpp"

#include <cstring>
#include <iterator>

#include "src/cpu/executor/tile_permission.hpp"
#include "src/cpu/executor/topology.hpp"

namespace tegula::cpu {

const KernelFamily* find_family(tegula_isa isa) {
  switch (isa) {
    case TEGULA_ISA_SCALAR: return &isa_scalar::kFamily;
#if TEGULA_HAVE_ISA_AVX2
    case TEGULA_ISA_AVX2: return &isa_avx2::kFamily;
#endif
#if TEGULA_HAVE_ISA_AVX512
    case TEGULA_ISA_AVX512: return &isa_avx512::kFamily;
#endif
#if TEGULA_HAVE_ISA_AVX512BF16
    case TEGULA_ISA_AVX512BF16: return &isa_avx512bf16::kFamily;
#endif
#if TEGULA_HAVE_ISA_AMX
    case TEGULA_ISA_AMX: return &isa_amx::kFamily;
#endif
#if TEGULA_HAVE_ISA_AMX_MODEL
    case TEGULA_ISA_AMX_MODEL: return &isa_amx_model::kFamily;
#endif
    default: return nullptr;
  }
}

bool machine_runs(tegula_isa isa) {
  switch (isa) {
    case TEGULA_ISA_SCALAR:
    case TEGULA_ISA_AMX_MODEL: return true;
    case TEGULA_ISA_AVX2: return cpu_info().can_run(Isa::kAvx2);
    case TEGULA_ISA_AVX512: return cpu_info().can_run(Isa::kAvx512);
    case TEGULA_ISA_AVX512BF16: return cpu_info().can_run(Isa::kAvx512Bf16);
    case TEGULA_ISA_AMX: return cpu_info().can_run(Isa::kAmx) && tiles_permitted();
    default: return false;
  }
}

bool suits_tiles(const tegula_problem& problem) {
  return problem.q_dtype != TEGULA_F32 && problem.kv_dtype != TEGULA_F32 &&
         problem.bias_dtype == TEGULA_DTYPE_NONE;
}

// Measured: docs/design/cpu_forward.md. Zen 4 is family 25; every AMD CPU with the instruction runs
// it at the full rate. Intel's cores do two products of 512 bits a cycle and Zen 4 one: fp32 with P
// and V in the L1, 76 -> 82 % of the peak on Emerald Rapids, on Zen 4 0 to 1 % slower.
constexpr CoreRule kCoreTable[] = {
    {"AuthenticAMD", 25, true,
     "vdpbf16ps does two products at the rate of one FMA on AMD Zen 4 and later", false},
    {"GenuineIntel", 0, false,
     "vdpbf16ps runs at half the FMA rate on Intel: bf16 is widened instead", true},
    {nullptr, 0, false, "vdpbf16ps has not been measured on this CPU: bf16 is widened instead",
     false},
};

const CoreRule& core_rule() {
  const CpuInfo& cpu = cpu_info();
  for (const CoreRule& rule : kCoreTable) {
    if (rule.vendor == nullptr) return rule;
    if (std::strcmp(rule.vendor, cpu.vendor) == 0 && cpu.family >= rule.least_family) return rule;
  }
  return kCoreTable[std::size(kCoreTable) - 1];
}

}  // namespace tegula::cpu
