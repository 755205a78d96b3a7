// SPDX-License-Identifier: Apache-2.0
#include "src/io/npy.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/io/io_test_util.hpp"

namespace tegula::io {
namespace {

using namespace testing;

std::vector<Array> parse(std::span<const std::byte> file) {
  return {parse_npy(file, "f")};
}

std::string make_file(int major, std::string_view header, std::string_view data = "") {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i)
    file += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return file.append(header).append(data);
}

// numpy.save of numpy.arange(6, dtype="u1").reshape(2, 3), to the byte.
std::string numpy_file() {
  std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }";
  header.resize(117, ' ');
  return make_file(1, header + "\n", std::string_view("\0\1\2\3\4\5", 6));
}

std::string dict(std::string_view descr, std::string_view order, std::string_view shape) {
  return "{'descr': " + std::string(descr) + ", 'fortran_order': " + std::string(order) +
         ", 'shape': " + std::string(shape) + ", }\n";
}

TEST(Npy, ReadsAllVersions) {
  for (int major = 1; major <= 3; ++major) {
    const std::string file = make_file(major, dict("'<f2'", "False", "(2, 3)"), "abcdefghijkl");
    const Array array = parse_npy(as_bytes(file));
    EXPECT_EQ(array.dtype, Dtype::kF16);
    EXPECT_EQ(array.shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(array.bytes, 12u);
    EXPECT_EQ(std::memcmp(array.data, "abcdefghijkl", 12), 0);
    EXPECT_EQ(array.name, "");
  }
}

TEST(Npy, ReadsEveryLegalForm) {
  const auto shape_of = [](std::string_view header, std::string_view data) {
    const std::string file = make_file(1, header, data);
    return shape_text(parse_npy(as_bytes(file), "f").shape);
  };
  EXPECT_EQ(shape_of(dict("'<f4'", "False", "()"), "wxyz"), "[]");
  EXPECT_EQ(shape_of(dict("'<f4'", "False", "(1,)"), "wxyz"), "[1]");
  EXPECT_EQ(shape_of(dict("'<f4'", "False", "(0, 7)"), ""), "[0, 7]");
  EXPECT_EQ(shape_of(dict("'=f4'", "False", "(1, 1)"), "wxyz"), "[1, 1]");
  EXPECT_EQ(shape_of(dict("'|b1'", "False", "(1L, 4L,)"), "wxyz"), "[1, 4]");
  // Fortran order of at most one extent above 1 is C order.
  EXPECT_EQ(shape_of(dict("'<f4'", "True", "(1, 1, 1)"), "wxyz"), "[1, 1, 1]");
  EXPECT_EQ(shape_of(dict("'|i1'", "True", "(1, 4)"), "wxyz"), "[1, 4]");
  EXPECT_EQ(shape_of("{\"shape\":(4,),\"descr\":\"|u1\",\"fortran_order\":False}", "wxyz"), "[4]");
}

TEST(Npy, RefusesBadFilesByName) {
  const std::string good = dict("'|u1'", "False", "(4,)");
  std::string no_magic = numpy_file();
  no_magic[0] = 'N';
  std::string minor = numpy_file();
  minor[7] = 1;
  std::string long_length = make_file(2, good, "wxyz");
  long_length.replace(8, 4, "\xff\xff\xff\xff");
  std::string wide = "(";
  for (int i = 0; i < 33; ++i) wide += "1,";
  const struct {
    std::string file, text;
  } cases[] = {
      {"", "f: magic: does not start with \\x93NUMPY"},
      {no_magic, "f: magic: does not start with \\x93NUMPY"},
      {"\x93NUMPY\x01", "f: version: the file ends after 7 bytes"},
      {make_file(4, good, "wxyz"), "f: version: 4.0 is not 1.0, 2.0 or 3.0"},
      {minor, "f: version: 1.1 is not 1.0, 2.0 or 3.0"},
      {numpy_file().substr(0, 9), "f: header length: the file ends after 9 bytes"},
      {numpy_file().substr(0, 100), "f: header length: 118 exceeds the 90 bytes after it"},
      {long_length, "f: header length: 4294967295 exceeds the limit of 1048576"},
      {make_file(1, std::string_view("{}\0", 3)), "f: header: holds a NUL byte"},
      {make_file(1, ""), "f: header: expected '{', found the end of the header"},
      {make_file(1, "{}"), "f: header: has no descr"},
      {make_file(1, "{'descr':'|u1'}"), "f: header: has no fortran_order"},
      {make_file(1, "{'descr':'|u1','fortran_order':False}"), "f: header: has no shape"},
      {make_file(1, good + "x", "wxyz"), "f: header: ends before 'x' at byte 58"},
      {make_file(1, "{'descr':'|u1' 'x'"), "f: header: expected ',', found ''x'' at byte 15"},
      {make_file(1, "{'descr':'|u1','descr':'|u1'}"), "f: header: key 'descr' stands twice"},
      {make_file(1, "{'strides':"), "f: header: unknown key 'strides'"},
      {make_file(1, "{'descr"), "f: header: key: the string ''descr' at byte 1 does not end"},
      {make_file(1, "{'a\\'b':"), "f: header: key: 'a\\' holds an escape"},
      {make_file(1, dict("[('a', '<f4')]", "False", "(1,)")),
       "f: descr: a structured type is not supported"},
      {make_file(1, dict("'>f4'", "False", "(1,)"), "wxyz"),
       "f: descr: '>f4' is big-endian, which is not supported"},
      {make_file(1, dict("'|f4'", "False", "(1,)"), "wxyz"),
       "f: descr: type '|f4' is not supported"},
      {make_file(1, dict("'f4'", "False", "(1,)"), "wxyz"), "f: descr: type 'f4' is not supported"},
      {make_file(1, dict("''", "False", "(1,)")), "f: descr: type '' is not supported"},
      {make_file(1, dict("'<c8'", "False", "(1,)")), "f: descr: type '<c8' is not supported"},
      {make_file(1, dict("'|O'", "False", "(1,)")), "f: descr: type '|O' is not supported"},
      {make_file(1, dict("'<V2'", "False", "(1,)")),
       "f: descr: '<V2' is raw bytes and could be any type (bf16 and 8-bit floats need a "
       "safetensors file)"},
      {make_file(1, dict("4", "False", "(1,)")),
       "f: descr: expected a string, found '4, "
       "'fortran_orde' at byte 10"},
      {make_file(1, dict("'|u1'", "0", "(4,)")),
       "f: fortran_order: expected True or False, found '0, 'shape': (4,)' at byte 34"},
      {make_file(1, dict("'|u1'", "True", "(2, 2)"), "wxyz"),
       "f: fortran_order: True is not supported for shape [2, 2]"},
      {make_file(1, dict("'|u1'", "False", "[4]"), "wxyz"),
       "f: shape: expected '(', found '[4], }\\x0a' at byte 50"},
      {make_file(1, dict("'|u1'", "False", "(4)"), "wxyz"),
       "f: shape: is a number in brackets, not a tuple"},
      {make_file(1, dict("'|u1'", "False", "(2 2)"), "wxyz"),
       "f: shape: expected ',', found '2), }\\x0a' at byte 53"},
      {make_file(1, dict("'|u1'", "False", "(,)"), "w"),
       "f: shape: expected an extent (an integer >= 0), found ',), }\\x0a' at byte 51"},
      {make_file(1, dict("'|u1'", "False", "(-1,)"), "w"),
       "f: shape: expected an extent (an integer >= 0), found '-1,), }\\x0a' at byte 51"},
      {make_file(1, dict("'|u1'", "False", "((1,),)"), "w"),
       "f: shape: expected an extent (an integer >= 0), found '(1,),), }\\x0a' at byte 51"},
      {make_file(1, dict("'|u1'", "False", "(1.5,)"), "w"),
       "f: shape: expected ',', found '.5,), }\\x0a' at byte 52"},
      {make_file(1, dict("'|u1'", "False", "(9223372036854775808,)"), "w"),
       "f: shape: extent 9223372036854775808 exceeds 2^63 - 1"},
      {make_file(1, dict("'<f4'", "False", "(9223372036854775807,)"), "w"),
       "f: shape: f32 [9223372036854775807] needs more than 2^63 - 1 bytes, the file has 1"},
      {make_file(1, dict("'|u1'", "False", "(4294967296, 4294967296)"), ""),
       "f: shape: u8 [4294967296, 4294967296] needs more than 2^63 - 1 bytes, the file has 0"},
      {make_file(1, dict("'|u1'", "False", wide + ")"), "w"),
       "f: shape: has more than 32 dimensions"},
      {make_file(1, good, "wxy"), "f: shape: u8 [4] needs 4 bytes, the file has 3"},
      {make_file(1, good, "vwxyz"), "f: shape: u8 [4] needs 4 bytes, the file has 5"},
      {make_file(1, "{'descr': " + std::string(60'000, '(')),
       "f: descr: expected a string, found '((((((((((((((((' at byte 10"},
  };
  for (const auto& [file, text] : cases) EXPECT_EQ(outcome(parse, file), text);
}

TEST(Npy, EveryTruncationIsRefused) {
  expect_truncations_refused(parse, numpy_file());
  for (int major = 2; major <= 3; ++major)
    expect_truncations_refused(parse, make_file(major, dict("'<i4'", "False", "(2,)"), "abcdefgh"));
}

TEST(Npy, MutationsAreRefusedOrInBounds) {
  const std::string file = make_file(1, dict("'<f4'", "False", "(1, 2)"), "abcdefgh");
  const std::size_t accepted = sweep_mutations(parse, file);
  EXPECT_GE(accepted, 8u * 40);
  EXPECT_LT(accepted, file.size() * 40 / 4);
  sweep_edits(parse, file, 20'000);
  EXPECT_LT(sweep_mutations(parse, make_file(3, dict("'|b1'", "False", "()"), "a")),
            file.size() * 40 / 4);
}

TEST(Npy, WritesWhatNumpyWrites) {
  TemporaryFolder folder;
  const std::string data("\0\1\2\3\4\5", 6);
  write_npy(folder / "x.npy", {"", Dtype::kU8, {2, 3}, as_bytes(data).data(), 6});
  EXPECT_EQ(read_text(folder / "x.npy"), numpy_file());
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Npy, WritesWhatItReads) {
  TemporaryFolder folder;
  const std::string data(64, 'd');
  const std::vector<std::vector<std::int64_t>> shapes = {{}, {1}, {3}, {0, 2}, {1, 2, 3}};
  for (int i = 0; i <= static_cast<int>(Dtype::kBool); ++i) {
    for (const std::vector<std::int64_t>& shape : shapes) {
      const auto dtype = static_cast<Dtype>(i);
      const Array array{"", dtype, shape, as_bytes(data).data(), *byte_count(dtype, shape)};
      if (dtype == Dtype::kBf16 || dtype == Dtype::kF8E4m3 || dtype == Dtype::kF8E5m2) {
        EXPECT_THROW(write_npy(folder / "x", array), FileError);
        continue;
      }
      write_npy(folder / "x", array);
      const NpyFile file = load_npy(folder / "x");
      EXPECT_EQ(file.array.dtype, dtype);
      EXPECT_EQ(file.array.shape, shape);
      EXPECT_TRUE(file.array.is_aligned());
      ASSERT_EQ(file.array.bytes, array.bytes);
      EXPECT_EQ(std::memcmp(file.array.data, array.data, array.bytes), 0);
    }
  }
  EXPECT_THROW(write_npy(folder / "x", {"", Dtype::kU8, {2}, as_bytes(data).data(), 1}), FileError);
}

TEST(Npy, TellsNpyFromOthers) {
  EXPECT_TRUE(is_npy(as_bytes(numpy_file())));
  EXPECT_FALSE(is_npy(as_bytes("\x93NUMP")));
  EXPECT_FALSE(is_npy(as_bytes("")));
}

}  // namespace
}  // namespace tegula::io
