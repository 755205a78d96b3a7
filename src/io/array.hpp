// SPDX-License-Identifier: Apache-2.0
// What a file of tensors gives: typed, shaped views of bytes, and the one exception of the readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tegula::io {

// Every reader and writer of this folder throws this and nothing else for a file it cannot take
// (std::bad_alloc aside). what() is one printable ASCII line: file, field, both values.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Dtype : std::uint8_t {
  kF64,
  kF32,
  kF16,
  kBf16,
  kF8E4m3,
  kF8E5m2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

std::size_t dtype_bytes(Dtype dtype);      // bytes of one element
std::string_view dtype_name(Dtype dtype);  // "f32", "bf16", "f8_e4m3", "i64", "bool", ...
std::optional<Dtype> dtype_from_name(std::string_view name);

// A row-major, gap-free, little-endian array. Does not own its bytes: they live as long as the file
// object or buffer that it was parsed from. A file may place data at any byte, so ask is_aligned()
// before a cast of `data`.
struct Array {
  std::string name;  // empty for npy
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;  // each >= 0; empty for a scalar
  const std::byte* data = nullptr;  // may be null when bytes == 0
  std::size_t bytes = 0;            // = product of shape times dtype_bytes(dtype), checked

  std::int64_t elements() const { return static_cast<std::int64_t>(bytes / dtype_bytes(dtype)); }
  bool is_aligned() const {
    return reinterpret_cast<std::uintptr_t>(data) % dtype_bytes(dtype) == 0;
  }
};

// Product of shape times the element size; nullopt if it exceeds INT64_MAX or an extent is
// negative. An array with an extent of 0 is empty, whatever the others are.
std::optional<std::size_t> byte_count(Dtype dtype, const std::vector<std::int64_t>& shape);

std::string shape_text(const std::vector<std::int64_t>& shape);  // "[2, 3]"

// Text from a file as it may stand in a message: printable ASCII, the rest as \xNN, at most
// `limit` bytes of it and then "...".
std::string printable(std::string_view text, std::size_t limit = 80);
std::string quote(std::string_view text);  // printable, in single quotes

// For writers: throws FileError, "<where>: has B bytes, but ...", where an array contradicts
// itself.
void check_consistent(const Array& array, const std::string& where);

inline constexpr std::size_t kMaxRank = 32;  // more dimensions than any tensor, few enough to print

}  // namespace tegula::io
