// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/executor/topology.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "src/cpu/executor/cpuid.hpp"

namespace tegula::cpu {
namespace {

namespace fs = std::filesystem;

// A file tree that stands for "/".
class Topology : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "tegula-topology-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void write_cache(int cpu, int index, const std::string& level, const std::string& type,
                   const std::string& size, const std::string& sharers) const {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                               "/cache/index" + std::to_string(index) + "/";
    write(folder + "level", level + "\n");
    write(folder + "type", type + "\n");
    write(folder + "size", size + "\n");
    write(folder + "shared_cpu_list", sharers + "\n");
  }
  static std::string v2_mount(const std::string& mounted, const std::string& at) {
    return "22 1 8:1 / / rw - ext4 /dev/root rw\n40 22 0:37 " + mounted + " " + at +
           " rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
  }

  std::string root_;
};

TEST(TopologyText, CpuLists) {
  AffinityMask mask;
  const auto count = [&](std::string_view text) {
    return parse_cpu_list(text, mask) ? mask.count : -1;
  };
  EXPECT_EQ(count("0\n"), 1);
  EXPECT_EQ(count("0-3,8-11"), 8);
  EXPECT_EQ(count(" 5,5,5 \n"), 1);
  EXPECT_EQ(count("0-8191"), 8192);
  for (const char* bad : {"", "\n", "-", "0-", "3-1", "-1", "a", "0,b", "0-8192", "99999999999",
                          "1 2", "0x", "1-2-3", ",1"}) {
    EXPECT_EQ(count(bad), -1) << '"' << bad << '"';
  }
}

TEST(TopologyText, CacheSizes) {
  EXPECT_EQ(parse_cache_size("32K\n"), 32 << 10);
  EXPECT_EQ(parse_cache_size("12288K"), 12288 << 10);
  EXPECT_EQ(parse_cache_size("2M"), 2 << 20);
  EXPECT_EQ(parse_cache_size("1G"), 1 << 30);
  EXPECT_EQ(parse_cache_size("512"), 512);
  for (const char* bad : {"", "K", "0K", "-1K", "32KB", "3 2K", "99999999999999999999K",
                          "9223372036854775807G", "unknown"}) {
    EXPECT_EQ(parse_cache_size(bad), 0) << bad;
  }
}

TEST(TopologyText, NumberOfThreads) {
  EXPECT_EQ(parse_num_threads("3"), 3);
  EXPECT_EQ(parse_num_threads(" 12 "), 12);
  EXPECT_EQ(parse_num_threads("4096"), kMaxWorkers);
  EXPECT_EQ(parse_num_threads(nullptr), 0);
  for (const char* bad : {"", " ", "0", "-2", "4097", "two", "3x", "1e3", "99999999999999999999"}) {
    EXPECT_EQ(parse_num_threads(bad), 0) << bad;
  }
}

TEST_F(Topology, NoQuotaWithoutFiles) { EXPECT_EQ(read_cgroup_quota(root_), 0); }

TEST_F(Topology, QuotaV2RoundsUpAndTakesTheTightestLevel) {
  write("/proc/self/cgroup", "0::/user.slice/job\n");
  write("/proc/self/mountinfo", v2_mount("/", "/sys/fs/cgroup"));
  EXPECT_EQ(read_cgroup_quota(root_), 0);
  write("/sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n");
  EXPECT_EQ(read_cgroup_quota(root_), 0);
  write("/sys/fs/cgroup/user.slice/job/cpu.max", "350000 100000\n");
  EXPECT_EQ(read_cgroup_quota(root_), 4);
  write("/sys/fs/cgroup/user.slice/cpu.max", "200000 100000\n");
  EXPECT_EQ(read_cgroup_quota(root_), 2);
  write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(read_cgroup_quota(root_), 1);
}

TEST_F(Topology, QuotaV2InsideAContainer) {
  // The mount shows the container's folder; the path is the host's, then a namespaced one.
  write("/proc/self/mountinfo", v2_mount("/docker/abc", "/sys/fs/cgroup"));
  write("/sys/fs/cgroup/cpu.max", "300000 100000\n");
  write("/sys/fs/cgroup/sub/cpu.max", "100000 100000\n");
  for (const char* path : {"/docker/abc", "/", "/../elsewhere", "/docker/abcdef/sub"}) {
    write("/proc/self/cgroup", "0::" + std::string(path) + "\n");
    EXPECT_EQ(read_cgroup_quota(root_), 3) << path;
  }
  write("/proc/self/cgroup", "0::/docker/abc/sub\n");
  EXPECT_EQ(read_cgroup_quota(root_), 1);
}

