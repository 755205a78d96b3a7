// SPDX-License-Identifier: Apache-2.0
#include "src/io/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "src/io/safetensors_header.hpp"

namespace tegula::io {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

std::string range_text(const ByteRange& range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + "]";
}

// Sets data and bytes of every array, in the order of the data.
void place(SafetensorsHeader& header, std::span<const std::byte> data,
           const std::string& file_name) {
  std::vector<std::size_t> order(header.arrays.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const ByteRange &x = header.ranges[a], &y = header.ranges[b];
    return std::tie(x.begin, x.end, a) < std::tie(y.begin, y.end, b);
  });
  std::vector<Array> placed;
  placed.reserve(order.size());
  std::uint64_t next = 0;  // first byte of the data section that no tensor has claimed yet
  for (std::size_t i : order) {
    Array& array = header.arrays[i];
    const ByteRange& range = header.ranges[i];
    const auto fail = [&](const std::string& text) {
      throw FileError(file_name + ": tensor " + quote(array.name) + ": data_offsets " +
                      range_text(range) + " " + text);
    };
    if (range.end < range.begin) fail("decrease");
    if (range.end > data.size())
      fail("end past the " + std::to_string(data.size()) + " bytes of data");
    if (range.begin < next) fail("overlap the tensor that ends at " + std::to_string(next));
    if (range.begin > next) fail("leave a gap after byte " + std::to_string(next));
    const std::optional<std::size_t> bytes = byte_count(array.dtype, array.shape);
    const std::string needs =
        std::string(dtype_name(array.dtype)) + " " + shape_text(array.shape) + " needs ";
    if (!bytes) fail("cannot hold it: " + needs + "more than 2^63 - 1 bytes");
    if (*bytes != range.end - range.begin)
      fail("hold " + std::to_string(range.end - range.begin) + " bytes, but " + needs +
           std::to_string(*bytes));
    array.data = data.data() + range.begin;
    array.bytes = *bytes;
    next = range.end;
    placed.push_back(std::move(array));
  }
  if (next != data.size())
    throw FileError(file_name + ": the tensors end at byte " + std::to_string(next) +
                    " of the data, which has " + std::to_string(data.size()));
  header.arrays = std::move(placed);
}

void refuse_duplicates(std::span<const Array> arrays, const std::string& file_name) {
  std::vector<std::string_view> names;
  names.reserve(arrays.size());
  for (const Array& array : arrays) names.push_back(array.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    throw FileError(file_name + ": tensor " + quote(*twice) + " stands twice");
}

// "; the file has 'a', 'b', 'c' and 12 more"
template <typename Names>
std::string what_there_is(const Names& names) {
  constexpr std::size_t kShown = 8;
  if (names.empty()) return "; the file has none";
  std::string text = "; the file has ";
  std::size_t shown = 0;
  for (const auto& entry : names) {
    if (shown == kShown) break;
    text += (shown++ == 0 ? "" : ", ") + quote(entry.first);
  }
  if (names.size() > shown) text += " and " + std::to_string(names.size() - shown) + " more";
  return text;
}

}  // namespace

SafetensorsView parse_safetensors(std::span<const std::byte> file, std::string_view file_name) {
  const std::string name = printable(file_name, 300);
  if (file.size() < kLengthBytes)
    throw FileError(name + ": header length: the file has " + std::to_string(file.size()) +
                    " bytes, the length alone needs 8");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes)
    throw FileError(name + ": header length: " + std::to_string(length) + " exceeds the limit of " +
                    std::to_string(kMaxHeaderBytes));
  if (length > file.size() - kLengthBytes)
    throw FileError(name + ": header length: " + std::to_string(length) + " exceeds the " +
                    std::to_string(file.size() - kLengthBytes) + " bytes after it");
  const char* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  if (length == 0 || text[0] != '{') throw FileError(name + ": header: does not start with '{'");
  // The parser would take a NUL for the end of the text and ignore what follows it.
  if (std::memchr(text, '\0', length) != nullptr)
    throw FileError(name + ": header: holds a NUL byte");

  SafetensorsHeader header = read_safetensors_header({text, length}, name);
  place(header, file.subspan(kLengthBytes + length), name);
  refuse_duplicates(header.arrays, name);
  return {std::move(header.arrays), std::move(header.metadata)};
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile out;
  out.path_ = printable(path.native(), 300);
  out.file_ = MappedFile(path);
  out.view_ = parse_safetensors(out.file_.bytes(), path.native());
  const std::vector<Array>& arrays = out.view_.arrays;
  for (std::size_t i = 0; i < arrays.size(); ++i) out.index_.emplace(arrays[i].name, i);
  return out;
}

const Array* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &view_.arrays[found->second];
}

const Array& SafetensorsFile::at(std::string_view name) const {
  if (const Array* array = find(name)) return *array;
  throw FileError(path_ + ": has no tensor " + quote(name) + what_there_is(index_));
}

const std::string& SafetensorsFile::metadata_at(std::string_view key) const {
  const auto found = view_.metadata.find(key);
  if (found != view_.metadata.end()) return found->second;
  throw FileError(path_ + ": __metadata__ has no key " + quote(key) +
                  what_there_is(view_.metadata));
}

void write_safetensors(const std::filesystem::path& path, std::span<const Array> arrays,
                       const Metadata& metadata) {
  const std::string name = printable(path.native(), 300);
  refuse_duplicates(arrays, name);
  std::vector<const Array*> order;
  for (std::size_t width : {8, 4, 2, 1})
    for (const Array& array : arrays)
      if (dtype_bytes(array.dtype) == width) order.push_back(&array);

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::uint64_t offset = 0;
  for (const Array* array : order) {
    const std::string label = name + ": tensor " + quote(array->name);
    check_consistent(*array, label);
    if (array->name == kMetadataKey) throw FileError(label + ": the name is reserved");
    header[array->name] = {{"dtype", safetensors_dtype_code(array->dtype)},
                           {"shape", array->shape},
                           {"data_offsets", {offset, offset + array->bytes}}};
    offset += array->bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {  // a name or a value is not UTF-8
    throw FileError(name + ": header: " + printable(error.what(), 200));
  }
  constexpr std::size_t kDataAlignment = 64;  // of the data section within the file; the format
                                              // asks for none, spaces may end the header
  text.append((kDataAlignment - (kLengthBytes + text.size()) % kDataAlignment) % kDataAlignment,
              ' ');
  if (text.size() > kMaxHeaderBytes)
    throw FileError(name + ": header length: " + std::to_string(text.size()) +
                    " exceeds the limit of " + std::to_string(kMaxHeaderBytes));

  OutputFile file(path);
  const std::uint64_t length = text.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const Array* array : order) file.write({array->data, array->bytes});
  file.commit();
}

}  // namespace tegula::io
