// SPDX-License-Identifier: Apache-2.0
#define TEGULA_ISA_NAMESPACE isa_amx_model
#define TEGULA_ISA_NAME "amx_model"
#define TEGULA_ISA_VALUE TEGULA_ISA_AMX_MODEL

#include "src/cpu/vec/scalar.hpp"

#include "src/cpu/vec/tiles_model.hpp"

#include "src/cpu/kernels/family.hpp"