TEST_F(Topology, QuotaV1FindsTheCpuControllerAmongOthers) {
  write("/proc/self/cgroup",
        "12:cpuset:/elsewhere\n7:memory:/m\n3:cpu,cpuacct:/job\n2:cpuacct:/x\n0::/\n");
  write("/proc/self/mountinfo",
        "33 22 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "34 22 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup rw,cpu,cpuacct\n");
  write("/sys/fs/cgroup/cpuset/elsewhere/cpu.cfs_quota_us", "100000\n");
  write("/sys/fs/cgroup/cpuset/elsewhere/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read_cgroup_quota(root_), 0);
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250001\n");
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(read_cgroup_quota(root_), 6);
}

TEST_F(Topology, OddQuotaFilesAreNoQuota) {
  write("/proc/self/cgroup", "0::/\n");
  write("/proc/self/mountinfo", v2_mount("/", "/sys/fs/cgroup"));
  for (const char* odd : {"", "\n", "max", "100000", "0 100000", "-5 100000", "100000 0",
                          "100000 -1", "1 2 3", "99999999999999999999 1", "x y"}) {
    write("/sys/fs/cgroup/cpu.max", odd);
    EXPECT_EQ(read_cgroup_quota(root_), 0) << odd;
  }
  write("/sys/fs/cgroup/cpu.max", "9223372036854775807 1");
  EXPECT_EQ(read_cgroup_quota(root_), 8192);
  write("/sys/fs/cgroup/cpu.max", "100000 100000");
  for (const char* odd : {"", "x", "0:", "0::", "::::", "0::relative\n", "1:cpu:/\n"}) {
    write("/proc/self/cgroup", odd);
    EXPECT_GE(read_cgroup_quota(root_), 0) << odd;
  }
  write("/proc/self/cgroup", "0::/\n");
  for (const char* odd : {"", " - ", " - cgroup2", "a b c - cgroup2", "- cgroup2 x y\n - \n",
                          "1 2 3 / /nowhere rw - cgroup2 c rw"}) {
    write("/proc/self/mountinfo", odd);
    EXPECT_EQ(read_cgroup_quota(root_), 0) << odd;
  }
}

TEST_F(Topology, CachesFromSysfs) {
  write_cache(2, 0, "1", "Data", "48K", "2");
  write_cache(2, 1, "1", "Instruction", "64K", "2");
  write_cache(2, 2, "2", "Unified", "2048K", "2");
  write_cache(2, 3, "3", "Unified", "260M", "0-31,64-95");
  CacheSizes sizes{};
  ASSERT_TRUE(read_cache_sizes(root_, 2, sizes));
  EXPECT_EQ(sizes.l1d_bytes, 48 << 10);
  EXPECT_EQ(sizes.l2_bytes, 2 << 20);
  EXPECT_EQ(sizes.l3_bytes, 260 << 20);
  EXPECT_EQ(sizes.l3_cpus, 64);
  EXPECT_EQ(sizes.source, CacheSource::kSysfs);
}

TEST_F(Topology, CachesWithoutL3OrWithHoles) {
  CacheSizes sizes{7, 7, 7, 7, CacheSource::kDefault};
  EXPECT_FALSE(read_cache_sizes(root_, 0, sizes));
  write_cache(0, 0, "1", "Data", "32K", "0");
  EXPECT_FALSE(read_cache_sizes(root_, 0, sizes));
  EXPECT_EQ(sizes.l1d_bytes, 7);  // untouched on failure
  write_cache(0, 5, "2", "Unified", "garbage", "0");
  EXPECT_FALSE(read_cache_sizes(root_, 0, sizes));
  write_cache(0, 5, "2", "Unified", "512K", "garbage");
  write_cache(0, 6, "nine", "Unified", "512K", "0");
  ASSERT_TRUE(read_cache_sizes(root_, 0, sizes));
  EXPECT_EQ(sizes.l2_bytes, 512 << 10);
  EXPECT_EQ(sizes.l3_bytes, 0);
  EXPECT_EQ(sizes.l3_cpus, 0);
}

TEST_F(Topology, CoresAreCountedWithinTheMask) {
  // Two packages of two cores of two threads.
  for (int cpu = 0; cpu < 8; ++cpu) {
    const std::string folder =
        "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    write(folder + "physical_package_id", std::to_string(cpu / 4) + "\n");
    write(folder + "core_id", std::to_string(cpu % 2) + "\n");
  }
  AffinityMask mask;
  ASSERT_TRUE(parse_cpu_list("0-7", mask));
  EXPECT_EQ(count_cores(root_, mask), 4);
  ASSERT_TRUE(parse_cpu_list("0,2,4", mask));
  EXPECT_EQ(count_cores(root_, mask), 2);
  ASSERT_TRUE(parse_cpu_list("6-8", mask));  // CPU 8 has no files
  EXPECT_EQ(count_cores(root_, mask), 0);
}

TEST_F(Topology, ArmIdentity) {
  CpuInfo info{};
  read_arm_identity(root_, info);
  EXPECT_STREQ(info.vendor, "");
  write("/proc/cpuinfo",
        "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
        "CPU variant\t: 0x1\nCPU part\t: 0xd40\nCPU revision\t: 1\n\n"
        "processor\t: 1\nCPU implementer\t: 0x51\nCPU part\t: 0x001\n");
  read_arm_identity(root_, info);
  EXPECT_STREQ(info.vendor, "ARM");
  EXPECT_STREQ(info.brand, "ARM part 0xd40");
  EXPECT_EQ(info.family, 8);
  EXPECT_EQ(info.model, 0xd40);
  EXPECT_EQ(info.stepping, 1);
  write("/proc/cpuinfo", "model name\t: " + std::string(200, 'n') + "\nCPU implementer\t: 0x6d\n");
  read_arm_identity(root_, info);
  EXPECT_STREQ(info.vendor, "0x6d");
  EXPECT_EQ(std::string(info.brand), std::string(63, 'n'));
}

TEST(TopologyIsa, EachLevelNeedsEveryFeatureOfItsFlagsAndTheSystemsSupport) {
  X86Features all{};
  std::memset(&all, 1, sizeof all);
  EXPECT_EQ(isa_bits_of(all), 0x1fu);
  EXPECT_EQ(isa_bits_of(X86Features{}), 0x1u);
  const auto without = [&](bool X86Features::*feature) {
    X86Features some = all;
    some.*feature = false;
    return isa_bits_of(some);
  };
  using X = X86Features;
  for (auto feature : {&X::os_avx, &X::avx2, &X::fma, &X::f16c}) {
    EXPECT_EQ(without(feature), 0x1u);
  }
  for (auto feature : {&X::os_avx512, &X::bmi1, &X::bmi2, &X::lzcnt, &X::movbe, &X::avx512f,
                       &X::avx512bw, &X::avx512cd, &X::avx512dq, &X::avx512vl}) {
    EXPECT_EQ(without(feature), 0x3u);
  }
  for (auto feature : {&X::avx512_bf16, &X::avx512_vbmi, &X::avx512_vnni}) {
    EXPECT_EQ(without(feature), 0x7u);
  }
  for (auto feature : {&X::amx_tile, &X::amx_bf16, &X::os_amx}) {
    EXPECT_EQ(without(feature), 0xfu);
  }
  for (auto feature : {&X::avx512_fp16, &X::amx_int8, &X::amx_fp16}) {
    EXPECT_EQ(without(feature), 0x1fu);
  }
}

TEST(TopologyIsa, DecodesTheRegistersOfKnownCpus) {
  CpuidFeatureLeaves leaves{};
  // Zen 4 (family 25, model 17).
  leaves.leaf1.ecx = 0xfef83203;
  leaves.leaf7 = {1, 0xf1bf97a9, 0x405fce, 0x10000010};
  leaves.leaf7_1.eax = 0x20;
  leaves.extended1.ecx = 0x75c237ff;
  leaves.xcr0 = 0x2e7;
  EXPECT_EQ(isa_bits_of(decode_features(leaves)), 0xfu);
  EXPECT_FALSE(decode_features(leaves).amx_tile);
  leaves.xcr0 = 0x7;  // a system that saves the ymm state only
  EXPECT_EQ(isa_bits_of(decode_features(leaves)), 0x3u);
  leaves.xcr0 = 0;
  EXPECT_EQ(isa_bits_of(decode_features(leaves)), 0x1u);
}

TEST(TopologyIsa, Names) {
  EXPECT_STREQ(isa_name(Isa::kScalar), "scalar");
  EXPECT_STREQ(isa_name(Isa::kAvx2), "avx2");
  EXPECT_STREQ(isa_name(Isa::kAvx512), "avx512");
  EXPECT_STREQ(isa_name(Isa::kAvx512Bf16), "avx512bf16");
  EXPECT_STREQ(isa_name(Isa::kAmx), "amx");
  EXPECT_STREQ(isa_name(static_cast<Isa>(9)), "unknown");
}

TEST(TopologyHere, ThisMachineMakesSense) {
  const CpuInfo& info = cpu_info();
  EXPECT_EQ(&info, &cpu_info());
  EXPECT_STRNE(info.vendor, "");
  EXPECT_STRNE(info.brand, "");
  EXPECT_GE(info.usable_cpus, 1);
  EXPECT_LE(info.usable_cpus, std::max(info.online_cpus, info.affinity.count));
  EXPECT_GE(info.usable_cores, 1);
  EXPECT_LE(info.usable_cores, info.usable_cpus);
  EXPECT_GE(info.caches.l1d_bytes, 4 << 10);
  EXPECT_GE(info.caches.l2_bytes, info.caches.l1d_bytes);
  EXPECT_TRUE(info.can_run(Isa::kScalar));
  EXPECT_TRUE(info.can_run(info.best_isa()));
#if defined(__x86_64__)
  EXPECT_EQ(info.can_run(Isa::kAvx2), __builtin_cpu_supports("avx2") &&
                                          __builtin_cpu_supports("fma") && info.x86.f16c);
  EXPECT_EQ(info.x86.os_avx512 && info.x86.avx512f, __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(info.x86.os_avx512 && info.x86.avx512_bf16,
            __builtin_cpu_supports("avx512bf16") != 0);
#endif
}

}  // namespace
}  // namespace tegula::cpu
