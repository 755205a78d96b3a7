// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/executor/topology.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "src/cpu/executor/cpuid.hpp"

namespace tegula::cpu {
namespace {

// Container hosts have mountinfo files of hundreds of kilobytes; nothing read here is larger.
constexpr size_t kMaxFileBytes = size_t{4} << 20;

// Empty when missing or unreadable.
std::string read_file(const std::string& path) {
  std::string text;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return text;
  char buffer[4096];
  while (text.size() < kMaxFileBytes) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  return text;
}

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// Cuts the text up to the separator off the front; the whole rest when there is none.
std::string_view next_field(std::string_view& text, char separator) {
  const size_t at = text.find(separator);
  const std::string_view field = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 1);
  return field;
}

bool has_field(std::string_view text, char separator, std::string_view wanted) {
  while (!text.empty()) {
    if (next_field(text, separator) == wanted) return true;
  }
  return false;
}

// The whole of the trimmed text must be one number; "0x" selects base 16.
bool parse_number(std::string_view text, int64_t& value) {
  text = trim(text);
  int base = 10;
  if (text.starts_with("0x")) {
    base = 16;
    text.remove_prefix(2);
  }
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && stop == text.data() + text.size();
}

bool has_cpu(const AffinityMask& mask, int64_t cpu) {
  return CPU_ISSET_S(static_cast<size_t>(cpu), sizeof mask.words, mask.words);
}

constexpr int64_t kMaxCpus = int64_t{8} * sizeof(AffinityMask::words);

AffinityMask read_affinity() {
  AffinityMask mask{};
  if (sched_getaffinity(0, sizeof mask.words, mask.words) != 0) return AffinityMask{};
  mask.count = CPU_COUNT_S(sizeof mask.words, mask.words);
  return mask;
}

int32_t quota_in_cpus(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int32_t>(std::min<int64_t>((quota - 1) / period + 1, kMaxCpus));
}

// One cgroup folder: cpu.max is "<quota or max> <period>"; version 1 has a file for each.
int32_t folder_quota(const std::string& folder, bool version2) {
  int64_t quota = 0;
  int64_t period = 0;
  if (version2) {
    const std::string text = read_file(folder + "/cpu.max");
    std::string_view rest = trim(text);
    if (!parse_number(next_field(rest, ' '), quota) || !parse_number(rest, period)) return 0;
  } else if (!parse_number(read_file(folder + "/cpu.cfs_quota_us"), quota) ||
             !parse_number(read_file(folder + "/cpu.cfs_period_us"), period)) {
    return 0;
  }
  return quota_in_cpus(quota, period);
}

// The tightest quota from the process's folder up to the mount point.
int32_t hierarchy_quota(const std::string& mount, std::string folder, bool version2) {
  int32_t tightest = 0;
  for (;;) {
    while (!folder.empty() && folder.back() == '/') folder.pop_back();
    const int32_t quota = folder_quota(mount + folder, version2);
    if (quota > 0) tightest = tightest > 0 ? std::min(tightest, quota) : quota;
    if (folder.empty()) return tightest;
    const size_t slash = folder.rfind('/');
    folder.resize(slash == std::string::npos ? 0 : slash);
  }
}

// This process's path in the hierarchy, from /proc/self/cgroup lines "id:controllers:path".
bool own_cgroup_path(std::string_view lines, bool version2, std::string_view& path) {
  while (!lines.empty()) {
    std::string_view line = next_field(lines, '\n');
    const std::string_view id = next_field(line, ':');
    const std::string_view controllers = next_field(line, ':');
    if (version2 ? (id == "0" && controllers.empty()) : has_field(controllers, ',', "cpu")) {
      path = line;
      return true;
    }
  }
  return false;
}

void copy_text(std::string_view from, char* to, size_t size) {
  const size_t length = std::min(from.size(), size - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

CpuInfo read_cpu_info() {
  CpuInfo info{};
  copy_text("unknown", info.vendor, sizeof info.vendor);
  info.affinity = read_affinity();
  info.online_cpus = static_cast<int32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  info.quota_cpus = read_cgroup_quota("");
  info.usable_cpus = info.affinity.count > 0 ? info.affinity.count : info.online_cpus;
  if (info.quota_cpus > 0) info.usable_cpus = std::min(info.usable_cpus, info.quota_cpus);
  info.usable_cpus = std::min(info.usable_cpus, kMaxWorkers);
  const int32_t cores = count_cores("", info.affinity);
  info.usable_cores = cores > 0 ? std::min(cores, info.usable_cpus) : info.usable_cpus;

  int32_t first_cpu = 0;
  while (first_cpu + 1 < kMaxCpus && !has_cpu(info.affinity, first_cpu)) ++first_cpu;
  if (!has_cpu(info.affinity, first_cpu)) first_cpu = 0;
  if (!read_cache_sizes("", first_cpu, info.caches) && !cpuid_cache_sizes(info.caches)) {
    // Every server core of the last decade has these; too small a tile costs less than too large.
    info.caches = {32 << 10, 256 << 10, 0, 0, CacheSource::kDefault};
  }

  read_x86_identity(info);
  info.isa_bits = isa_bits_of(info.x86);
#if defined(__aarch64__)
  read_arm_identity("", info);
#endif
  if (trim(info.brand).empty()) copy_text("unknown CPU", info.brand, sizeof info.brand);
  return info;
}

constinit std::atomic<const CpuInfo*> the_cpu_info{nullptr};

}  // namespace

const char* isa_name(Isa isa) noexcept {
  constexpr const char* kNames[kNumIsas] = {"scalar", "avx2", "avx512", "avx512bf16", "amx"};
  const auto index = static_cast<size_t>(isa);
  return index < kNumIsas ? kNames[index] : "unknown";
}

Isa CpuInfo::best_isa() const noexcept {
  int32_t best = kNumIsas - 1;
  while (best > 0 && !can_run(static_cast<Isa>(best))) --best;
  return static_cast<Isa>(best);
}

const CpuInfo& cpu_info() {
  // No function-local static: a fork while another thread holds its guard would hang the child.
  const CpuInfo* info = the_cpu_info.load(std::memory_order_acquire);
  if (info) return *info;
  const auto* fresh = new CpuInfo(read_cpu_info());
  if (the_cpu_info.compare_exchange_strong(info, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *info;
}

int32_t parse_num_threads(const char* text) {
  int64_t asked = 0;
  const bool valid = text && parse_number(text, asked) && asked >= 1 && asked <= kMaxWorkers;
  return valid ? static_cast<int32_t>(asked) : 0;
}

int32_t default_num_workers() {
  const int32_t asked = parse_num_threads(std::getenv("TEGULA_NUM_THREADS"));
  return asked > 0 ? asked : cpu_info().usable_cpus;
}

void apply_affinity(const AffinityMask& mask) noexcept {
  if (mask.count > 0) sched_setaffinity(0, sizeof mask.words, mask.words);
}

uint32_t isa_bits_of(const X86Features& x) noexcept {
  const bool avx2 = x.os_avx && x.avx2 && x.fma && x.f16c;
  // -march=x86-64-v4 lets the compiler use all of these.
  const bool avx512 = avx2 && x.os_avx512 && x.bmi1 && x.bmi2 && x.lzcnt && x.movbe &&
                      x.avx512f && x.avx512bw && x.avx512cd && x.avx512dq && x.avx512vl;
  const bool bf16 = avx512 && x.avx512_bf16 && x.avx512_vbmi && x.avx512_vnni;
  const bool amx = bf16 && x.os_amx && x.amx_tile && x.amx_bf16;
  return 1u | uint32_t{avx2} << 1 | uint32_t{avx512} << 2 | uint32_t{bf16} << 3 |
         uint32_t{amx} << 4;
}

bool parse_cpu_list(std::string_view text, AffinityMask& mask) {
  mask = AffinityMask{};
  text = trim(text);
  while (!text.empty()) {
    const std::string_view range = next_field(text, ',');
    const size_t dash = range.find('-');
    int64_t first = 0;
    if (!parse_number(range.substr(0, dash), first)) return false;
    int64_t last = first;
    if (dash != std::string_view::npos && !parse_number(range.substr(dash + 1), last)) return false;
    if (first < 0 || last < first || last >= kMaxCpus) return false;
    for (int64_t cpu = first; cpu <= last; ++cpu) {
      CPU_SET_S(static_cast<size_t>(cpu), sizeof mask.words, mask.words);
    }
  }
  mask.count = CPU_COUNT_S(sizeof mask.words, mask.words);
  return mask.count > 0;
}

int64_t parse_cache_size(std::string_view text) {
  text = trim(text);
  int shift = 0;
  if (text.ends_with('K')) shift = 10;
  if (text.ends_with('M')) shift = 20;
  if (text.ends_with('G')) shift = 30;
  if (shift > 0) text.remove_suffix(1);
  int64_t value = 0;
  if (!parse_number(text, value) || value <= 0 || value > (INT64_MAX >> 30)) return 0;
  return value << shift;
}

int32_t read_cgroup_quota(const std::string& root) {
  const std::string cgroups = read_file(root + "/proc/self/cgroup");
  const std::string mounts = read_file(root + "/proc/self/mountinfo");
  int32_t tightest = 0;
  for (std::string_view lines = mounts; !lines.empty();) {
    // "id parent dev root mount-point options [tags] - type source super-options"
    std::string_view line = next_field(lines, '\n');
    const size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    std::string_view tail = line.substr(dash + 3);
    const std::string_view type = next_field(tail, ' ');
    next_field(tail, ' ');
    const bool version2 = type == "cgroup2";
    if (!version2 && !(type == "cgroup" && has_field(trim(tail), ',', "cpu"))) continue;
    for (int skipped = 0; skipped < 3; ++skipped) next_field(line, ' ');
    const std::string_view mounted = next_field(line, ' ');
    const std::string mount(next_field(line, ' '));

    std::string_view path;
    if (!own_cgroup_path(cgroups, version2, path)) continue;
    // In a container the mount shows one folder of the hierarchy, and the path may still be the
    // host's or lead out of it ("/.."): then the folder that is mounted is the process's own.
    if (mounted != "/") {
      const bool below = path.starts_with(mounted) &&
                         (path.size() == mounted.size() || path[mounted.size()] == '/');
      path = below ? path.substr(mounted.size()) : std::string_view{};
    }
    if (path.find("/..") != std::string_view::npos) path = {};
    const int32_t quota = hierarchy_quota(root + mount, std::string(path), version2);
    if (quota > 0) tightest = tightest > 0 ? std::min(tightest, quota) : quota;
  }
  return tightest;
}

bool read_cache_sizes(const std::string& root, int32_t cpu, CacheSizes& sizes) {
  const std::string folder =
      root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index";
  CacheSizes found{0, 0, 0, 0, CacheSource::kSysfs};
  for (int index = 0; index < 16; ++index) {
    const std::string prefix = folder + std::to_string(index) + "/";
    const std::string size_text = read_file(prefix + "size");
    const std::string type_text = read_file(prefix + "type");
    int64_t level = 0;
    if (!parse_number(read_file(prefix + "level"), level)) continue;
    if (trim(type_text) == "Instruction") continue;
    const int64_t size = parse_cache_size(size_text);
    if (level == 1) found.l1d_bytes = size;
    if (level == 2) found.l2_bytes = size;
    if (level == 3) {
      found.l3_bytes = size;
      AffinityMask sharers;
      if (parse_cpu_list(read_file(prefix + "shared_cpu_list"), sharers)) {
        found.l3_cpus = sharers.count;
      }
    }
  }
  if (found.l1d_bytes == 0 || found.l2_bytes == 0) return false;
  sizes = found;
  return true;
}

int32_t count_cores(const std::string& root, const AffinityMask& mask) {
  std::set<std::pair<int64_t, int64_t>> cores;
  for (int64_t cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (!has_cpu(mask, cpu)) continue;
    const std::string folder =
        root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    int64_t package = 0;
    int64_t core = 0;
    if (!parse_number(read_file(folder + "physical_package_id"), package) ||
        !parse_number(read_file(folder + "core_id"), core)) {
      return 0;
    }
    cores.emplace(package, core);
  }
  return static_cast<int32_t>(cores.size());
}

void read_arm_identity(const std::string& root, CpuInfo& info) {
  const std::string text = read_file(root + "/proc/cpuinfo");
  int64_t implementer = -1, architecture = 0, part = 0, revision = 0;
  std::string_view model_name;
  for (std::string_view lines = text; !lines.empty();) {
    std::string_view line = next_field(lines, '\n');
    if (trim(line).empty() && implementer >= 0) break;  // the first CPU speaks for all
    const std::string_view key = trim(next_field(line, ':'));
    if (key == "CPU implementer") parse_number(line, implementer);
    if (key == "CPU architecture") parse_number(line, architecture);
    if (key == "CPU part") parse_number(line, part);
    if (key == "CPU revision") parse_number(line, revision);
    if (key == "model name") model_name = trim(line);
  }
  if (implementer < 0) return;
  info.family = static_cast<int32_t>(architecture);
  info.model = static_cast<int32_t>(part);
  info.stepping = static_cast<int32_t>(revision);
  char hex[32];
  std::snprintf(hex, sizeof hex, "0x%02x", static_cast<unsigned>(implementer));
  copy_text(implementer == 0x41 ? "ARM" : hex, info.vendor, sizeof info.vendor);
  std::string brand(model_name);
  if (brand.empty()) {
    std::snprintf(hex, sizeof hex, " part 0x%03x", static_cast<unsigned>(part));
    brand = info.vendor + std::string(hex);
  }
  copy_text(brand, info.brand, sizeof info.brand);
}

}  // namespace tegula::cpu
