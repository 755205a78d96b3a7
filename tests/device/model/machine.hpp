// SPDX-License-Identifier: Apache-2.0
// A thread block on the CPU: runs a kernel that the host's compiler made of the device text, one
// fiber for each CUDA thread. Barriers, copies and tensor cores behave as PTX says they may, and
// what PTX leaves open is drawn from a seed: the order of warps, and whether an asynchronous
// instruction does its work at once, as late as possible or between. So a missing wait or an early
// release shows as a wrong result, and one that never comes as a deadlock by name.
// What it does not see: missing fences between proxies, and how the compiler keeps registers.
#pragma once

#include <cstdint>
#include <string>

#include "tests/device/model/include/model/api.hpp"

namespace tegula::model {

struct LaunchSize {
  Dim3 grid, block;
  unsigned shared_bytes;
};

// A 4-dimensional tensor as TMA sees it; 128-byte swizzle.
struct TensorView {
  const unsigned char* data;
  int element_size;
  std::uint64_t sizes[4];
  std::uint64_t strides[4];  // bytes
  std::uint32_t box[4];
};
using ReadMap = TensorView (*)(const void* map);

// Opens a library that compiler.cc made. nullptr, with the reason, if it is none.
void* open_kernels(const void* image, std::string& why);

// "", or what the kernel did wrong.
std::string run_kernel(void* kernels, const LaunchSize& size, void** parameters, ReadMap read_map,
                       std::uint64_t seed);

}  // namespace tegula::model
