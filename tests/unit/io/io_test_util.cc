// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/io/io_test_util.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

namespace tegula::io::testing {

GuardedBytes::GuardedBytes(std::string_view bytes) : size_(bytes.size()) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t body = (bytes.size() + page - 1) / page * page;
  mapping_size_ = body + page;
  mapping_ =
      ::mmap(nullptr, mapping_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  std::byte* guard = static_cast<std::byte*>(mapping_) + body;
  if (!bytes.empty()) std::memcpy(guard - bytes.size(), bytes.data(), bytes.size());
  ::mprotect(guard, page, PROT_NONE);
  begin_ = guard - bytes.size();
}

GuardedBytes::~GuardedBytes() {
  ::munmap(mapping_, mapping_size_);
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tegula_io_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::size_t TemporaryFolder::entries() const {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

namespace {

void check_arrays(const std::vector<Array>& arrays, std::span<const std::byte> file) {
  unsigned sum = 0;
  for (const Array& array : arrays) {
    ASSERT_EQ(byte_count(array.dtype, array.shape), array.bytes) << printable(array.name);
    if (array.bytes == 0) continue;
    ASSERT_GE(array.data, file.data());
    ASSERT_LE(array.bytes, file.size());
    ASSERT_LE(array.data - file.data(), static_cast<std::ptrdiff_t>(file.size() - array.bytes));
    for (std::size_t i = 0; i < array.bytes; ++i) sum += std::to_integer<unsigned>(array.data[i]);
  }
  volatile unsigned sink = sum;  // keeps the reads
  (void)sink;
}

}  // namespace

std::string outcome(const Parser& parse, std::string_view file) {
  const GuardedBytes bytes(file);
  try {
    check_arrays(parse(bytes.span()), bytes.span());
    return "";
  } catch (const FileError& error) {
    const std::string text = error.what();
    EXPECT_FALSE(text.empty());
    EXPECT_LT(text.size(), 1000u);
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; }))
        << text;
    return text;
  }
}

void expect_truncations_refused(const Parser& parse, std::string_view file) {
  ASSERT_EQ(outcome(parse, file), "");
  for (std::size_t size = 0; size < file.size(); ++size)
    ASSERT_NE(outcome(parse, file.substr(0, size)), "") << "cut to " << size << " bytes";
}

std::size_t sweep_mutations(const Parser& parse, std::string_view file) {
  using namespace std::string_view_literals;
  constexpr std::string_view kLetters =
      "{}[]()\"'\\:,-+.eE0159UFTL_<>|=at \n\0\x01\x7f\x80\xc3\xff"sv;
  std::string mutant(file);
  std::size_t accepted = 0;
  for (std::size_t i = 0; i < file.size(); ++i) {
    std::string values(kLetters);
    for (int bit = 0; bit < 8; ++bit) values += static_cast<char>(file[i] ^ (1 << bit));
    for (char value : values) {
      if (value == file[i]) continue;
      mutant[i] = value;
      accepted += outcome(parse, mutant).empty();
      if (::testing::Test::HasFailure()) return accepted;
    }
    mutant[i] = file[i];
  }
  return accepted;
}

void sweep_edits(const Parser& parse, std::string_view file, int count) {
  std::mt19937 random(20);
  const auto draw = [&](std::size_t below) { return random() % below; };
  for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    std::string mutant(file);
    for (std::size_t edits = 1 + draw(3); edits > 0 && !mutant.empty(); --edits) {
      const std::size_t at = draw(mutant.size());
      const std::size_t run = 1 + draw(std::min<std::size_t>(16, mutant.size() - at));
      const std::size_t from = draw(mutant.size() - run + 1);
      switch (draw(4)) {
        case 0: std::swap(mutant[at], mutant[from]); break;
        case 1: mutant.erase(at, run); break;
        case 2: mutant.insert(at, mutant.substr(from, run)); break;
        default: mutant.replace(at, run, mutant.substr(from, run)); break;
      }
    }
    outcome(parse, mutant);
  }
}

}  // namespace tegula::io::testing
