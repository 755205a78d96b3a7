// SPDX-License-Identifier: Apache-2.0
#include "src/io/safetensors.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/io/io_test_util.hpp"

namespace tegula::io {
namespace {

using namespace testing;

std::vector<Array> parse(std::span<const std::byte> file) {
  return parse_safetensors(file, "f").arrays;
}

std::string make_file(std::string_view header, std::string_view data = "") {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file.append(header).append(data);
}

// As the reference writer lays it out: metadata, an odd name, an empty tensor, a scalar.
std::string valid_file() {
  return make_file(
      R"({"__metadata__":{"model":"m"},"q":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("\u00e9":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
      R"("e":{"dtype":"F16","shape":[0,4],"data_offsets":[26,26]},)"
      R"("k":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[26,29]}}   )",
      "abcdefghijklmnopqrstuvwxyz012");
}

TEST(Safetensors, ReadsAValidFile) {
  const std::string file = valid_file();
  const SafetensorsView view = parse_safetensors(as_bytes(file));
  ASSERT_EQ(view.arrays.size(), 4u);
  EXPECT_EQ(view.metadata, (Metadata{{"model", "m"}}));
  const Array& q = view.arrays[0];
  EXPECT_EQ(q.name, "q");
  EXPECT_EQ(q.dtype, Dtype::kF32);
  EXPECT_EQ(q.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(q.bytes, 24u);
  EXPECT_EQ(q.elements(), 6);
  EXPECT_EQ(std::memcmp(q.data, "abcdefghijklmnopqrstuvwx", 24), 0);
  EXPECT_EQ(view.arrays[1].name, "\xc3\xa9");
  EXPECT_EQ(view.arrays[1].elements(), 1);
  EXPECT_EQ(view.arrays[2].name, "e");
  EXPECT_EQ(view.arrays[2].bytes, 0u);
  EXPECT_EQ(std::memcmp(view.arrays[3].data, "012", 3), 0);
}

TEST(Safetensors, ArraysComeInTheOrderOfTheirData) {
  const std::string file = make_file(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
                                     R"("a":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}})",
                                     "xy");
  const std::vector<Array> arrays = parse(as_bytes(file));
  ASSERT_EQ(arrays.size(), 2u);
  EXPECT_EQ(arrays[0].name, "a");
  EXPECT_EQ(arrays[1].name, "b");
}

TEST(Safetensors, FileWithoutTensors) {
  EXPECT_EQ(outcome(parse, make_file("{}")), "");
  EXPECT_EQ(outcome(parse, make_file("{}      ")), "");
}

struct BadFile {
  const char* name;
  std::string file;
  std::string text;
};

// One tensor, with its value given.
std::string one(std::string_view value, std::string_view data = "") {
  return make_file("{\"t\":" + std::string(value) + "}", data);
}

std::string length_only(std::uint64_t length, std::string_view rest) {
  std::string file = make_file("", rest);
  std::memcpy(file.data(), &length, 8);
  return file;
}

std::vector<BadFile> bad_files() {
  const std::string deep(200'000, '[');
  std::string deep_objects;
  for (int i = 0; i < 100'000; ++i) deep_objects += "{\"a\":";
  std::string wide_shape = "[";
  for (int i = 0; i < 33; ++i) wide_shape += i == 0 ? "1" : ",1";
  const std::string meta = R"({"__metadata__":)";
  return {
      {"Empty", "", "f: header length: the file has 0 bytes, the length alone needs 8"},
      {"SevenBytes", "1234567", "f: header length: the file has 7 bytes, the length alone needs 8"},
      {"LengthPastTheFile", length_only(3, "{}"),
       "f: header length: 3 exceeds the 2 bytes after it"},
      {"LengthPastTheLimit", length_only(100'000'001, "{}"),
       "f: header length: 100000001 exceeds the limit of 100000000"},
      {"LengthAllOnes", length_only(~0ull, "{}"),
       "f: header length: 18446744073709551615 exceeds the limit of 100000000"},
      {"NoHeader", make_file(""), "f: header: does not start with '{'"},
      {"LeadingSpace", make_file(" {}"), "f: header: does not start with '{'"},
      {"ByteOrderMark", make_file("\xef\xbb\xbf{}"), "f: header: does not start with '{'"},
      {"TopIsAnArray", make_file("[]"), "f: header: does not start with '{'"},
      {"NulAfterTheEnd", make_file(std::string_view("{}\0x", 4)), "f: header: holds a NUL byte"},
      {"TextAfterTheEnd", make_file("{} x"), "f: header: byte 4: syntax error"},
      {"TwoObjects", make_file("{}{}"), "f: header: byte 3: syntax error"},
      {"Comment", make_file("{/**/}"), "f: header: byte 2: syntax error"},
      {"Unfinished", make_file("{"), "f: header: byte 2: syntax error"},
      {"InvalidUtf8InAName", make_file("{\"\xff\":{}}"), "f: header: byte 3: syntax error"},
      {"SurrogateInAName", make_file("{\"\xed\xa0\x80\":{}}"), "f: header: byte 4: syntax error"},
      {"LoneEscapedSurrogate", make_file(R"({"\ud800":{}})"), "f: header: byte 9: syntax error"},
      {"NewlineInAName", make_file("{\"a\nb\":{}}"), "f: header: byte 4: syntax error"},
      {"DeepArrays", one(deep), "f: tensor 't': expected an object, found an array"},
      {"DeepObjects", make_file(deep_objects), "f: tensor 'a': unknown field 'a'"},
      {"DeepShape", one("{\"shape\":" + deep),
       "f: tensor 't': expected an extent of shape (an "
       "integer >= 0), found an array"},
      {"TensorIsNull", one("null"), "f: tensor 't': expected an object, found null"},
      {"TensorIsAString", one("\"x\""), "f: tensor 't': expected an object, found the string 'x'"},
      {"NoDtype", one(R"({"shape":[],"data_offsets":[0,0]})"), "f: tensor 't': has no dtype"},
      {"NoShape", one(R"({"dtype":"U8","data_offsets":[0,0]})"), "f: tensor 't': has no shape"},
      {"NoOffsets", one(R"({"dtype":"U8","shape":[]})"), "f: tensor 't': has no data_offsets"},
      {"DtypeTwice", one(R"({"dtype":"U8","dtype":"U8"})"),
       "f: tensor 't': field 'dtype' stands twice"},
      {"ShapeTwice", one(R"({"shape":[],"shape":[]})"),
       "f: tensor 't': field 'shape' stands twice"},
      {"OffsetsTwice", one(R"({"data_offsets":[0,0],"data_offsets":[0,0]})"),
       "f: tensor 't': field 'data_offsets' stands twice"},
      {"UnknownField", one(R"({"strides":[1]})"), "f: tensor 't': unknown field 'strides'"},
      {"UnknownDtype", one(R"({"dtype":"F4"})"), "f: tensor 't': dtype 'F4' is not supported"},
      {"LowerCaseDtype", one(R"({"dtype":"f32"})"), "f: tensor 't': dtype 'f32' is not supported"},
      {"DtypeIsANumber", one(R"({"dtype":1})"), "f: tensor 't': expected a dtype string, found 1"},
      {"ShapeIsANumber", one(R"({"shape":1})"),
       "f: tensor 't': expected the array of shape, found 1"},
      {"NegativeExtent", one(R"({"shape":[-1]})"),
       "f: tensor 't': expected an extent of shape (an integer >= 0), found -1"},
      {"FractionalExtent", one(R"({"shape":[1.5]})"),
       "f: tensor 't': expected an extent of shape (an integer >= 0), found 1.5"},
      {"ExponentExtent", one(R"({"shape":[1e2]})"),
       "f: tensor 't': expected an extent of shape (an integer >= 0), found 1e2"},
      {"ExtentPast64Bits", one(R"({"shape":[18446744073709551616]})"),
       "f: tensor 't': expected an extent of shape (an integer >= 0), found 18446744073709551616"},
      {"ExtentPast63Bits", one(R"({"shape":[9223372036854775808]})"),
       "f: tensor 't': extent 9223372036854775808 exceeds 2^63 - 1"},
      {"TooManyDimensions", one("{\"shape\":" + wide_shape + "]}"),
       "f: tensor 't': has more than 32 dimensions"},
      {"OneOffset", one(R"({"data_offsets":[0]})"),
       "f: tensor 't': data_offsets has 1 numbers instead of 2"},
      {"ThreeOffsets", one(R"({"data_offsets":[0,0,0]})"),
       "f: tensor 't': data_offsets has more than 2 numbers"},
      {"NegativeOffset", one(R"({"data_offsets":[-1,0]})"),
       "f: tensor 't': expected a data offset (an integer >= 0), found -1"},
      {"OffsetsDecrease", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", "x"),
       "f: tensor 't': data_offsets [1, 0] decrease"},
      {"OffsetsPastTheData", one(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})", "x"),
       "f: tensor 't': data_offsets [0, 2] end past the 1 bytes of data"},
      {"OffsetsFarPastTheData",
       one(R"({"dtype":"U8","shape":[2],"data_offsets":[18446744073709551613,18446744073709551615]})",
           "x"),
       "f: tensor 't': data_offsets [18446744073709551613, 18446744073709551615] end past the 1 "
       "bytes of data"},
      {"OffsetsLeaveAGap", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})", "xy"),
       "f: tensor 't': data_offsets [1, 2] leave a gap after byte 0"},
      {"OffsetsOverlap",
       make_file(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                 R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                 "xyz"),
       "f: tensor 'b': data_offsets [1, 3] overlap the tensor that ends at 2"},
      {"SameRangeTwice",
       make_file(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                 R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                 "xy"),
       "f: tensor 'b': data_offsets [0, 2] overlap the tensor that ends at 2"},
      {"DataLeftOver", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})", "xy"),
       "f: the tensors end at byte 1 of the data, which has 2"},
      {"SizeMismatch", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", "wxyz"),
       "f: tensor 't': data_offsets [0, 4] hold 4 bytes, but f32 [2] needs 8"},
      {"ProductWrapsToZero",
       one(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
       "f: tensor 't': data_offsets [0, 0] cannot hold it: u8 [4294967296, 4294967296] needs more "
       "than 2^63 - 1 bytes"},
      {"ElementSizeOverflows",
       one(R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})"),
       "f: tensor 't': data_offsets [0, 0] cannot hold it: f32 [4611686018427387904] needs more "
       "than 2^63 - 1 bytes"},
      {"NameTwice",
       make_file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                 R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                 "xy"),
       "f: tensor 'a' stands twice"},
      {"NameTwiceByEscape",
       make_file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                 R"("\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                 "xy"),
       "f: tensor 'a' stands twice"},
      {"HostileName", make_file(R"({"a\n\u001b[2J":1})"),
       "f: tensor 'a\\x0a\\x1b[2J': expected an object, found 1"},
      {"LongName", make_file("{\"" + std::string(5000, 'n') + "\":1}"),
       "f: tensor '" + std::string(80, 'n') + "...': expected an object, found 1"},
      {"MetadataTwice", make_file(R"({"__metadata__":{},"__metadata__":{}})"),
       "f: header: __metadata__ stands twice"},
      {"MetadataIsAnArray", make_file(meta + "[]}"),
       "f: __metadata__: expected an object, found an array"},
      {"MetadataNumber", make_file(meta + R"({"a":1}})"),
       "f: __metadata__: value of 'a': expected a string, found 1"},
      {"MetadataNested", make_file(meta + R"({"a":{}}})"),
       "f: __metadata__: value of 'a': expected a string, found an object"},
      {"MetadataKeyTwice", make_file(meta + R"({"a":"","a":""}})"),
       "f: __metadata__: value of 'a': key 'a' stands twice"},
  };
}

