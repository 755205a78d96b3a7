// SPDX-License-Identifier: Apache-2.0
#include "src/io/safetensors_header.hpp"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace tegula::io {
namespace {

using nlohmann::json;

// Bound what the parsed form of a hostile header costs to about the header's own size.
constexpr std::size_t kMaxTensors = std::size_t{1} << 17;
constexpr std::size_t kMaxMetadata = std::size_t{1} << 16;

struct DtypeCode {
  std::string_view code;
  Dtype dtype;
};

constexpr DtypeCode kDtypeCodes[] = {
    {"F64", Dtype::kF64},   {"F32", Dtype::kF32},        {"F16", Dtype::kF16},
    {"BF16", Dtype::kBf16}, {"F8_E4M3", Dtype::kF8E4m3}, {"F8_E5M2", Dtype::kF8E5m2},
    {"I64", Dtype::kI64},   {"I32", Dtype::kI32},        {"I16", Dtype::kI16},
    {"I8", Dtype::kI8},     {"U64", Dtype::kU64},        {"U32", Dtype::kU32},
    {"U16", Dtype::kU16},   {"U8", Dtype::kU8},          {"BOOL", Dtype::kBool},
};

// Takes the parser's events and knows the one shape that a header may have, so that nesting deeper
// than it, and any other surprise, ends the parse at the event where it shows.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::string& file_name) : file_name_(file_name) {}

  SafetensorsHeader take() { return std::move(header_); }

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
      (offsets_seen_++ == 0 ? header_.ranges.back().begin : header_.ranges.back().end) = value;
    } else {
      unexpected(std::to_string(value));
    }
    return true;
  }

  bool string(string_t& text) override {
    if (state_ == State::kMetadataValue) {
      if (header_.metadata.size() == kMaxMetadata)
        fail("has more than " + std::to_string(kMaxMetadata) + " entries");
      if (!header_.metadata.emplace(metadata_key_, std::move(text)).second)
        fail("key " + quote(metadata_key_) + " stands twice");
      state_ = State::kMetadata;
    } else if (state_ == State::kDtype) {
      for (const DtypeCode& row : kDtypeCodes)
        if (row.code == text) dtype_ = row.dtype;
      if (!dtype_) fail("dtype " + quote(text) + " is not supported");
      state_ = State::kTensor;
    } else {
      unexpected("the string " + quote(text));
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
      if (header_.arrays.size() == kMaxTensors)
        fail_file("header: has more than " + std::to_string(kMaxTensors) + " tensors");
      header_.arrays.emplace_back().name = std::move(text);
      header_.ranges.emplace_back();
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

  Array& array() { return header_.arrays.back(); }

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
      fail("unknown field " + quote(field));
    }
    if (twice) fail("field " + quote(field) + " stands twice");
  }

  std::string where() const {
    switch (state_) {
      case State::kStart:
      case State::kTop:
      case State::kEnd: return "header";
      case State::kMetadataStart:
      case State::kMetadata: return "__metadata__";
      case State::kMetadataValue: return "__metadata__: value of " + quote(metadata_key_);
      default: return "tensor " + quote(header_.arrays.back().name);
    }
  }

  std::string_view wanted() const {
    switch (state_) {
      case State::kMetadataValue: return "a string";
      case State::kDtype: return "a dtype string";
      case State::kShapeStart: return "the array of shape";
      case State::kOffsetsStart: return "the array of data_offsets";
      case State::kShape: return "an extent of shape (an integer >= 0)";
      case State::kOffsets: return "a data offset (an integer >= 0)";
      default: return "an object";
    }
  }

  [[noreturn]] void unexpected(std::string_view found) const {
    fail("expected " + std::string(wanted()) + ", found " + printable(found));
  }
  [[noreturn]] void fail(const std::string& text) const { fail_file(where() + ": " + text); }
  [[noreturn]] void fail_file(const std::string& text) const {
    throw FileError(file_name_ + ": " + text);
  }

  const std::string& file_name_;
  SafetensorsHeader header_;
  State state_ = State::kStart;
  std::string metadata_key_;
  bool metadata_seen_ = false;
  std::optional<Dtype> dtype_;
  bool shape_seen_ = false;
  bool range_seen_ = false;
  int offsets_seen_ = 0;
};

}  // namespace

SafetensorsHeader read_safetensors_header(std::string_view text, const std::string& file_name) {
  HeaderReader reader(file_name);
  json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

std::string_view safetensors_dtype_code(Dtype dtype) {
  for (const DtypeCode& row : kDtypeCodes)
    if (row.dtype == dtype) return row.code;
  return {};
}

}  // namespace tegula::io
