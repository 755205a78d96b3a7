// SPDX-License-Identifier: Apache-2.0
// A libcuda for machines without a GPU: memory of the host, streams that are done when a call
// returns, kernels that a test stands in for. The library opens it through $TEGULA_LIBCUDA; a test
// steers it through the functions below, which it finds in the same library.
//   FAKE_CUDA_DEVICES  GPUs (2)            FAKE_CUDA_ARCH     compute capability of each (90)
//   FAKE_CUDA_VERSION  driver's (13000)    FAKE_CUDA_MEMORY   bytes of each (1 GiB)
//   FAKE_CUDA_SMS      multiprocessors (132)
// Kernels that model/compiler.cc has compiled run on the model of model/machine.hpp;
// FAKE_CUDA_SEED is the first launch's seed (0).
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/driver/api.hpp"

namespace fake {

struct Launch {
  const char* function;  // as cuModuleGetFunction was asked for it
  const char* image;     // what the module was loaded from: the source, by the fake NVRTC
  int device;
  const tegula::cuda::CUlaunchConfig* config;
  void** parameters;
};
// Called by cuLaunchKernelEx. Writes what the kernel would, or nothing.
using Kernel = void (*)(void* context, const Launch& launch);

// What fake_cuda.cc exports beside NVIDIA's names.
struct Control {
  // The next calls of an entry point, from the nth on, fail so often.
  void (*fail)(const char* symbol, tegula::cuda::CUresult result, int from, int times);
  void (*set_kernel)(Kernel kernel, void* context);
  long long (*num_calls)(const char* symbol);
  size_t (*allocated)();   // bytes of device memory that are not freed, pools included
  int (*current_depth)();  // contexts pushed by this thread and not popped
  void* (*pinned_host)(size_t bytes);
  // As cuTensorMapEncodeTiled was given them: what TMA would read.
  struct TensorMap {
    const unsigned char* data;
    int rank;
    int element_size;
    uint64_t sizes[5];
    uint64_t strides[5];  // bytes; [0] the element's
    uint32_t box[5];
  };
  TensorMap (*tensor_map)(const void* map);
};

}  // namespace fake
