// SPDX-License-Identifier: Apache-2.0
// What a kernel that runs on the model asks of it. Kernels are compiled by the host's compiler with
// the headers of this folder in the place of device/ptx; the machine (machine.cc) brings the rest.
#pragma once

namespace tegula::model {

struct Dim3 {
  unsigned x, y, z;
};

// A CUDA thread as the kernel sees it.
struct Thread {
  Dim3 thread, block, grid;
};

// One wgmma of 64 rows, as one of its 128 threads issues it.
struct Wgmma {
  bool bf16;  // else f16
  int n;
  const unsigned* a_registers;  // nullptr: operand A by descriptor
  unsigned long long a, b;      // descriptors
  bool transpose_b;
  bool accumulate;
  float* d;
};

// Work of a warp: `all` holds what its lanes brought, nullptr for lanes that have ended.
using WarpWork = void (*)(void* const (&all)[32]);

struct Api {
  Thread* const* current;

  void (*fail)(const char* text);  // ends the launch
  // Waits for the warp's other lanes, which must bring the same work; the last one does it.
  void (*collective)(WarpWork work, void* mine);

  void (*barrier_sync)(int id, int threads);  // threads 0: all of the block that have not ended
  void (*barrier_arrive)(int id, int threads);

  void (*mbarrier_init)(unsigned barrier, int count);
  void (*mbarrier_arrive)(unsigned barrier, int expected_bytes);
  bool (*mbarrier_test)(unsigned barrier, unsigned parity);
  void (*mbarrier_wait)(unsigned barrier, unsigned parity);

  void (*tma_load)(unsigned destination, const void* map, const int (&at)[4], unsigned barrier);
  void (*cp_async)(unsigned destination, const void* source, int bytes, int valid_bytes);
  void (*cp_async_commit)();
  void (*cp_async_wait)(int outstanding);

  void (*wgmma)(const Wgmma& operation);
  void (*wgmma_commit)();
  void (*wgmma_wait)(int outstanding);
};

// Dynamic shared memory: its 32-bit addresses begin here.
inline constexpr unsigned kSharedBase = 1024;
inline constexpr unsigned kSharedBytes = 227 * 1024;

}  // namespace tegula::model
