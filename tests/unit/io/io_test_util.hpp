// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of src/io: bytes that cannot be read past, and the sweeps over broken files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/array.hpp"

namespace tegula::io::testing {

// A copy that ends where an unreadable page begins, so that one byte too far is a fault in every
// build. Empty spans point at that page.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::string_view bytes);
  ~GuardedBytes();
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::span<const std::byte> span() const { return {begin_, size_}; }

 private:
  void* mapping_ = nullptr;
  std::size_t mapping_size_ = 0;
  const std::byte* begin_ = nullptr;
  std::size_t size_ = 0;
};

// A folder of one test, removed with it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  std::size_t entries() const;

 private:
  std::filesystem::path path_;
};

std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, std::string_view text);

std::span<const std::byte> as_bytes(std::string_view text);

// The arrays of a file, or a FileError.
using Parser = std::function<std::vector<Array>(std::span<const std::byte>)>;

// Parses a guarded copy. Accepted: checks that each array lies inside the bytes and has the size of
// its shape, and returns "". Refused: checks that the text is one printable line, and returns it.
std::string outcome(const Parser& parse, std::string_view file);

// Each proper prefix of a valid file must be refused.
void expect_truncations_refused(const Parser& parse, std::string_view file);

// Each byte in turn with each bit flipped and replaced by each character that means something to
// one of the formats: refused or accepted, as outcome() checks. Returns how many were accepted.
std::size_t sweep_mutations(const Parser& parse, std::string_view file);

// Pairs of bytes swapped, runs deleted, repeated and overwritten, at places drawn from a fixed
// seed.
void sweep_edits(const Parser& parse, std::string_view file, int count);

}  // namespace tegula::io::testing
