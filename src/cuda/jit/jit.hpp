// SPDX-License-Identifier: Apache-2.0
// Kernels compiled on demand: in-process cache, then packs, then the disk cache, then NVRTC. Every
// function may be called by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/core/status.hpp"
#include "src/cuda/driver/api.hpp"

namespace tegula::cuda {

// One variant. source is the generated wrapper alone: the includes it needs (from the root, as in
// #include "device/abi/forward.hpp"), the spec with designated initialisers, one
// extern "C" __global__ function named entry. The files of device/ travel inside the library.
struct KernelText {
  std::string name;  // for people: error texts, packs, tables
  std::string source;
  std::string entry;
  int32_t arch = 90;  // 90 -> sm_90a
  bool uses_wgmma = false;
  int32_t smem_bytes = 0;  // what a launch adds to the static ones; for tables
};

struct Kernel {
  CUfunction function = nullptr;
  int registers = 0;
  int local_bytes = 0;   // of a thread
  int shared_bytes = 0;  // static, of a block
};

// The kernel of a device, compiled if need be; lives as long as the process. Two threads that ask
// for the same one compile it once. Loading needs the driver; the caller's context stays current.
Status load_kernel(int device_index, const KernelText& text, const Kernel*& kernel);

// Loads them all, compiling on as many threads as the machine has CPUs: a warm-up list. The first
// failure, after all were tried.
Status load_kernels(int device_index, const std::vector<KernelText>& texts);

// What load_kernel() has loaded before, or nullptr: compiles and opens nothing (stream capture).
const Kernel* find_kernel(int device_index, const KernelText& text);

struct Compiled {
  std::string cubin;
  std::string log;  // of the compiler and of ptxas (-v: registers, spills)
  double seconds = 0;
  int32_t compiler = 0;  // 12090 = NVRTC 12.9
};

// Compiles for no device in particular, past all caches. TEGULA_UNSUPPORTED: no NVRTC, or one that
// is too old for the text; TEGULA_DEVICE_ERROR with the first line of the log that names an error.
Status compile(const KernelText& text, Compiled& compiled);

}  // namespace tegula::cuda
