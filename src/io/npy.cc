// SPDX-License-Identifier: Apache-2.0
#include "src/io/npy.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tegula::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeaderBytes = std::size_t{1} << 20;
constexpr std::size_t kHeaderAlignment = 64;  // NumPy's own, so that a mapped array is aligned

struct DtypeCode {
  std::string_view code;  // without the character of the byte order
  Dtype dtype;
};

constexpr DtypeCode kDtypeCodes[] = {
    {"f8", Dtype::kF64}, {"f4", Dtype::kF32}, {"f2", Dtype::kF16}, {"i8", Dtype::kI64},
    {"i4", Dtype::kI32}, {"i2", Dtype::kI16}, {"i1", Dtype::kI8},  {"u8", Dtype::kU64},
    {"u4", Dtype::kU32}, {"u2", Dtype::kU16}, {"u1", Dtype::kU8},  {"b1", Dtype::kBool},
};

// The header is a Python literal, {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
// This reads exactly such dictionaries: no expressions, no escapes, no nesting to speak of.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& file_name)
      : text_(text), file_name_(file_name) {}

  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;

  void read() {
    bool descr_seen = false, order_seen = false, shape_seen = false;
    expect('{', "header");
    while (!accept('}')) {
      const std::string key = read_string("header: key");
      expect(':', "header: " + quote(key));
      bool twice = false;
      if (key == "descr") {
        twice = std::exchange(descr_seen, true);
        if (peek() == '[') fail("descr", "a structured type is not supported");
        descr = read_string("descr");
      } else if (key == "fortran_order") {
        twice = std::exchange(order_seen, true);
        fortran_order = read_bool();
      } else if (key == "shape") {
        twice = std::exchange(shape_seen, true);
        read_shape();
      } else {
        fail("header", "unknown key " + quote(key));
      }
      if (twice) fail("header", "key " + quote(key) + " stands twice");
      if (peek() != '}') expect(',', "header");
    }
    if (peek() != '\0') fail("header", "ends before " + found());
    if (!descr_seen) fail("header", "has no descr");
    if (!order_seen) fail("header", "has no fortran_order");
    if (!shape_seen) fail("header", "has no shape");
  }

  [[noreturn]] void fail(const std::string& field, const std::string& text) const {
    throw FileError(file_name_ + ": " + field + ": " + text);
  }

 private:
  // Next character that is no white space; NUL at the end (a NUL in the text is refused before).
  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted, const std::string& field) {
    if (!accept(wanted)) fail(field, std::string("expected '") + wanted + "', found " + found());
  }
  std::string found() {
    if (peek() == '\0') return "the end of the header";
    return quote(text_.substr(at_, 16)) + " at byte " + std::to_string(at_);
  }

  std::string read_string(const std::string& field) {
    const char mark = peek();
    if (mark != '\'' && mark != '"') fail(field, "expected a string, found " + found());
    const std::size_t end = text_.find(mark, at_ + 1);
    if (end == text_.npos) fail(field, "the string " + found() + " does not end");
    const std::string_view body = text_.substr(at_ + 1, end - at_ - 1);
    if (body.find('\\') != body.npos) fail(field, quote(body) + " holds an escape");
    at_ = end + 1;
    return std::string(body);
  }

  bool read_bool() {
    peek();
    for (const std::string_view word : {"True", "False"}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return word == "True";
    }
    fail("fortran_order", "expected True or False, found " + found());
  }

  void read_shape() {
    expect('(', "shape");
    bool comma = false;
    while (!accept(')')) {
      if (!shape.empty() && !comma) fail("shape", "expected ',', found " + found());
      if (shape.size() == kMaxRank)
        fail("shape", "has more than " + std::to_string(kMaxRank) + " dimensions");
      shape.push_back(read_extent());
      comma = accept(',');
    }
    if (shape.size() == 1 && !comma) fail("shape", "is a number in brackets, not a tuple");
  }

  std::int64_t read_extent() {
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    peek();
    const std::size_t start = at_;
    std::int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const int digit = text_[at_] - '0';
      if (value > (kMax - digit) / 10) {
        const std::size_t end = text_.find_first_not_of("0123456789", start);
        fail("shape",
             "extent " + printable(text_.substr(start, end - start)) + " exceeds 2^63 - 1");
      }
      value = value * 10 + digit;
    }
    if (at_ == start) fail("shape", "expected an extent (an integer >= 0), found " + found());
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // as Python 2 wrote them
    return value;
  }

  std::string_view text_;
  const std::string& file_name_;
  std::size_t at_ = 0;
};

