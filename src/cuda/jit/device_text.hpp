// SPDX-License-Identifier: Apache-2.0
// The files of device/, as they were when the library was built (cmake/EmbedDeviceText.cmake writes
// the source).
#pragma once

#include <span>
#include <string_view>

namespace tegula::cuda {

struct DeviceText {
  const char* name;  // from the root of the tree: "device/abi/forward.hpp"
  const char* text;  // ends with a 0 that size does not count
  std::size_t size;
};

// In the order of their names.
std::span<const DeviceText> device_texts();
// nullptr: there is none.
const DeviceText* find_device_text(std::string_view name);

}  // namespace tegula::cuda
