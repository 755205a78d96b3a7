// SPDX-License-Identifier: Apache-2.0
// Which kernels a pack holds.
#pragma once

#include <string>
#include <vector>

#include "src/cuda/jit/jit.hpp"

namespace tegula::program {

// Every kernel that a call of the case tables or a usual one may launch on a GPU of compute
// capability 9.0, at the head dims that packs are made for; each once, in the order of names.
std::vector<cuda::KernelText> packed_kernels(const std::vector<std::string>& tables);

}  // namespace tegula::program
