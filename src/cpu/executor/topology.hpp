// SPDX-License-Identifier: Apache-2.0
// What the machine is and how much of it this process may use.
#pragma once

#include <sched.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tegula::cpu {

// Ordered: each x86 level's kernels need everything the levels below it need.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx };
inline constexpr int32_t kNumIsas = 5;
const char* isa_name(Isa isa) noexcept;  // "scalar", "avx2", "avx512", "avx512bf16", "amx"

inline constexpr int32_t kMaxWorkers = 4096;

struct AffinityMask {
  cpu_set_t words[8];  // the kernel's limit is 8192 CPUs
  int32_t count;       // CPUs in the mask; 0: could not be read
};

enum class CacheSource : uint8_t { kSysfs, kCpuid, kDefault };

struct CacheSizes {
  int64_t l1d_bytes;
  int64_t l2_bytes;
  int64_t l3_bytes;  // 0: no third level known
  int32_t l3_cpus;   // CPUs that share one l3; 0: not known
  CacheSource source;
};

// The features that the flags of src/cpu/isa/ ask for, and AMX. `os` fields: the system saves that
// register state; without it the instructions fault although the CPU has them.
struct X86Features {
  bool avx2, fma, f16c;
  bool bmi1, bmi2, lzcnt, movbe;
  bool avx512f, avx512bw, avx512cd, avx512dq, avx512vl;
  bool avx512_bf16, avx512_vbmi, avx512_vnni, avx512_fp16;
  bool amx_tile, amx_bf16, amx_int8, amx_fp16;
  bool os_avx, os_avx512, os_amx;
};

struct CpuInfo {
  char vendor[16];  // "GenuineIntel", "AuthenticAMD"; on aarch64 the implementer, "ARM" or "0x41"
  char brand[64];   // never empty
  int32_t family;   // x86: family, model, stepping; aarch64: architecture, part, revision
  int32_t model;
  int32_t stepping;

  int32_t online_cpus;
  int32_t quota_cpus;    // ceil(cgroup quota / period), 0: no quota
  int32_t usable_cpus;   // >= 1: the affinity mask, at most the quota
  int32_t usable_cores;  // >= 1: distinct physical cores in the affinity mask, at most usable_cpus
  AffinityMask affinity;

  CacheSizes caches;
  X86Features x86;
  uint32_t isa_bits;  // bit i: kernels of Isa{i} can run here

  bool can_run(Isa isa) const noexcept { return isa_bits >> static_cast<int>(isa) & 1; }
  Isa best_isa() const noexcept;
};

// Read once at the first call, which may throw std::bad_alloc; valid until the process ends.
const CpuInfo& cpu_info();

// TEGULA_NUM_THREADS if it is a number in [1, kMaxWorkers], otherwise cpu_info().usable_cpus.
int32_t default_num_workers();

// Binds the calling thread; no effect when the mask could not be read or no longer applies.
void apply_affinity(const AffinityMask& mask) noexcept;

// The parts of cpu_info(), each over a file tree at `root` ("" for the running system), so that odd
// and missing files can be tested.
uint32_t isa_bits_of(const X86Features& features) noexcept;
bool parse_cpu_list(std::string_view text, AffinityMask& mask);  // "0-3,8": false if malformed
int64_t parse_cache_size(std::string_view text);                 // "32K": bytes; 0 if malformed
int32_t read_cgroup_quota(const std::string& root);              // CPUs, 0: none
bool read_cache_sizes(const std::string& root, int32_t cpu, CacheSizes& sizes);
int32_t count_cores(const std::string& root, const AffinityMask& mask);  // 0: not known
void read_arm_identity(const std::string& root, CpuInfo& info);
int32_t parse_num_threads(const char* text);  // 0 if it is no number in [1, kMaxWorkers]

}  // namespace tegula::cpu
