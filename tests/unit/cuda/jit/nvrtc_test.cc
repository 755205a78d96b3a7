// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/jit/nvrtc.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/cuda/temporary_folder.hpp"

namespace tegula::cuda {
namespace {

namespace fs = std::filesystem;

// Empty files of those names: the search goes by names alone.
void touch(const std::string& folder, std::initializer_list<const char*> names) {
  fs::create_directories(folder);
  for (const char* name : names) std::ofstream(folder + "/" + name) << "no library";
}

TEST(NvrtcFiles, TheNewestFirstAndOfEqualsTheEarlierFolder) {
  const TemporaryFolder root;
  touch(root / "a", {"libnvrtc.so.12", "libnvrtc-builtins.so.12.8", "libnvrtc.alt.so.12"});
  touch(root / "b",
        {"libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0"});
  touch(root / "c", {"libnvrtc.so.12", "libnvrtc-builtins.so.12.9", "libnvrtc-builtins.so.12.9.86",
                     "libnvrtc-builtins.so.12.4"});
  touch(root / "d", {"libnvrtc.so.13", "libnvrtc-builtins.so.13.0"});
  const std::vector<NvrtcFile> files =
      nvrtc_files({root / "a", root / "b", root / "c", root / "d", root / "none"});
  ASSERT_EQ(files.size(), 4u);
  EXPECT_EQ(files[0].path, root / "b/libnvrtc.so.13");
  EXPECT_EQ(files[0].builtins, root / "b/libnvrtc-builtins.so.13.0");
  EXPECT_EQ(files[0].version, 13000);
  EXPECT_EQ(files[1].path, root / "d/libnvrtc.so.13");
  EXPECT_EQ(files[2].version, 12090);
  EXPECT_EQ(files[2].builtins, root / "c/libnvrtc-builtins.so.12.9");
  EXPECT_EQ(files[3].version, 12080);
}

TEST(NvrtcFiles, OtherNamesAreNone) {
  const TemporaryFolder root;
  touch(root / "a",
        {"libnvrtc.so", "libnvrtc.so.12.9.86", "libnvrtc.so.x", "libnvrtc-builtins.so.12.9"});
  touch(root / "b", {"libnvrtc.so.13"});  // without its builtins
  touch(root / "c", {"libnvrtc.so.13", "libnvrtc-builtins.so.12.9", "libnvrtc-builtins.so.13."});
  touch(root / "d", {"libnvrtc.so.99999999999", "libnvrtc-builtins.so.99999999999.0"});
  EXPECT_TRUE(nvrtc_files({root / "a", root / "b", root / "c", root / "d"}).empty());
}

TEST(NvrtcFolders, ThePackagesOfAnEnvironmentAndToolkits) {
  const TemporaryFolder root;
  touch(root / "venv/lib/python3.11/site-packages/nvidia/cu13/lib", {"libnvrtc.so.13"});
  touch(root / "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib", {"libnvrtc.so.12"});
  touch(root / "conda/lib", {"libnvrtc.so.12"});
  touch(root / "toolkit/lib64", {"libnvrtc.so.13"});
  touch(root / "listed", {"x"});
  const std::string listed = root / "listed:relative::" + (root / "absent");
  const Variable venv("VIRTUAL_ENV", (root / "venv").c_str()),
      conda("CONDA_PREFIX", (root / "conda").c_str()),
      toolkit("CUDA_HOME", (root / "toolkit").c_str()),
      libraries("LD_LIBRARY_PATH", listed.c_str());
  const std::vector<std::string> folders = nvrtc_folders();
  const auto place = [&](const char* name) {
    const auto at = std::find(folders.begin(), folders.end(), root / name);
    EXPECT_NE(at, folders.end()) << name;
    EXPECT_EQ(std::count(folders.begin(), folders.end(), root / name), 1) << name;
    return at - folders.begin();
  };
  EXPECT_LT(place("venv/lib/python3.11/site-packages/nvidia/cu13/lib"), place("conda/lib"));
  EXPECT_LT(place("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib"),
            place("toolkit/lib64"));
  EXPECT_LT(place("toolkit/lib64"), place("listed"));
  for (const std::string& folder : folders) EXPECT_EQ(folder[0], '/') << folder;
}

TEST(OpenNvrtc, SaysWhatWasLookedFor) {
  const TemporaryFolder root;
  const auto expect_refusal = [](const std::string& path, const char* text) {
    const Nvrtc* nvrtc = nullptr;
    EXPECT_EQ(open_nvrtc(path, nvrtc).code(), TEGULA_UNSUPPORTED);
    EXPECT_EQ(nvrtc, nullptr);
    EXPECT_NE(std::string(error_text()).find(text), std::string::npos) << error_text();
    EXPECT_NE(std::string(error_text()).find(path), std::string::npos) << error_text();
    EXPECT_EQ(std::string(error_text()).find('\n'), std::string::npos);
  };
  expect_refusal(root / "absent", "no such file");
  expect_refusal(root.path(), "libnvrtc-builtins.so");
  touch(root / "a", {"libnvrtc.so.13", "libnvrtc-builtins.so.13.0"});
  expect_refusal(root / "a/libnvrtc-builtins.so.13.0", "libnvrtc.so.<major>");
  const Nvrtc* nvrtc = nullptr;
  EXPECT_FALSE(open_nvrtc(root / "a", nvrtc).ok());  // no library
  EXPECT_NE(std::string(error_text()).find("libnvrtc-builtins.so.13.0"), std::string::npos)
      << error_text();
  // What the environment names is the only one that is tried.
  const Variable asked("TEGULA_NVRTC", (root / "absent").c_str());
  EXPECT_FALSE(find_nvrtc(nvrtc).ok());
  EXPECT_NE(std::string(error_text()).find(root / "absent"), std::string::npos) << error_text();
}

}  // namespace
}  // namespace tegula::cuda
