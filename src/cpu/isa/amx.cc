// SPDX-License-Identifier: Apache-2.0
#define TEGULA_ISA_NAMESPACE isa_amx
#define TEGULA_ISA_NAME "amx"
#define TEGULA_ISA_VALUE TEGULA_ISA_AMX

#include "src/cpu/vec/avx512.hpp"

#include "src/cpu/vec/tiles_amx.hpp"

#include "src/cpu/kernels/family.hpp"
