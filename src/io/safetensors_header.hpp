// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file, taken apart but not yet held against the data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/safetensors.hpp"

namespace tegula::io {

inline constexpr std::string_view kMetadataKey = "__metadata__";

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<Array> arrays;      // data and bytes not set
  std::vector<ByteRange> ranges;  // of the data section, one for each of arrays, as the file says
  Metadata metadata;
};

// `text` holds no NUL (the parser would stop there). Throws FileError; `file_name` is for messages.
SafetensorsHeader read_safetensors_header(std::string_view text, const std::string& file_name);

std::string_view safetensors_dtype_code(Dtype dtype);  // "F32", "BF16", ...

}  // namespace tegula::io
