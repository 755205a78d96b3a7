// SPDX-License-Identifier: Apache-2.0
#define TEGULA_ISA_NAMESPACE isa_avx512
#define TEGULA_ISA_NAME "avx512"
#define TEGULA_ISA_VALUE TEGULA_ISA_AVX512

#include "src/cpu/vec/avx512.hpp"

#include "src/cpu/kernels/family.hpp"
