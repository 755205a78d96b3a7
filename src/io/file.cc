// SPDX-License-Identifier: Apache-2.0
#include "src/io/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "src/io/array.hpp"

namespace tegula::io {
namespace {

constexpr std::size_t kPathLimit = 300;  // bytes of a path in a message

[[noreturn]] void fail_system(const std::string& path, const char* action, int error) {
  throw FileError(printable(path, kPathLimit) + ": cannot " + action + ": " + std::strerror(error));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK: a FIFO without a writer would otherwise hang here instead of being refused below.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail_system(path, "open", errno);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) fail_system(path, "stat", errno);
  if (!S_ISREG(info.st_mode))
    throw FileError(printable(path.native(), kPathLimit) + ": is not a regular file");
  if (info.st_size == 0) return;
  if (static_cast<std::uintmax_t>(info.st_size) > std::numeric_limits<std::size_t>::max() / 2)
    throw FileError(printable(path.native(), kPathLimit) + ": " + std::to_string(info.st_size) +
                    " bytes do not fit this machine's address space");
  const auto size = static_cast<std::size_t>(info.st_size);
  void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapping == MAP_FAILED) fail_system(path, "map", errno);
  data_ = static_cast<const std::byte*>(mapping);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

OutputFile::OutputFile(const std::filesystem::path& path) : target_(path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    written_ = target_;
    fd_ = ::open(written_.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    std::error_code error;
    // Resolved, so that the rename replaces the file behind a symbolic link and not the link.
    const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
    if (!error) target_ = resolved;
    const std::string stem = target_ + "." + std::to_string(::getpid()) + "-";
    for (int attempt = 0; fd_ < 0 && attempt < 100; ++attempt) {
      written_ = stem + std::to_string(attempt) + ".part";
      fd_ = ::open(written_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd_ < 0 && errno != EEXIST) break;
    }
  }
  if (fd_ < 0) fail("open for writing");
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (written_ != target_) ::unlink(written_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // Linux writes at most 2^31 - 4096 bytes a call and says how many, so the loop is not only for
    // interrupted calls.
    const ssize_t done = ::write(fd_, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void OutputFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void OutputFile::commit() {
  const int fd = std::exchange(fd_, -1);
  const bool closed = ::close(fd) == 0;
  if (closed && (written_ == target_ || ::rename(written_.c_str(), target_.c_str()) == 0)) return;
  const int reason = errno;
  if (written_ != target_) ::unlink(written_.c_str());
  fail_system(target_, "finish", reason);
}

void OutputFile::fail(const char* action) const {
  fail_system(target_, action, errno);
}

}  // namespace tegula::io
