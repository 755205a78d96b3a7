// SPDX-License-Identifier: Apache-2.0
#include "src/io/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

namespace tegula::io {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
// Bound what the parsed form of a hostile header costs to about the header's own size.
constexpr std::size_t kMaxTensors = std::size_t{1} << 20;
constexpr std::size_t kMaxMetadata = std::size_t{1} << 16;
constexpr std::string_view kMetadataKey = "__metadata__";

struct DtypeCode {
  std::string_view code;
  Dtype dtype;
};

constexpr DtypeCode kDtypeCodes[] = {
    {"F64", Dtype::kF64},        {"F32", Dtype::kF32},        {"F16", Dtype::kF16},
    {"BF16", Dtype::kBf16},      {"F8_E4M3", Dtype::kF8E4m3}, {"F8_E5M2", Dtype::kF8E5m2},
    {"I64", Dtype::kI64},        {"I32", Dtype::kI32},        {"I16", Dtype::kI16},
    {"I8", Dtype::kI8},          {"U64", Dtype::kU64},        {"U32", Dtype::kU32},
    {"U16", Dtype::kU16},        {"U8", Dtype::kU8},          {"BOOL", Dtype::kBool},
};

std::string quoted(std::string_view text) { return "'" + printable(text) + "'"; }

struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

// Takes the parser's events and knows the one shape that a header may have, so that nesting deeper
// than it, and any other surprise, ends the parse at the event where it shows.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(std::string_view file_name) : file_name_(file_name) {}

  std::vector<Array> arrays;
  std::vector<Range> ranges;  // of the data section, one for each of arrays, not yet checked
  Metadata metadata;

