// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/gpu_option.hpp"

#include <charconv>

#include <fmt/format.h>

#include "tools/tegula/failure.hpp"

namespace tegula::program {

int gpu_index(const std::string& device) {
  if (device == "cpu") return -1;
  if (device == "cuda") return 0;
  int index = -1;
  const char* const end = device.data() + device.size();
  if (device.rfind("cuda:", 0) != 0 || std::from_chars(device.data() + 5, end, index).ptr != end ||
      index < 0) {
    throw Failure(fmt::format("--device: {} is none of cpu, cuda, cuda:N", device));
  }
  return index;
}

std::unique_ptr<cases::Gpu> open_gpu(const std::string& device) {
  const int index = gpu_index(device);
  if (index < 0) throw Failure(fmt::format("--device: {} is not a GPU", device));
  try {
    return std::make_unique<cases::Gpu>(index);
  } catch (const std::runtime_error& error) {
    throw Failure(fmt::format("--device: {}: {}", device, error.what()));
  }
}

}  // namespace tegula::program
