// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/jit/pack.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/cuda/jit/key_util.hpp"
#include "tests/unit/cuda/temporary_folder.hpp"

namespace tegula::cuda {
namespace {

namespace fs = std::filesystem;

std::string binary_of(int number) {
  return std::string(static_cast<size_t>(100 + number), static_cast<char>('a' + number));
}

PackedKernel kernel_of(int number) {
  PackedKernel kernel;
  kernel.key = key_of(number);
  kernel.arch = 90;
  kernel.registers = 100 + number;
  std::strcpy(kernel.name, ("kernel " + std::to_string(number)).c_str());
  return kernel;
}

std::string write(const TemporaryFolder& folder, int count, int compiler = 12090) {
  std::vector<PackedKernel> kernels;
  std::vector<std::string> binaries;
  for (int i = 0; i < count; ++i) {
    kernels.push_back(kernel_of(i));
    binaries.push_back(binary_of(i));
  }
  const std::string path = folder / "some.tegpack";
  EXPECT_TRUE(write_pack(path, compiler, kernels, binaries).ok()) << error_text();
  return path;
}

std::string content_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(Pack, HoldsWhatWasWritten) {
  const TemporaryFolder folder;
  Pack pack;
  ASSERT_TRUE(Pack::open(write(folder, 10), pack).ok()) << error_text();
  EXPECT_EQ(pack.compiler(), 12090);
  EXPECT_EQ(pack.least_driver(), 12000);
  ASSERT_EQ(pack.kernels().size(), 10u);
  for (int i = 0; i < 10; ++i) {
    const PackedKernel* const kernel = pack.find(key_of(i));
    ASSERT_NE(kernel, nullptr);
    EXPECT_EQ(kernel->registers, 100 + i);
    EXPECT_EQ(std::string(kernel->name), "kernel " + std::to_string(i));
    std::string binary;
    ASSERT_TRUE(pack.read(*kernel, binary).ok()) << error_text();
    EXPECT_EQ(binary, binary_of(i));
  }
  EXPECT_EQ(pack.find(key_of(10)), nullptr);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);  // nothing unfinished
}

TEST(Pack, MayBeEmptyAndIsReplacedInOneStep) {
  const TemporaryFolder folder;
  Pack empty, full;
  ASSERT_TRUE(Pack::open(write(folder, 0, 13000), empty).ok()) << error_text();
  EXPECT_EQ(empty.least_driver(), 13000);
  EXPECT_EQ(empty.find(key_of(0)), nullptr);
  ASSERT_TRUE(Pack::open(write(folder, 3), full).ok()) << error_text();
  // The open pack is still the file that it was.
  write(folder, 1);
  std::string binary;
  ASSERT_NE(full.find(key_of(2)), nullptr);
  EXPECT_TRUE(full.read(*full.find(key_of(2)), binary).ok());
  EXPECT_EQ(binary, binary_of(2));
}

TEST(Pack, RefusesTheSameKernelTwice) {
  const TemporaryFolder folder;
  const Status status =
      write_pack(folder / "p", 12090, {kernel_of(1), kernel_of(1)}, {binary_of(1), binary_of(1)});
  EXPECT_EQ(status.code(), TEGULA_INVALID_ARGUMENT);
  EXPECT_FALSE(fs::exists(folder / "p"));
}

TEST(Pack, RefusesWhatIsNoPack) {
  const TemporaryFolder folder;
  std::ofstream(folder / "text")
      << "not a pack at all, but long enough to hold a header of 64 bytes ....";
  for (const std::string& path :
       {folder / "absent", folder.path(), folder / "text", std::string("/dev/null")}) {
    Pack pack;
    EXPECT_EQ(Pack::open(path, pack).code(), TEGULA_INVALID_ARGUMENT) << path;
    EXPECT_NE(std::string(error_text()).find(path), std::string::npos) << error_text();
  }
  EXPECT_EQ(write_pack(folder / "no/such/folder", 12090, {}, {}).code(), TEGULA_INVALID_ARGUMENT);
}

// A pack opens whole or not at all; a damaged binary is found when it is read.
TEST(Pack, DamageIsFound) {
  const TemporaryFolder folder;
  const std::string whole = content_of(write(folder, 3));
  const std::string path = folder / "damaged";
  const size_t table_end = 64 + 3 * sizeof(PackedKernel);
  for (size_t size = 0; size < whole.size(); size += size < 80 ? 1 : 41) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, size);
    Pack pack;
    EXPECT_FALSE(Pack::open(path, pack).ok()) << "cut to " << size;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    std::ofstream(path, std::ios::binary) << flipped;
    Pack pack;
    const Status opened = Pack::open(path, pack);
    EXPECT_EQ(opened.ok(), at >= table_end) << at;
    if (!opened.ok()) continue;
    int damaged = 0;
    for (const PackedKernel& kernel : pack.kernels()) {
      std::string binary;
      if (!pack.read(kernel, binary).ok()) ++damaged;
    }
    EXPECT_EQ(damaged, 1) << at;
  }
}

TEST(PackPaths, FollowTheEnvironment) {
  const Variable asked("TEGULA_PACK", "/a/one.tegpack::/b/two");
  const std::vector<std::string> paths = pack_paths();
  ASSERT_GE(paths.size(), 2u);
  EXPECT_EQ(paths[0], "/a/one.tegpack");
  EXPECT_EQ(paths[1], "/b/two");
  const Variable none("TEGULA_PACK", "none");
  EXPECT_TRUE(pack_paths().empty());
}

}  // namespace
}  // namespace tegula::cuda