  bool null() override { unexpected("null"); }
  bool boolean(bool value) override { unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { unexpected(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { unexpected(text); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        fail("extent " + std::to_string(value) + " exceeds 2^63 - 1");
      if (array().shape.size() == kMaxRank)
        fail("has more than " + std::to_string(kMaxRank) + " dimensions");
      array().shape.push_back(static_cast<std::int64_t>(value));
    } else if (state_ == State::kOffsets) {
      if (offsets_seen_ == 2) fail("data_offsets has more than 2 numbers");
      (offsets_seen_++ == 0 ? ranges.back().begin : ranges.back().end) = value;
    } else {
      unexpected(std::to_string(value));
    }
    return true;
  }

  bool string(string_t& text) override {
    if (state_ == State::kMetadataValue) {
      if (metadata.size() == kMaxMetadata)
        fail("has more than " + std::to_string(kMaxMetadata) + " entries");
      if (!metadata.emplace(metadata_key_, std::move(text)).second)
        fail("key " + quoted(metadata_key_) + " stands twice");
      state_ = State::kMetadata;
    } else if (state_ == State::kDtype) {
      for (const DtypeCode& row : kDtypeCodes)
        if (row.code == text) dtype_ = row.dtype;
      if (!dtype_) fail("dtype " + quoted(text) + " is not supported");
      state_ = State::kTensor;
    } else {
      unexpected("the string " + quoted(text));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kMetadataStart) {
      state_ = State::kMetadata;
    } else if (state_ == State::kTensorStart) {
      dtype_.reset();
      shape_seen_ = false;
      range_seen_ = false;
      state_ = State::kTensor;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      if (!dtype_) fail("has no dtype");
      if (!shape_seen_) fail("has no shape");
      if (!range_seen_) fail("has no data_offsets");
      array().dtype = *dtype_;
    }
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

  bool key(string_t& text) override {
    if (state_ == State::kMetadata) {
      metadata_key_ = std::move(text);
      state_ = State::kMetadataValue;
    } else if (state_ == State::kTensor) {
      tensor_field(text);
    } else if (text == kMetadataKey) {
      if (std::exchange(metadata_seen_, true)) fail_file("header: __metadata__ stands twice");
      state_ = State::kMetadataStart;
    } else {
      if (arrays.size() == kMaxTensors)
        fail_file("header: has more than " + std::to_string(kMaxTensors) + " tensors");
      arrays.emplace_back().name = std::move(text);
      ranges.emplace_back();
      state_ = State::kTensorStart;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kShapeStart && state_ != State::kOffsetsStart) unexpected("an array");
    state_ = state_ == State::kShapeStart ? State::kShape : State::kOffsets;
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets && offsets_seen_ != 2)
      fail("data_offsets has " + std::to_string(offsets_seen_) + " numbers instead of 2");
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The parser's text starts with its own bracketed code and position.
    std::string_view reason = error.what();
    const std::size_t start = reason.find(": ");
    if (start != std::string_view::npos) reason.remove_prefix(start + 2);
    fail_file("header: byte " + std::to_string(position) + ": " + printable(reason, 200));
  }

 private:
  enum class State {
    kStart,
    kTop,            // between tensors
    kMetadataStart,  // after "__metadata__":
    kMetadata,
    kMetadataValue,
    kTensorStart,  // after the name of a tensor
    kTensor,       // between its fields
    kDtype,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kEnd,
  };

  Array& array() { return arrays.back(); }

  void tensor_field(std::string_view field) {
    bool twice = false;
    if (field == "dtype") {
      twice = dtype_.has_value();
      state_ = State::kDtype;
    } else if (field == "shape") {
      twice = std::exchange(shape_seen_, true);
      state_ = State::kShapeStart;
    } else if (field == "data_offsets") {
      twice = std::exchange(range_seen_, true);
      offsets_seen_ = 0;
      state_ = State::kOffsetsStart;
    } else {
      fail("unknown field " + quoted(field));
    }
    if (twice) fail("field " + quoted(field) + " stands twice");
  }

  std::string where() const {
    switch (state_) {
      case State::kStart:
      case State::kTop:
      case State::kEnd:
        return "header";
      case State::kMetadataStart:
      case State::kMetadata:
        return "__metadata__";
      case State::kMetadataValue:
        return "__metadata__: value of " + quoted(metadata_key_);
      default:
        return "tensor " + quoted(arrays.back().name);
    }
  }

  std::string_view wanted() const {
    switch (state_) {
      case State::kMetadataValue:
        return "a string";
      case State::kDtype:
        return "a dtype string";
      case State::kShapeStart:
        return "the array of shape";
      case State::kOffsetsStart:
        return "the array of data_offsets";
      case State::kShape:
        return "an extent of shape (an integer >= 0)";
      case State::kOffsets:
        return "a data offset (an integer >= 0)";
      default:
        return "an object";
    }
  }

  [[noreturn]] void unexpected(std::string_view found) const {
    fail("expected " + std::string(wanted()) + ", found " + printable(found));
  }
  [[noreturn]] void fail(const std::string& text) const { fail_file(where() + ": " + text); }
  [[noreturn]] void fail_file(const std::string& text) const {
    throw FileError(std::string(file_name_) + ": " + text);
  }

  std::string_view file_name_;
  State state_ = State::kStart;
  std::string metadata_key_;
  bool metadata_seen_ = false;
  std::optional<Dtype> dtype_;
  bool shape_seen_ = false;
  bool range_seen_ = false;
  int offsets_seen_ = 0;
};

std::string range_text(const Range& range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + "]";
}

// Sets data and bytes of every array, in the order of the data.
void place(HeaderReader& header, std::span<const std::byte> data, const std::string& file_name) {
  std::vector<std::size_t> order(header.arrays.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Range &x = header.ranges[a], &y = header.ranges[b];
    return std::tie(x.begin, x.end, a) < std::tie(y.begin, y.end, b);
  });
  std::vector<Array> placed;
  placed.reserve(order.size());
  std::uint64_t next = 0;  // first byte of the data section that no tensor has claimed yet
  for (std::size_t i : order) {
    Array& array = header.arrays[i];
    const Range& range = header.ranges[i];
    const auto fail = [&](const std::string& text) {
      throw FileError(file_name + ": tensor " + quoted(array.name) + ": data_offsets " +
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

void refuse_duplicates(const std::vector<Array>& arrays, const std::string& file_name) {
  std::vector<std::string_view> names;
  names.reserve(arrays.size());
  for (const Array& array : arrays) names.push_back(array.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    throw FileError(file_name + ": tensor " + quoted(*twice) + " stands twice");
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
    text += (shown++ == 0 ? "" : ", ") + quoted(entry.first);
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
    throw FileError(name + ": header length: " + std::to_string(length) +
                    " exceeds the limit of " + std::to_string(kMaxHeaderBytes));
  if (length > file.size() - kLengthBytes)
    throw FileError(name + ": header length: " + std::to_string(length) + " exceeds the " +
                    std::to_string(file.size() - kLengthBytes) + " bytes after it");
  const char* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  if (length == 0 || text[0] != '{')
    throw FileError(name + ": header: does not start with '{'");
  // The parser would take a NUL for the end of the text and ignore what follows it.
  if (std::memchr(text, '\0', length) != nullptr)
    throw FileError(name + ": header: holds a NUL byte");

  HeaderReader header(name);
  json::sax_parse(text, text + length, &header);
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
  throw FileError(path_ + ": has no tensor " + quoted(name) + what_there_is(index_));
}

const std::string& SafetensorsFile::metadata_at(std::string_view key) const {
  const auto found = view_.metadata.find(key);
  if (found != view_.metadata.end()) return found->second;
  throw FileError(path_ + ": __metadata__ has no key " + quoted(key) +
                  what_there_is(view_.metadata));
}

void write_safetensors(const std::filesystem::path& path, std::span<const Array> arrays,
                       const Metadata& metadata) {
  const std::string name = printable(path.native(), 300);
  std::vector<const Array*> order;
  for (const Array& array : arrays) order.push_back(&array);
  std::stable_sort(order.begin(), order.end(), [](const Array* a, const Array* b) {
    return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::uint64_t offset = 0;
  for (const Array* array : order) {
    const std::string label = name + ": tensor " + quoted(array->name);
    const std::optional<std::size_t> bytes = byte_count(array->dtype, array->shape);
    if (bytes != array->bytes)
      throw FileError(label + ": has " + std::to_string(array->bytes) + " bytes, but " +
                      std::string(dtype_name(array->dtype)) + " " + shape_text(array->shape) +
                      " needs " + (bytes ? std::to_string(*bytes) : "more than 2^63 - 1"));
    if (array->shape.size() > kMaxRank)
      throw FileError(label + ": has " + std::to_string(array->shape.size()) +
                      " dimensions, the limit is " + std::to_string(kMaxRank));
    if (array->name == kMetadataKey) throw FileError(label + ": the name is reserved");
    const auto code = std::find_if(std::begin(kDtypeCodes), std::end(kDtypeCodes),
                                   [&](const DtypeCode& row) { return row.dtype == array->dtype; });
    header[array->name] = {{"dtype", code->code},
                           {"shape", array->shape},
                           {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  const std::size_t entries = order.size() + (metadata.empty() ? 0 : 1);
  if (header.size() != entries) {
    std::vector<Array> copies(arrays.begin(), arrays.end());
    refuse_duplicates(copies, name);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {  // a name or a value is not UTF-8
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