Dtype dtype_of(const HeaderReader& header) {
  const std::string& descr = header.descr;
  const char order = descr.empty() ? '\0' : descr.front();
  const std::string_view code = std::string_view(descr).substr(order == '\0' ? 0 : 1);
  for (const DtypeCode& row : kDtypeCodes) {
    if (row.code != code) continue;
    if (order == '>') header.fail("descr", quote(descr) + " is big-endian, which is not supported");
    // NumPy writes '|' where order has no meaning; '=' stands in files by others.
    if (order == '<' || order == '=' || (order == '|' && dtype_bytes(row.dtype) == 1))
      return row.dtype;
  }
  if (code.starts_with('V'))
    header.fail("descr", quote(descr) +
                             " is raw bytes and could be any type (bf16 and 8-bit "
                             "floats need a safetensors file)");
  header.fail("descr", "type " + quote(descr) + " is not supported");
}

}  // namespace

bool is_npy(std::span<const std::byte> file) {
  return file.size() >= kMagic.size() &&
         std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

Array parse_npy(std::span<const std::byte> file, std::string_view file_name) {
  const std::string name = printable(file_name, 300);
  const auto fail = [&](const std::string& text) -> void { throw FileError(name + ": " + text); };
  const auto byte_at = [&](std::size_t i) { return std::to_integer<std::size_t>(file[i]); };
  const std::string size = std::to_string(file.size());

  if (!is_npy(file)) fail("magic: does not start with \\x93NUMPY");
  if (file.size() < kMagic.size() + 2) fail("version: the file ends after " + size + " bytes");
  const std::size_t major = byte_at(6), minor = byte_at(7);
  if (major < 1 || major > 3 || minor != 0)
    fail("version: " + std::to_string(major) + "." + std::to_string(minor) +
         " is not 1.0, 2.0 or 3.0");
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t start = kMagic.size() + 2 + length_bytes;
  if (file.size() < start) fail("header length: the file ends after " + size + " bytes");
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= byte_at(8 + i) << (8 * i);
  if (length > kMaxHeaderBytes)
    fail("header length: " + std::to_string(length) + " exceeds the limit of " +
         std::to_string(kMaxHeaderBytes));
  if (length > file.size() - start)
    fail("header length: " + std::to_string(length) + " exceeds the " +
         std::to_string(file.size() - start) + " bytes after it");

  const std::string_view text(reinterpret_cast<const char*>(file.data()) + start, length);
  if (text.find('\0') != text.npos) fail("header: holds a NUL byte");
  HeaderReader header(text, name);
  header.read();

  Array array;
  array.dtype = dtype_of(header);
  array.shape = header.shape;
  const auto wide = std::count_if(array.shape.begin(), array.shape.end(),
                                  [](std::int64_t extent) { return extent > 1; });
  if (header.fortran_order && wide > 1)
    fail("fortran_order: True is not supported for shape " + shape_text(array.shape));
  const std::optional<std::size_t> bytes = byte_count(array.dtype, array.shape);
  const std::span<const std::byte> data = file.subspan(start + length);
  if (bytes != data.size())
    fail("shape: " + std::string(dtype_name(array.dtype)) + " " + shape_text(array.shape) +
         " needs " + (bytes ? std::to_string(*bytes) : "more than 2^63 - 1") +
         " bytes, the file has " + std::to_string(data.size()));
  array.data = data.data();
  array.bytes = data.size();
  return array;
}

NpyFile load_npy(const std::filesystem::path& path) {
  NpyFile out;
  out.file = MappedFile(path);
  out.array = parse_npy(out.file.bytes(), path.native());
  return out;
}

void write_npy(const std::filesystem::path& path, const Array& array) {
  const std::string name = printable(path.native(), 300);
  const auto code = std::find_if(std::begin(kDtypeCodes), std::end(kDtypeCodes),
                                 [&](const DtypeCode& row) { return row.dtype == array.dtype; });
  if (code == std::end(kDtypeCodes))
    throw FileError(name + ": descr: npy has no " + std::string(dtype_name(array.dtype)) +
                    "; write a safetensors file");
  check_consistent(array, name);
  std::string text = "{'descr': '";
  text += dtype_bytes(array.dtype) == 1 ? '|' : '<';
  text += std::string(code->code) + "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < array.shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(array.shape[i]);
  text += array.shape.size() == 1 ? ",), }" : "), }";
  const std::size_t prefix = kMagic.size() + 4;
  text.append((kHeaderAlignment - (prefix + text.size() + 1) % kHeaderAlignment) % kHeaderAlignment,
              ' ');
  text += '\n';

  const char lead[] = {'\x01', '\0', static_cast<char>(text.size() & 0xff),
                       static_cast<char>(text.size() >> 8)};
  OutputFile file(path);
  file.write(kMagic);
  file.write(std::string_view(lead, sizeof lead));
  file.write(text);
  file.write({array.data, array.bytes});
  file.commit();
}

}  // namespace tegula::io
