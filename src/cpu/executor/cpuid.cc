// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/executor/cpuid.hpp"

#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tegula::cpu {
namespace {

bool bit(uint32_t value, int index) { return value >> index & 1; }

}  // namespace

X86Features decode_features(const CpuidFeatureLeaves& leaves) noexcept {
  const auto& [leaf1, leaf7, leaf7_1, extended1, xcr0] = leaves;
  constexpr uint64_t kAvxState = 0x6, kAvx512State = 0xe6, kAmxState = 0x60000;
  X86Features x{};
  x.fma = bit(leaf1.ecx, 12);
  x.movbe = bit(leaf1.ecx, 22);
  x.f16c = bit(leaf1.ecx, 29);
  x.bmi1 = bit(leaf7.ebx, 3);
  x.avx2 = bit(leaf7.ebx, 5);
  x.bmi2 = bit(leaf7.ebx, 8);
  x.avx512f = bit(leaf7.ebx, 16);
  x.avx512dq = bit(leaf7.ebx, 17);
  x.avx512cd = bit(leaf7.ebx, 28);
  x.avx512bw = bit(leaf7.ebx, 30);
  x.avx512vl = bit(leaf7.ebx, 31);
  x.avx512_vbmi = bit(leaf7.ecx, 1);
  x.avx512_vnni = bit(leaf7.ecx, 11);
  x.amx_bf16 = bit(leaf7.edx, 22);
  x.avx512_fp16 = bit(leaf7.edx, 23);
  x.amx_tile = bit(leaf7.edx, 24);
  x.amx_int8 = bit(leaf7.edx, 25);
  x.avx512_bf16 = bit(leaf7_1.eax, 5);
  x.amx_fp16 = bit(leaf7_1.eax, 21);
  x.lzcnt = bit(extended1.ecx, 5);
  x.os_avx = (xcr0 & kAvxState) == kAvxState;
  x.os_avx512 = (xcr0 & kAvx512State) == kAvx512State;
  x.os_amx = (xcr0 & kAmxState) == kAmxState;
  return x;
}

#if defined(__x86_64__)

namespace {

// Zeros for a leaf that the CPU does not have; cpuid itself would answer with another leaf's data.
CpuidRegisters cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidRegisters r{};
  if (leaf > __get_cpuid_max(leaf & 0x80000000u, nullptr)) return r;
  __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  return r;
}

uint64_t read_xcr0() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

std::string brand_string() {
  char text[49] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    const CpuidRegisters r = cpuid(0x80000002u + i, 0);
    std::memcpy(text + 16 * i, &r, sizeof r);
  }
  const std::string brand(text);
  const size_t first = brand.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  return brand.substr(first, brand.find_last_not_of(' ') - first + 1);
}

}  // namespace

void read_x86_identity(CpuInfo& info) noexcept {
  const CpuidRegisters leaf0 = cpuid(0, 0);
  const uint32_t vendor[3] = {leaf0.ebx, leaf0.edx, leaf0.ecx};
  std::memcpy(info.vendor, vendor, sizeof vendor);
  info.vendor[sizeof vendor] = '\0';
  const std::string brand = brand_string();
  std::memcpy(info.brand, brand.c_str(), brand.size() + 1);

  CpuidFeatureLeaves leaves{};
  leaves.leaf1 = cpuid(1, 0);
  leaves.leaf7 = cpuid(7, 0);
  if (leaves.leaf7.eax >= 1) leaves.leaf7_1 = cpuid(7, 1);
  leaves.extended1 = cpuid(0x80000001u, 0);
  if (bit(leaves.leaf1.ecx, 27)) leaves.xcr0 = read_xcr0();
  info.x86 = decode_features(leaves);

  const uint32_t signature = leaves.leaf1.eax;
  const uint32_t family = signature >> 8 & 0xf;
  const uint32_t extended_model = family == 0x6 || family == 0xf ? signature >> 16 & 0xf : 0;
  info.family = static_cast<int32_t>(family == 0xf ? family + (signature >> 20 & 0xff) : family);
  info.model = static_cast<int32_t>((signature >> 4 & 0xf) | extended_model << 4);
  info.stepping = static_cast<int32_t>(signature & 0xf);
}

bool cpuid_cache_sizes(CacheSizes& sizes) noexcept {
  // The same format on both: Intel at leaf 4, AMD (with topology extensions) at 0x8000001d.
  for (const uint32_t leaf : {0x4u, 0x8000001du}) {
    CacheSizes found{0, 0, 0, 0, CacheSource::kCpuid};
    for (uint32_t index = 0; index < 16; ++index) {
      const CpuidRegisters r = cpuid(leaf, index);
      const uint32_t type = r.eax & 0x1f;  // 0: no more, 1: data, 2: instruction, 3: unified
      if (type == 0) break;
      if (type == 2) continue;
      const int64_t ways = (r.ebx >> 22) + 1, partitions = (r.ebx >> 12 & 0x3ff) + 1;
      const int64_t line = (r.ebx & 0xfff) + 1, sets = int64_t{r.ecx} + 1;
      const int64_t bytes = ways * partitions * line * sets;
      const uint32_t level = r.eax >> 5 & 0x7;
      if (level == 1) found.l1d_bytes = bytes;
      if (level == 2) found.l2_bytes = bytes;
      if (level == 3) {
        found.l3_bytes = bytes;
        found.l3_cpus = static_cast<int32_t>(r.eax >> 14 & 0xfff) + 1;
      }
    }
    if (found.l1d_bytes > 0 && found.l2_bytes > 0) {
      sizes = found;
      return true;
    }
  }
  return false;
}

#else

void read_x86_identity(CpuInfo&) noexcept {}
bool cpuid_cache_sizes(CacheSizes&) noexcept { return false; }

#endif

}  // namespace tegula::cpu
