// SPDX-License-Identifier: Apache-2.0
#define TEGULA_ISA_NAMESPACE isa_avx512bf16
#define TEGULA_ISA_NAME "avx512bf16"
#define TEGULA_ISA_VALUE TEGULA_ISA_AVX512BF16
#define TEGULA_PAIRS  // the bf16 dot product
#include "src/cpu/vec/avx512.hpp"

#include "src/cpu/kernels/family.hpp"