TEST(Safetensors, RefusesBadFilesByName) {
  for (const BadFile& bad : bad_files()) {
    const std::string text = outcome(parse, bad.file);
    EXPECT_EQ(text.substr(0, bad.text.size()), bad.text) << bad.name << ": " << text;
    // Syntax errors end in the parser's own words; every other text is known whole.
    if (bad.text.find("syntax error") == std::string::npos) {
      EXPECT_EQ(text, bad.text) << bad.name;
    }
  }
}

TEST(Safetensors, BoundsTheNumberOfEntries) {
  std::string metadata = R"({"__metadata__":{)";
  for (int i = 0; i <= 65536; ++i) metadata += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"\"";
  EXPECT_NE(outcome(parse, make_file(metadata + "}}")).find("has more than 65536 entries"),
            std::string::npos);
  std::string tensors = "{";
  for (int i = 0; i <= 1 << 17; ++i) {
    tensors += (i ? ",\"" : "\"") + std::to_string(i);
    tensors += R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  EXPECT_NE(outcome(parse, make_file(tensors + "}")).find("has more than 131072 tensors"),
            std::string::npos);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  expect_truncations_refused(parse, valid_file());
}

TEST(Safetensors, MutationsAreRefusedOrInBounds) {
  const std::string file = valid_file();
  const std::size_t accepted = sweep_mutations(parse, file);
  // All 29 data bytes may take any value; names, a few dtypes and spaces have other legal forms;
  // most of a header has none.
  EXPECT_GE(accepted, 29u * 40);
  EXPECT_LT(accepted, file.size() * 40 / 2);
  sweep_edits(parse, file, 20'000);
}

TEST(Safetensors, WritesWhatItReads) {
  TemporaryFolder folder;
  std::vector<Array> arrays;
  const std::string data(64, 'd');
  for (int i = 0; i <= static_cast<int>(Dtype::kBool); ++i) {
    Array& array = arrays.emplace_back();
    array.dtype = static_cast<Dtype>(i);
    array.name = "t" + std::string(dtype_name(array.dtype));
    array.shape = {1, 2, 3};
    array.bytes = 6 * dtype_bytes(array.dtype);
    array.data = as_bytes(data).data();
  }
  const Metadata metadata{{"scale", "0.125"}, {"text", "\"\n\xc3\xa9"}};
  write_safetensors(folder / "x", arrays, metadata);
  const SafetensorsFile file = SafetensorsFile::open(folder / "x");
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.arrays().size(), arrays.size());
  for (const Array& array : arrays) {
    const Array& read = file.at(array.name);
    EXPECT_EQ(read.dtype, array.dtype);
    EXPECT_EQ(read.shape, array.shape);
    ASSERT_EQ(read.bytes, array.bytes);
    EXPECT_EQ(std::memcmp(read.data, array.data, array.bytes), 0);
    EXPECT_TRUE(read.is_aligned()) << array.name;
  }
  EXPECT_EQ(folder.entries(), 1u);  // nothing of the unfinished file is left
}

TEST(Safetensors, WriterAlignsWithoutTheCallersHelp) {
  TemporaryFolder folder;
  const std::string data(8, 'd');
  const Array narrow{"a", Dtype::kU8, {1}, as_bytes(data).data(), 1};
  const Array wide{"b", Dtype::kF64, {1}, as_bytes(data).data(), 8};
  write_safetensors(folder / "x", std::vector{narrow, wide});
  const SafetensorsFile file = SafetensorsFile::open(folder / "x");
  EXPECT_TRUE(file.at("b").is_aligned());
  EXPECT_EQ(file.arrays()[0].name, "b");
}

std::string write_error(const std::filesystem::path& path, const std::vector<Array>& arrays,
                        const Metadata& metadata = {}) {
  try {
    write_safetensors(path, arrays, metadata);
    return "";
  } catch (const FileError& error) {
    return std::string(error.what()).substr(path.string().size());
  }
}

TEST(Safetensors, WriterRefusesContradictions) {
  TemporaryFolder folder;
  const std::byte byte{};
  const auto array = [&](std::string name, std::vector<std::int64_t> shape, std::size_t bytes) {
    return Array{std::move(name), Dtype::kU8, std::move(shape), &byte, bytes};
  };
  EXPECT_EQ(write_error(folder / "x", {array("a", {2}, 1)}),
            ": tensor 'a': has 1 bytes, but u8 [2] needs 2");
  EXPECT_EQ(write_error(folder / "x", {array("a", {-1}, 1)}),
            ": tensor 'a': has 1 bytes, but u8 [-1] needs more than 2^63 - 1");
  EXPECT_EQ(write_error(folder / "x", {array("a", {1}, 1), array("a", {1}, 1)}),
            ": tensor 'a' stands twice");
  EXPECT_EQ(write_error(folder / "x", {array("__metadata__", {1}, 1)}),
            ": tensor '__metadata__': the name is reserved");
  EXPECT_EQ(write_error(folder / "x", {array("a", std::vector<std::int64_t>(33, 1), 1)}),
            ": tensor 'a': has 33 dimensions, the limit is 32");
  EXPECT_NE(write_error(folder / "x", {array("\xff", {1}, 1)}).find(": header: "),
            std::string::npos);
  EXPECT_NE(write_error(folder / "x", {}, {{"a", "\xff"}}).find(": header: "), std::string::npos);
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(Safetensors, NamesWhatAFileHas) {
  TemporaryFolder folder;
  write_text(folder / "x", valid_file());
  const SafetensorsFile file = SafetensorsFile::open(folder / "x");
  EXPECT_EQ(file.find("v"), nullptr);
  try {
    file.at("v");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        (folder / "x").string() + ": has no tensor 'v'; the file has 'e', 'k', 'q', '\\xc3\\xa9'");
  }
  EXPECT_EQ(file.metadata_at("model"), "m");
  try {
    file.metadata_at("scale");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(std::string(error.what()), (folder / "x").string() +
                                             ": __metadata__ has no key 'scale'; the file has "
                                             "'model'");
  }
}

TEST(Safetensors, MovedFileKeepsItsArrays) {
  TemporaryFolder folder;
  write_text(folder / "x", valid_file());
  SafetensorsFile first = SafetensorsFile::open(folder / "x");
  const std::byte* data = first.at("q").data;
  SafetensorsFile second = std::move(first);
  EXPECT_EQ(second.at("q").data, data);
  EXPECT_EQ(std::memcmp(second.at("q").data, "abc", 3), 0);
}

}  // namespace
}  // namespace tegula::io
