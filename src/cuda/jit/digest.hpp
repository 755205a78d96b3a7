// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): names compiled kernels, and tells a whole cache entry from a torn one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tegula::cuda {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void add(const void* data, size_t bytes);
  // The text and its length, so that the border between two texts counts.
  void add_field(std::string_view text);
  Digest finish();  // once

 private:
  void block(const uint8_t* data);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> rest_{};
  uint64_t bytes_ = 0;
};

std::string hex(const Digest& digest);

}  // namespace tegula::cuda
