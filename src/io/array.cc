// SPDX-License-Identifier: Apache-2.0
#include "src/io/array.hpp"

#include <array>
#include <bit>
#include <limits>

namespace tegula::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "both formats are read in place as little-endian");

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array kDtypes = {
    DtypeRow{Dtype::kF64, "f64", 8},        DtypeRow{Dtype::kF32, "f32", 4},
    DtypeRow{Dtype::kF16, "f16", 2},        DtypeRow{Dtype::kBf16, "bf16", 2},
    DtypeRow{Dtype::kF8E4m3, "f8_e4m3", 1}, DtypeRow{Dtype::kF8E5m2, "f8_e5m2", 1},
    DtypeRow{Dtype::kI64, "i64", 8},        DtypeRow{Dtype::kI32, "i32", 4},
    DtypeRow{Dtype::kI16, "i16", 2},        DtypeRow{Dtype::kI8, "i8", 1},
    DtypeRow{Dtype::kU64, "u64", 8},        DtypeRow{Dtype::kU32, "u32", 4},
    DtypeRow{Dtype::kU16, "u16", 2},        DtypeRow{Dtype::kU8, "u8", 1},
    DtypeRow{Dtype::kBool, "bool", 1},
};

constexpr bool rows_follow_the_enum() {
  for (std::size_t i = 0; i < kDtypes.size(); ++i)
    if (static_cast<std::size_t>(kDtypes[i].dtype) != i) return false;
  return true;
}
static_assert(rows_follow_the_enum());

const DtypeRow& row_of(Dtype dtype) {
  return kDtypes[static_cast<std::size_t>(dtype)];
}

}  // namespace

std::size_t dtype_bytes(Dtype dtype) {
  return row_of(dtype).bytes;
}

std::string_view dtype_name(Dtype dtype) {
  return row_of(dtype).name;
}

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (const DtypeRow& row : kDtypes)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::optional<std::size_t> byte_count(Dtype dtype, const std::vector<std::int64_t>& shape) {
  constexpr auto kLimit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  bool empty = false;
  for (std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    empty = empty || extent == 0;
  }
  if (empty) return 0;
  std::uint64_t bytes = dtype_bytes(dtype);
  for (std::int64_t extent : shape) {
    if (bytes > kLimit / static_cast<std::uint64_t>(extent)) return std::nullopt;
    bytes *= static_cast<std::uint64_t>(extent);
  }
  return static_cast<std::size_t>(bytes);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string printable(std::string_view text, std::size_t limit) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i == limit) return out + "...";
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c < 0x7f) {
      out += text[i];
    } else {
      out += "\\x";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
  return out;
}

std::string quote(std::string_view text) {
  return "'" + printable(text) + "'";
}

void check_consistent(const Array& array, const std::string& where) {
  if (array.shape.size() > kMaxRank)
    throw FileError(where + ": has " + std::to_string(array.shape.size()) +
                    " dimensions, the limit is " + std::to_string(kMaxRank));
  const std::optional<std::size_t> bytes = byte_count(array.dtype, array.shape);
  if (bytes != array.bytes)
    throw FileError(where + ": has " + std::to_string(array.bytes) + " bytes, but " +
                    std::string(dtype_name(array.dtype)) + " " + shape_text(array.shape) +
                    " needs " + (bytes ? std::to_string(*bytes) : "more than 2^63 - 1"));
}

}  // namespace tegula::io
