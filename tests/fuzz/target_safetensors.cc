// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "src/io/safetensors.hpp"
#include "tests/fuzz/check_arrays.hpp"

namespace {

std::vector<tegula::io::Array> parse(std::span<const std::byte> bytes) {
  return tegula::io::parse_safetensors(bytes, "f").arrays;
}

}  // namespace

// First the bytes as they are, then with the header's length made right for the rest, which a
// mutator hardly ever hits once it has inserted a byte: the header ends after its last '}'.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  if (tegula::fuzz::parse_and_check(bytes, parse) || size < 8) return 0;
  std::vector<std::byte> repaired(bytes.begin(), bytes.end());
  const auto last = std::find(repaired.rbegin(), repaired.rend() - 8, std::byte{'}'});
  const auto length = static_cast<std::uint64_t>(repaired.rend() - last - 8);
  std::memcpy(repaired.data(), &length, 8);
  tegula::fuzz::parse_and_check(repaired, parse);
  return 0;
}
