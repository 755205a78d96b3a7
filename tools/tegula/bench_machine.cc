// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/bench_machine.hpp"

#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "tools/tegula/failure.hpp"

namespace tegula::program {
namespace {

std::vector<int> cpus_of(const cpu::AffinityMask& mask) {
  std::vector<int> cpus;
  for (std::size_t cpu = 0; cpu < 8 * sizeof mask.words; ++cpu) {
    if (CPU_ISSET_S(cpu, sizeof mask.words, mask.words)) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

std::vector<int> allowed_cpus() {
  cpu::AffinityMask mask = {};
  if (sched_getaffinity(0, sizeof mask.words, mask.words) != 0) {
    throw Failure(
        fmt::format("the CPUs that this process may use cannot be read: {}", std::strerror(errno)));
  }
  return cpus_of(mask);
}

// Names the core: all its CPUs have the same. The CPU's own number where the system does not tell.
std::string core_of(int cpu) {
  std::ifstream stream(
      fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
  std::string siblings;
  return std::getline(stream, siblings) ? siblings : std::to_string(cpu);
}

}  // namespace

MachineClass class_of(const cpu::CpuInfo& info) {
  const std::string_view vendor = info.vendor;
  const cpu::X86Features& x86 = info.x86;
  if (vendor == "AuthenticAMD" && info.family == 25 && x86.avx512_bf16 && !x86.amx_bf16)
    return MachineClass::kZen4;
  if (vendor == "GenuineIntel" && x86.amx_bf16 && !x86.amx_fp16)
    return MachineClass::kSapphireRapids;
  return MachineClass::kUnknown;
}

const char* class_name(MachineClass machine) {
  switch (machine) {
    case MachineClass::kZen4: return "zen4";
    case MachineClass::kSapphireRapids: return "sapphire_rapids";
    default: return "unknown";
  }
}

MachineClass class_named(const std::string& name) {
  for (const MachineClass machine : {MachineClass::kZen4, MachineClass::kSapphireRapids}) {
    if (name == class_name(machine)) return machine;
  }
  return MachineClass::kUnknown;
}

std::int64_t l3_cache_bytes(MachineClass machine) {
  return (machine == MachineClass::kSapphireRapids ? std::int64_t{32} : std::int64_t{8}) << 20;
}

std::vector<int> choose_cpus(int count) {
  const std::vector<int> allowed = allowed_cpus();
  // Not cpu_info(), which counts CPUs for good: this is asked before they are confined.
  const int named = cpu::parse_num_threads(std::getenv("TEGULA_NUM_THREADS")),
            quota = cpu::read_cgroup_quota("");
  const int all = static_cast<int>(allowed.size());
  if (count == 0) count = std::min(all, named > 0 ? named : quota > 0 ? quota : all);
  const std::size_t wanted = static_cast<std::size_t>(count);
  if (wanted > allowed.size()) {
    throw Failure(fmt::format(
        "--threads: {} is more than the {} CPUs that this process may use; each thread is bound "
        "to one",
        wanted, allowed.size()));
  }
  std::vector<int> first, second;  // of each core; its other CPUs
  std::set<std::string> cores;
  for (const int cpu : allowed) (cores.insert(core_of(cpu)).second ? first : second).push_back(cpu);
  first.insert(first.end(), second.begin(), second.end());
  first.resize(wanted);
  return first;
}

std::vector<int> parse_cpus(const std::string& list) {
  cpu::AffinityMask mask = {};
  if (!cpu::parse_cpu_list(list, mask))
    throw Failure(fmt::format("--cpus: {} is no list such as 0,2-5", list));
  const std::vector<int> cpus = cpus_of(mask), allowed = allowed_cpus();
  for (const int cpu : cpus) {
    if (std::find(allowed.begin(), allowed.end(), cpu) == allowed.end()) {
      throw Failure(fmt::format("--cpus: this process may not use CPU {}", cpu));
    }
  }
  if (cpus.empty()) throw Failure("--cpus: names no CPU");
  return cpus;
}

void pin_thread(int thread_id, int cpu) {
  cpu::AffinityMask mask = {};
  CPU_SET_S(static_cast<std::size_t>(cpu), sizeof mask.words, mask.words);
  if (sched_setaffinity(thread_id, sizeof mask.words, mask.words) != 0) {
    throw Failure(fmt::format("a thread cannot be bound to CPU {}: {}", cpu, std::strerror(errno)));
  }
}

void confine(const std::vector<int>& cpus) {
  cpu::AffinityMask mask = {};
  for (const int cpu : cpus)
    CPU_SET_S(static_cast<std::size_t>(cpu), sizeof mask.words, mask.words);
  if (sched_setaffinity(0, sizeof mask.words, mask.words) != 0) {
    throw Failure(
        fmt::format("the process cannot be confined to its CPUs: {}", std::strerror(errno)));
  }
  setenv("TEGULA_NUM_THREADS", std::to_string(cpus.size()).c_str(), 1);
}

std::vector<int> thread_ids() {
  std::vector<int> ids;
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) throw Failure("/proc/self/task: cannot be read");
  while (const dirent* entry = readdir(folder)) {
    if (const int id = std::atoi(entry->d_name); id > 0) ids.push_back(id);
  }
  closedir(folder);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::size_t pin_new_threads(const std::vector<int>& known, const std::vector<int>& cpus) {
  std::size_t next = 1;
  for (const int id : thread_ids()) {
    if (std::binary_search(known.begin(), known.end(), id)) continue;
    pin_thread(id, cpus[next % cpus.size()]);
    ++next;
  }
  return next - 1;
}

}  // namespace tegula::program
