// SPDX-License-Identifier: Apache-2.0
// With a real compiler where TEGULA_NVRTC names one (scripts/test_all.sh cuda); the rest needs
// none.
#include "src/cuda/jit/compile.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/cuda/jit/binary.hpp"
#include "src/cuda/jit/disk_cache.hpp"
#include "tests/unit/cuda/temporary_folder.hpp"

namespace tegula::cuda {
namespace {

KernelText twice() {
  return {"twice",
          "#include \"device/abi/types.hpp\"\n"
          "extern \"C\" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }\n",
          "twice", 90, false};
}

TEST(DeviceText, IsThatOfTheTree) {
  ASSERT_FALSE(device_texts().empty());
  for (const DeviceText& text : device_texts()) {
    std::string content(text.text, text.size);
    EXPECT_EQ(content.find('\0'), std::string::npos) << text.name;
    EXPECT_EQ(content.rfind("// SPDX-License-Identifier: Apache-2.0\n", 0), 0u) << text.name;
    EXPECT_EQ(find_device_text(text.name), &text);
  }
  EXPECT_EQ(find_device_text("device/abi/absent.hpp"), nullptr);
}

// NVRTC is given no include path: whatever a file of device/ includes must be embedded too.
TEST(DeviceText, IncludesOnlyItself) {
  for (const DeviceText& text : device_texts()) {
    const std::string content(text.text, text.size);
    for (size_t at = content.find("#include"); at != std::string::npos;
         at = content.find("#include", at + 1)) {
      const size_t begin = content.find('"', at), end = content.find('"', begin + 1);
      ASSERT_NE(end, std::string::npos) << text.name;
      EXPECT_NE(find_device_text(content.substr(begin + 1, end - begin - 1)), nullptr)
          << text.name << ": " << content.substr(at, end + 1 - at);
    }
  }
}

TEST(DeviceClosure, WhatASourceReaches) {
  EXPECT_TRUE(device_closure("// #include \"device/abi/types.hpp\"\nint x;\n").empty());
  const std::vector<const DeviceText*> one = device_closure(twice().source);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_STREQ(one[0]->name, "device/abi/types.hpp");
  const std::vector<const DeviceText*> kernel =
      device_closure("  #  include   \"device/sm90/forward.hpp\"");
  EXPECT_GT(kernel.size(), 5u);
  for (size_t i = 1; i < kernel.size(); ++i)
    EXPECT_LT(std::string(kernel[i - 1]->name), kernel[i]->name);
}

TEST(KernelKey, FollowsWhatChangesTheBinary) {
  const Digest key = kernel_key(twice());
  KernelText text = twice();
  text.name = "another name";
  EXPECT_EQ(kernel_key(text), key);
  text = twice();
  text.source += " ";
  EXPECT_NE(kernel_key(text), key);
  text = twice();
  text.entry = "thrice";
  EXPECT_NE(kernel_key(text), key);
  text = twice();
  text.arch = 100;
  EXPECT_NE(kernel_key(text), key);
  text = twice();  // the included file counts
  text.source = text.source.substr(text.source.find('\n') + 1);
  EXPECT_NE(kernel_key(text), key);
}

TEST(FirstError, IsALineOfTheLog) {
  EXPECT_EQ(first_error("a.cu(1): warning: w\na.cu(2): error: e\na.cu(3): error: f\n"),
            "a.cu(2): error: e");
  EXPECT_EQ(first_error("ptxas info : (C7510) wgmma.mma_async instructions are serialized\n"),
            "ptxas info : (C7510) wgmma.mma_async instructions are serialized");
  EXPECT_EQ(first_error("something else\nmore"), "something else");
  EXPECT_EQ(first_error(""), "");
  std::string endless = "error ";  // (a temporary with + on it: g++ 12 warns of array-bounds, PR 105329)
  endless.append(1000, 'e');
  EXPECT_EQ(first_error(endless).size(), 300u);
}

TEST(ReadReport, OfPtxas) {
  const PtxasReport report = read_report(
      "ptxas info    : 0 bytes gmem\nptxas info    : Function properties for f\n"
      "ptxas         .     24 bytes stack frame, 16 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 24 bytes cumulative stack size, 1040 "
      "bytes smem\n");
  EXPECT_EQ(report.registers, 168);
  EXPECT_EQ(report.stack_bytes, 24);
  EXPECT_EQ(report.spill_stores, 16);
  EXPECT_EQ(report.spill_loads, 12);
  EXPECT_EQ(report.shared_bytes, 1040);
  EXPECT_EQ(read_report("").registers, -1);
}

TEST(FindBinary, WithoutACompilerSaysWhatHelps) {
  const Variable compiler("TEGULA_NVRTC", "/absent/libnvrtc.so.13"), packs("TEGULA_PACK", "none");
  Binary binary;
  EXPECT_EQ(find_binary(twice(), 13000, {}, binary).code(), TEGULA_UNSUPPORTED);
  const std::string text = error_text();
  EXPECT_NE(text.find("twice"), std::string::npos) << text;
  EXPECT_NE(text.find("/absent/libnvrtc.so.13"), std::string::npos) << text;
  EXPECT_NE(text.find("pack"), std::string::npos) << text;
}

class RealCompiler : public testing::Test {
 protected:
  void SetUp() override {
    const char* const asked = std::getenv("TEGULA_NVRTC");
    if (asked == nullptr || asked[0] == '\0') GTEST_SKIP() << "TEGULA_NVRTC names no compiler";
    ASSERT_TRUE(find_nvrtc(nvrtc_).ok()) << error_text();
  }
  const Nvrtc* nvrtc_ = nullptr;
};

TEST_F(RealCompiler, CompilesWithoutAnIncludePath) {
  Compiled compiled;
  ASSERT_TRUE(compile(twice(), compiled).ok()) << error_text();
  EXPECT_EQ(compiled.cubin.substr(0, 4),
            "\x7f"
            "ELF");
  EXPECT_EQ(compiled.compiler, nvrtc_->version);
  EXPECT_GT(compiled.seconds, 0);
  EXPECT_GT(read_report(compiled.log).registers, 0);
  Compiled again;
  ASSERT_TRUE(compile(twice(), again).ok());
  EXPECT_EQ(again.cubin, compiled.cubin);  // same text, same bits
  // A header that lies in the working directory is not found.
  KernelText text = twice();
  text.source = "#include \"README.md\"\n" + text.source;
  EXPECT_EQ(compile(text, again).code(), TEGULA_DEVICE_ERROR);
}

TEST_F(RealCompiler, AFailureHasTheFirstErrorsLine) {
  KernelText text = twice();
  text.source +=
      "__device__ int f() { return not_declared; }\n__device__ int g() { return neither; }\n";
  Compiled compiled;
  EXPECT_EQ(compile(text, compiled).code(), TEGULA_DEVICE_ERROR);
  const std::string why = error_text();
  EXPECT_NE(why.find("not_declared"), std::string::npos) << why;
  EXPECT_EQ(why.find("neither"), std::string::npos) << why;
  EXPECT_EQ(why.find('\n'), std::string::npos) << why;
  EXPECT_NE(compiled.log.find("neither"), std::string::npos);
  EXPECT_TRUE(compiled.cubin.empty());
}

TEST_F(RealCompiler, FindBinaryCompilesOnceAndSurvivesADamagedCache) {
  const TemporaryFolder folder;
  const Variable cache("TEGULA_CACHE_DIR", folder.path().c_str()), on("TEGULA_CACHE", nullptr),
      packs("TEGULA_PACK", "none");
  const auto find = [](Origin expected) {
    Binary binary;
    EXPECT_TRUE(find_binary(twice(), 13000, {}, binary).ok()) << error_text();
    EXPECT_EQ(binary.origin, expected);
    return binary;
  };
  const Binary first = find(Origin::kCompiler);
  EXPECT_EQ(find(Origin::kDiskCache).cubin, first.cubin);
  for (const auto& item : std::filesystem::directory_iterator(folder.path())) {
    std::filesystem::resize_file(item.path(), std::filesystem::file_size(item.path()) / 2);
  }
  EXPECT_EQ(find(Origin::kCompiler).cubin, first.cubin);
  EXPECT_EQ(find(Origin::kDiskCache).cubin, first.cubin);
  forget_binary(first);
  EXPECT_EQ(find(Origin::kCompiler).cubin, first.cubin);
  const Variable off("TEGULA_CACHE", "0");
  EXPECT_EQ(find(Origin::kCompiler).cubin, first.cubin);
}

TEST_F(RealCompiler, FindBinaryTakesAPackOfTheDriversVersion) {
  const TemporaryFolder folder;
  Compiled compiled;
  ASSERT_TRUE(compile(twice(), compiled).ok()) << error_text();
  PackedKernel kernel;
  kernel.key = kernel_key(twice());
  ASSERT_TRUE(write_pack(folder / "p.tegpack", nvrtc_->version, {kernel}, {compiled.cubin}).ok());
  // The compiler is out of reach: the pack is all there is. Packs are opened once a process, and
  // ctest gives each test its own.
  const Variable packs("TEGULA_PACK", (folder / "p.tegpack").c_str()),
      hidden("TEGULA_NVRTC", "/absent");
  Binary binary;
  if (process_packs().empty() || process_packs()[0].path() != folder / "p.tegpack") {
    GTEST_SKIP() << "another test of this process has opened the packs";
  }
  ASSERT_TRUE(find_binary(twice(), 13000, {}, binary).ok()) << error_text();
  EXPECT_EQ(binary.origin, Origin::kPack);
  EXPECT_EQ(binary.cubin, compiled.cubin);
  EXPECT_FALSE(find_binary(twice(), 11080, {}, binary).ok());  // an older driver cannot load it
  EXPECT_FALSE(find_binary(twice(), 13000, {.packs = false}, binary).ok());
}

}  // namespace
}  // namespace tegula::cuda
