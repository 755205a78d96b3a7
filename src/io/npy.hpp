// SPDX-License-Identifier: Apache-2.0
// The npy format of NumPy, versions 1.0, 2.0 and 3.0: one array a file.
//
// Refused by name: big-endian and structured types, types without a counterpart in Dtype (complex,
// long double, strings, objects, the raw '|V2' that bf16 arrays are saved as), Fortran order unless
// at most one extent exceeds 1 (there it is the same as C order), bytes after the array, headers
// over 1 MiB.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "src/io/array.hpp"
#include "src/io/file.hpp"

namespace tegula::io {

bool is_npy(std::span<const std::byte> file);  // starts with the format's magic bytes

// Pure: reads `file` and nothing else. `file_name` is for messages. Throws FileError. The array has
// no name and points into `file`.
Array parse_npy(std::span<const std::byte> file, std::string_view file_name = "npy");

struct NpyFile {
  MappedFile file;
  Array array;  // points into `file`
};

NpyFile load_npy(const std::filesystem::path& path);

// Version 1.0. The format has no bf16 and no 8-bit floats: FileError, write safetensors instead.
void write_npy(const std::filesystem::path& path, const Array& array);

}  // namespace tegula::io
