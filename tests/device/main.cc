// SPDX-License-Identifier: Apache-2.0
// Beside the fake driver goes the fake compiler, unless the model's is asked for, and nothing that
// a real one left on this machine.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* const driver = std::getenv("TEGULA_LIBCUDA");
  const std::string path = driver != nullptr ? driver : "";
  if (path.ends_with("/fake_cuda.so")) {
    const std::string folder = path.substr(0, path.rfind('/')) + "/fake_nvrtc";
    setenv("TEGULA_NVRTC", folder.c_str(), 0);
    if (std::getenv("TEGULA_NVRTC") == folder) setenv("TEGULA_CACHE", "0", 1);
    setenv("TEGULA_PACK", "none", 1);
  }
  return RUN_ALL_TESTS();
}
