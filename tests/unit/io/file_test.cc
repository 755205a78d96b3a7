// SPDX-License-Identifier: Apache-2.0
#include "src/io/file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "src/io/npy.hpp"
#include "src/io/safetensors.hpp"
#include "tests/unit/io/io_test_util.hpp"

namespace tegula::io {
namespace {

using namespace testing;

std::string map_error(const std::filesystem::path& path) {
  try {
    const MappedFile file(path);
    return "";
  } catch (const FileError& error) {
    return error.what();
  }
}

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

TEST(MappedFile, NamesWhatItCannotOpen) {
  TemporaryFolder folder;
  const std::string missing = (folder / "missing").string();
  EXPECT_EQ(map_error(missing), missing + ": cannot open: No such file or directory");
  EXPECT_EQ(map_error(folder / "."), (folder / ".").string() + ": is not a regular file");
  EXPECT_EQ(map_error("/dev/null"), "/dev/null: is not a regular file");
  const std::string fifo = (folder / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(map_error(fifo), fifo + ": is not a regular file");  // and does not wait for a writer
  EXPECT_EQ(map_error("no\nsuch"), "no\\x0asuch: cannot open: No such file or directory");
}

TEST(MappedFile, EmptyAndMoved) {
  TemporaryFolder folder;
  write_text(folder / "empty", "");
  EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
  write_text(folder / "x", "abc");
  MappedFile first(folder / "x");
  MappedFile second = std::move(first);
  EXPECT_TRUE(first.bytes().empty());
  ASSERT_EQ(second.bytes().size(), 3u);
  EXPECT_EQ(std::memcmp(second.bytes().data(), "abc", 3), 0);
  first = std::move(second);
  EXPECT_EQ(first.bytes().size(), 3u);
}

// A file far larger than what reading it would be allowed to cost, nearly all of it a hole.
TEST(MappedFile, LargeFilesAreNotRead) {
  constexpr std::uint64_t kSize = std::uint64_t{6} << 30;
  TemporaryFolder folder;
  const std::string header = R"({"big":{"dtype":"BF16","shape":[3,1073741824],"data_offsets":[0,)" +
                             std::to_string(kSize) + "]}}";
  std::string head(8, '\0');
  head[0] = static_cast<char>(header.size());
  write_text(folder / "big", head + header);
  const std::string path = (folder / "big").string();
  const auto size = static_cast<off_t>(head.size() + header.size() + kSize);
  if (::truncate(path.c_str(), size) != 0)
    GTEST_SKIP() << "no sparse files in the temporary folder";
  const std::int64_t before = resident_bytes();
  const SafetensorsFile file = SafetensorsFile::open(path);
  const Array& big = file.at("big");
  EXPECT_EQ(big.bytes, kSize);
  EXPECT_EQ(big.elements(), std::int64_t{3} << 30);
  EXPECT_EQ(big.data[kSize - 1], std::byte{0});
  EXPECT_LT(resident_bytes() - before, 64 << 20);
}

TEST(OutputFile, AppearsWholeOrNotAtAll) {
  TemporaryFolder folder;
  write_text(folder / "x", "old");
  const MappedFile old(folder / "x");
  {
    OutputFile file(folder / "x");
    file.write(std::string_view("half"));
  }
  EXPECT_EQ(read_text(folder / "x"), "old");
  EXPECT_EQ(folder.entries(), 1u);
  {
    OutputFile file(folder / "x");
    file.write(std::string_view("new"));
    EXPECT_EQ(read_text(folder / "x"), "old");
    file.commit();
  }
  EXPECT_EQ(read_text(folder / "x"), "new");
  EXPECT_EQ(folder.entries(), 1u);
  EXPECT_EQ(std::memcmp(old.bytes().data(), "old", 3), 0);
}

TEST(OutputFile, FollowsLinksAndKeepsDevices) {
  TemporaryFolder folder;
  write_text(folder / "x", "old");
  std::filesystem::create_symlink("x", folder / "link");
  {
    OutputFile file(folder / "link");
    file.write(std::string_view("new"));
    file.commit();
  }
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_text(folder / "x"), "new");
  {
    OutputFile file("/dev/null");
    file.write(std::string_view("gone"));
    file.commit();
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(OutputFile, NamesWhatItCannotWrite) {
  TemporaryFolder folder;
  const std::filesystem::path path = folder / "missing/x";
  try {
    OutputFile file(path);
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(std::string(error.what()),
              path.string() + ": cannot open for writing: No such file or directory");
  }
  try {
    OutputFile file("/dev/full");
    file.write(std::string_view("x"));
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(std::string(error.what()), "/dev/full: cannot write: No space left on device");
  }
}

TEST(Array, DtypesHaveNames) {
  for (int i = 0; i <= static_cast<int>(Dtype::kBool); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("F32"), std::nullopt);
}

TEST(Array, ByteCountKnowsItsLimit) {
  EXPECT_EQ(byte_count(Dtype::kF32, {}), 4u);
  EXPECT_EQ(byte_count(Dtype::kF32, {2, 3}), 24u);
  EXPECT_EQ(byte_count(Dtype::kU8, {INT64_MAX}), static_cast<std::size_t>(INT64_MAX));
  EXPECT_EQ(byte_count(Dtype::kF16, {INT64_MAX}), std::nullopt);
  EXPECT_EQ(byte_count(Dtype::kU8, {INT64_MAX, INT64_MAX, 0}), 0u);
  EXPECT_EQ(byte_count(Dtype::kU8, {0, -1}), std::nullopt);
}

TEST(Array, PrintableIsAsciiAndShort) {
  EXPECT_EQ(printable("a\tb\x7f\xff"), "a\\x09b\\x7f\\xff");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
}

}  // namespace
}  // namespace tegula::io
