// SPDX-License-Identifier: Apache-2.0
// The CUDA driver of this machine: libcuda is opened when it is first needed, never linked. Every
// function may be called by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/core/status.hpp"
#include "src/cuda/driver/api.hpp"

namespace tegula::cuda {

struct Driver {
#define TEGULA_CUDA_MEMBER(symbol, parameters) CUresult(*symbol) parameters = nullptr;
  TEGULA_CUDA_ENTRY_POINTS(TEGULA_CUDA_MEMBER)
  TEGULA_CUDA_OPTIONAL_ENTRY_POINTS(TEGULA_CUDA_MEMBER)
#undef TEGULA_CUDA_MEMBER
  int version = 0;   // what cuDriverGetVersion tells: 13000 = CUDA 13.0
  std::string path;  // of libcuda
};

// The driver, opened and initialised once in the life of the process; $TEGULA_LIBCUDA names another
// library. Fails with TEGULA_UNSUPPORTED and one line that says what was looked for (no libcuda, no
// GPU, too old), or with TEGULA_DEVICE_ERROR in a child forked after CUDA was initialised.
Status find_driver(const Driver*& driver);

// A failed call as TEGULA_OUT_OF_MEMORY or TEGULA_DEVICE_ERROR with what, the error's name and
// text.
Status check(CUresult result, const char* what);

struct DeviceInfo {
  int index = 0;
  CUdevice device = 0;
  int compute_capability = 0;  // 90 = 9.0
  int num_sms = 0;
  size_t l2_bytes = 0;
  size_t memory_bytes = 0;
  bool memory_pools = false;
  char name[128] = "";
};

// Read once a device; lives as long as the process.
Status device_info(int index, const DeviceInfo*& info);
Status device_count(int& count);

// Makes a device's primary context current in this thread; the end of the scope restores the
// caller's. The context is retained once and stays the process's.
class ContextGuard {
 public:
  ContextGuard() = default;
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;
  ~ContextGuard();
  Status enter(int device_index);

 private:
  const Driver* driver_ = nullptr;
};

// Scratch on a device, ordered by a stream: from a pool of our own, which keeps what was freed
// until trim_device_memory(). The device's context must be current. Not under stream capture.
Status allocate_scratch(int device_index, size_t bytes, CUstream stream, CUdeviceptr& pointer);
Status free_scratch(CUdeviceptr pointer, CUstream stream);
// Gives idle scratch of all devices back; the bytes. Never opens the driver.
size_t trim_device_memory();

}  // namespace tegula::cuda
