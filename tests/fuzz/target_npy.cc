// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "src/io/npy.hpp"
#include "tests/fuzz/check_arrays.hpp"

namespace {

std::vector<tegula::io::Array> parse(std::span<const std::byte> bytes) {
  return {tegula::io::parse_npy(bytes, "f")};
}

}  // namespace

// First the bytes as they are, then with the magic, a version and a header length that ends after
// the last '}' put in front, which a mutator would rarely keep consistent.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  if (tegula::fuzz::parse_and_check(bytes, parse) || size < 10) return 0;
  std::vector<std::byte> repaired(bytes.begin(), bytes.end());
  constexpr unsigned char kStart[] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
  std::copy(std::begin(kStart), std::end(kStart),
            reinterpret_cast<unsigned char*>(repaired.data()));
  const auto last = std::find(repaired.rbegin(), repaired.rend() - 10, std::byte{'}'});
  const auto length = static_cast<std::size_t>(repaired.rend() - last - 10);
  repaired[8] = static_cast<std::byte>(length & 0xff);
  repaired[9] = static_cast<std::byte>(length >> 8 & 0xff);
  tegula::fuzz::parse_and_check(repaired, parse);
  return 0;
}
