// SPDX-License-Identifier: Apache-2.0
// What both file targets demand of a reader, whatever the bytes are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/io/array.hpp"
#include "tests/fuzz/input.hpp"

namespace tegula::fuzz {

// Parses `bytes`; demands arrays inside them, or a FileError with one printable line. Returns
// whether they were accepted.
template <typename Parse>
bool parse_and_check(std::span<const std::byte> bytes, Parse&& parse) {
  try {
    const std::vector<io::Array> arrays = parse(bytes);
    std::size_t total = 0;
    for (const io::Array& array : arrays) {
      require(io::byte_count(array.dtype, array.shape) == array.bytes);
      if (array.bytes == 0) continue;
      require(array.data >= bytes.data() && array.bytes <= bytes.size());
      require(static_cast<std::size_t>(array.data - bytes.data()) <= bytes.size() - array.bytes);
      total += array.bytes;
    }
    require(total <= bytes.size());  // they do not overlap
    return true;
  } catch (const io::FileError& error) {
    const std::string text = error.what();
    require(!text.empty() && text.size() < 1000);
    for (char c : text) require(c >= 0x20 && c < 0x7f);
    return false;
  }
}

}  // namespace tegula::fuzz
