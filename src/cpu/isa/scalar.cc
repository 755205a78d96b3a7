// SPDX-License-Identifier: Apache-2.0
#define TEGULA_ISA_NAMESPACE isa_scalar
#define TEGULA_ISA_NAME "scalar"
#define TEGULA_ISA_VALUE TEGULA_ISA_SCALAR

#include "src/cpu/vec/scalar.hpp"

#include "src/cpu/kernels/family.hpp"
