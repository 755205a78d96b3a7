// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes of header length (little-endian), a JSON header, the data.
//
// As strict as the reference reader: the header starts with '{' and is at most 100,000,000 bytes,
// the tensors' ranges cover the data section from its first byte to its last without gap or
// overlap, and each range has the size that dtype and shape ask for. Beyond it, these are refused:
// names and metadata keys that stand twice, fields of a tensor other than dtype, shape and
// data_offsets, more than kMaxRank dimensions, more than 2^17 tensors or 2^16 metadata entries, and
// dtypes without whole bytes (F4, F6_*) or without a use here (F8_E8M0, C64).
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/array.hpp"
#include "src/io/file.hpp"

namespace tegula::io {

using Metadata = std::map<std::string, std::string, std::less<>>;

struct SafetensorsView {
  std::vector<Array> arrays;  // in the order of their data, pointing into the parsed bytes
  Metadata metadata;
};

// Pure: reads `file` and nothing else. `file_name` is for messages. Throws FileError.
SafetensorsView parse_safetensors(std::span<const std::byte> file,
                                  std::string_view file_name = "safetensors");

class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::vector<Array>& arrays() const { return view_.arrays; }
  const Metadata& metadata() const { return view_.metadata; }

  const Array* find(std::string_view name) const;  // null if there is none
  // Throw FileError when there is none, naming some of those that the file has.
  const Array& at(std::string_view name) const;
  const std::string& metadata_at(std::string_view key) const;

 private:
  MappedFile file_;
  SafetensorsView view_;
  std::map<std::string_view, std::size_t> index_;  // views of the names in view_.arrays
  std::string path_;
};

// Widest elements first, so that every array is aligned to its element within the file; otherwise
// in the order given. Throws FileError, also for arrays that contradict themselves.
void write_safetensors(const std::filesystem::path& path, std::span<const Array> arrays,
                       const Metadata& metadata = {});

}  // namespace tegula::io
