// SPDX-License-Identifier: Apache-2.0
#define TEGULA_ISA_NAMESPACE isa_avx2
#define TEGULA_ISA_NAME "avx2"
#define TEGULA_ISA_VALUE TEGULA_ISA_AVX2

#include "src/cpu/vec/avx2.hpp"

#include "src/cpu/kernels/family.hpp"
