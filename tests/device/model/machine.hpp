// SPDX-License-Identifier: Apache-2.0
// A thread block on the CPU: runs a kernel that the host's compiler made of the device text, one
// fiber for each CUDA thread. Barriers, copies and tensor cores behave as PTX says they may, and
// what PTX leaves open is drawn from a seed: the order of warps, and when asynchronous instructions
// do their work (Timing in machine.cc). So a missing wait or an early release shows as a wrong
// result, and one that never comes as a deadlock by name.
// What it does not see: missing fences between proxies, and how the compiler keeps registers.
#pragma once

#include <cstdint>
#include <string>

#include "tests/device/model/include/model/api.hpp"
#include "tests/device/model/tensor_copy.hpp"

namespace tegula::model {

struct LaunchSize {
  Dim3 grid, block;
  unsigned shared_bytes;
};

using ReadMap = TensorView (*)(const void* map);

// Opens a library that compiler.cc made (kernels.cc). nullptr, with the reason, if it is none.
void* open_kernels(const void* image, std::string& why);

// "", or what the kernel did wrong.
std::string run_kernel(void* kernels, const LaunchSize& size, void** parameters, ReadMap read_map,
                       std::uint64_t seed);

}  // namespace tegula::model
