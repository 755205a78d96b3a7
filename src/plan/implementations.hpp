// SPDX-License-Identifier: Apache-2.0
// What the lists of src/plan/plan.cc are made of: each back end's way to run a forward.
#pragma once

#include "src/plan/plan.hpp"

namespace tegula {

extern const Implementation kCudaForwardSm90;
extern const Implementation kCpuAmx, kCpuAvx512Bf16, kCpuAvx512, kCpuAvx2, kCpuScalar, kCpuAmxModel;

}  // namespace tegula
