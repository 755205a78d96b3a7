// SPDX-License-Identifier: Apache-2.0
// What holds on every machine; with a driver there is more in tests/device.
#include "src/cuda/driver/driver.hpp"

#include <gtest/gtest.h>

#include <string>

#include "src/cuda/jit/jit.hpp"
#include "tests/unit/cuda/temporary_folder.hpp"

namespace tegula::cuda {
namespace {

// The driver is looked for once a process; ctest gives each test its own.
TEST(FindDriver, SaysWhatWasLookedFor) {
  const Variable asked("TEGULA_LIBCUDA", "/absent/libcuda.so.1");
  const Driver* driver = nullptr;
  const Status status = find_driver(driver);
  const std::string text = error_text();
  if (status.ok() || text.find("/absent") == std::string::npos) {
    GTEST_SKIP() << "another test of this process has looked for the driver";
  }
  EXPECT_EQ(status.code(), TEGULA_UNSUPPORTED);
  EXPECT_EQ(driver, nullptr);
  EXPECT_NE(text.find("TEGULA_LIBCUDA"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  // The same answer from everything that needs a driver, and again.
  const auto expect_same = [&](const Status& other, const char* what) {
    EXPECT_EQ(other.code(), TEGULA_UNSUPPORTED) << what;
    EXPECT_EQ(std::string(error_text()), text) << what;
    clear_error();
  };
  int count = 0;
  const DeviceInfo* info = nullptr;
  const Kernel* kernel = nullptr;
  CUdeviceptr pointer = 0;
  ContextGuard guard;
  expect_same(find_driver(driver), "find_driver");
  expect_same(device_count(count), "device_count");
  expect_same(device_info(0, info), "device_info");
  expect_same(guard.enter(0), "ContextGuard");
  expect_same(allocate_scratch(0, 16, nullptr, pointer), "allocate_scratch");
  expect_same(load_kernel(0, {"k", "", "k", 90, false}, kernel), "load_kernel");
  EXPECT_EQ(find_kernel(0, {"k", "", "k", 90, false}), nullptr);
  EXPECT_EQ(trim_device_memory(), 0u);
}

TEST(FindDriver, WithoutAWishSaysWhatHelps) {
  const Variable asked("TEGULA_LIBCUDA", nullptr);
  const Driver* driver = nullptr;
  const Status status = find_driver(driver);
  if (status.ok()) GTEST_SKIP() << "this machine has a driver";
  const std::string text = error_text();
  EXPECT_EQ(status.code(), TEGULA_UNSUPPORTED);
  EXPECT_NE(text.find("CUDA driver"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

}  // namespace
}  // namespace tegula::cuda
