// SPDX-License-Identifier: Apache-2.0
// Files as the readers and writers see them: a read-only mapping, and a replacement that appears
// whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tegula::io {

// Maps a regular file for reading; pages come in as they are touched, so a file larger than memory
// is fine. Out of scope: a file that another process shortens while it is mapped; touching the lost
// part is a SIGBUS, as with every mapping.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;  // null for an empty file
  std::size_t size_ = 0;
};

// Writes beside `path` and renames at commit(), so that a reader never sees half a file and a
// mapping of the old content stays whole. What exists and is no regular file (a pipe, /dev/null) is
// written in place. Without commit() the destructor removes the unfinished file.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  [[noreturn]] void fail(const char* action) const;

  std::string target_;
  std::string written_;  // the name being written: target_, or a neighbour of it
  int fd_ = -1;
};

}  // namespace tegula::io
