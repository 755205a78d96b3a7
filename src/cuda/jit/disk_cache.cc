// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/jit/disk_cache.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "src/cuda/jit/environment.hpp"

namespace tegula::cuda {
namespace {

constexpr char kMagic[8] = {'T', 'E', 'G', 'C', 'U', 'B', 'I', '1'};
constexpr uint64_t kMaxEntry = uint64_t{64} << 20;
constexpr std::string_view kEnd = ".cubin", kUnfinished = "unfinished-";

struct Header {
  char magic[8];
  uint64_t bytes;  // of the binary, which follows
  Digest key;
  Digest checksum;  // of key and binary
};
static_assert(sizeof(Header) == 80);

Digest checksum(const Digest& key, std::string_view binary) {
  Sha256 hash;
  hash.add(key.data(), key.size());
  hash.add(binary.data(), binary.size());
  return hash.finish();
}

std::string name_of(const Digest& key) {
  return hex(key).append(kEnd);
}

bool is_entry(std::string_view name) {
  return name.size() == 64 + kEnd.size() && name.ends_with(kEnd);
}

bool read_all(int fd, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::read(fd, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got, bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool write_all(int fd, const void* from, size_t bytes) {
  auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(fd, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put, bytes -= static_cast<size_t>(put);
  }
  return true;
}

// mkdir -p, for this user alone.
void make_folders(const std::string& path) {
  for (size_t at = 1; at != std::string::npos; ++at) {
    at = path.find('/', at);
    mkdir(path.substr(0, at).c_str(), 0700);
    if (at == std::string::npos) return;
  }
}

bool read_entry(int fd, const Digest& key, std::string& binary) {
  struct stat status;
  Header header;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid())
    return false;
  if (!read_all(fd, &header, sizeof header)) return false;
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.key != key) return false;
  if (header.bytes > kMaxEntry ||
      sizeof header + header.bytes != static_cast<uint64_t>(status.st_size)) {
    return false;
  }
  std::string read(header.bytes, '\0');
  if (!read_all(fd, read.data(), read.size()) || checksum(key, read) != header.checksum)
    return false;
  binary = std::move(read);
  return true;
}

struct File {
  std::string name;
  uint64_t bytes;
  timespec changed;
};

// Plain files that are ours by their name.
std::vector<File> files_in(int folder) {
  std::vector<File> files;
  const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = fd >= 0 ? fdopendir(fd) : nullptr;
  if (stream == nullptr) {
    if (fd >= 0) close(fd);
    return files;
  }
  while (const dirent* entry = readdir(stream)) {
    struct stat status;
    const std::string_view name = entry->d_name;
    if (!is_entry(name) && !name.starts_with(kUnfinished)) continue;
    if (fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(status.st_mode)) continue;
    files.push_back({std::string(name), static_cast<uint64_t>(status.st_size), status.st_mtim});
  }
  closedir(stream);
  return files;
}

}  // namespace

DiskCache::DiskCache(const std::string& folder, uint64_t max_bytes, int64_t stale_seconds)
    : max_bytes_(max_bytes), stale_seconds_(stale_seconds) {
  if (folder.empty() || folder[0] != '/') {
    refusal_ = folder + ": not an absolute path";
    return;
  }
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  int fd = open(folder.c_str(), kFlags);
  if (fd < 0 && errno == ENOENT) {
    make_folders(folder);
    fd = open(folder.c_str(), kFlags);
  }
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0) {
    char text[128] = "";
    refusal_ = folder + ": " + strerror_r(errno, text, sizeof text);
  } else if (status.st_uid != geteuid()) {
    refusal_ = folder + ": belongs to another user";
  } else if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    refusal_ = folder + ": others can write there (chmod go-w)";
  } else {
    fd_ = fd;
    return;
  }
  if (fd >= 0) close(fd);
}

DiskCache::~DiskCache() {
  if (fd_ >= 0) close(fd_);
}

bool DiskCache::read(const Digest& key, std::string& binary) const {
  if (!usable()) return false;
  // A fifo of that name must not hold us up.
  const int fd = openat(fd_, name_of(key).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ELOOP) remove(key);
    return false;
  }
  const bool whole = read_entry(fd, key, binary);
  if (whole) futimens(fd, nullptr);
  close(fd);
  if (!whole) remove(key);
  return whole;
}

bool DiskCache::write(const Digest& key, std::string_view binary) const {
  if (!usable() || binary.size() > kMaxEntry || sizeof(Header) + binary.size() > max_bytes_)
    return false;
  static constinit std::atomic<uint32_t> counter{0};
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  char name[96];
  std::snprintf(name, sizeof name, "%s%ld-%lld-%09ld-%u", kUnfinished.data(),
                static_cast<long>(getpid()), static_cast<long long>(now.tv_sec), now.tv_nsec,
                counter.fetch_add(1, std::memory_order_relaxed));
  const int fd = openat(fd_, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  Header header;
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.bytes = binary.size();
  header.key = key;
  header.checksum = checksum(key, binary);
  bool done = write_all(fd, &header, sizeof header) && write_all(fd, binary.data(), binary.size());
  done = close(fd) == 0 && done;
  done = done && renameat(fd_, name, fd_, name_of(key).c_str()) == 0;
  if (!done) unlinkat(fd_, name, 0);
  sweep();
  return done;
}

void DiskCache::remove(const Digest& key) const {
  if (usable()) unlinkat(fd_, name_of(key).c_str(), 0);
}

DiskCache::Usage DiskCache::usage() const {
  Usage usage;
  if (!usable()) return usage;
  for (const File& file : files_in(fd_)) {
    usage.entries += is_entry(file.name) ? 1 : 0;
    usage.bytes += file.bytes;
  }
  return usage;
}

// Other processes may sweep at the same time: each removes what it saw as oldest, so at worst a few
// entries more go than need be.
void DiskCache::sweep() const {
  std::vector<File> files = files_in(fd_);
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  uint64_t bytes = 0;
  std::erase_if(files, [&](const File& file) {
    if (!is_entry(file.name)) {
      if (now.tv_sec - file.changed.tv_sec >= stale_seconds_) unlinkat(fd_, file.name.c_str(), 0);
      return true;
    }
    bytes += file.bytes;
    return false;
  });
  if (bytes <= max_bytes_) return;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) {
    return std::pair(a.changed.tv_sec, a.changed.tv_nsec) <
           std::pair(b.changed.tv_sec, b.changed.tv_nsec);
  });
  for (const File& file : files) {
    if (bytes <= max_bytes_) return;
    unlinkat(fd_, file.name.c_str(), 0);
    bytes -= file.bytes;
  }
}

std::string cache_folder(std::string& why_not) {
  if (variable("TEGULA_CACHE") == "0") {
    why_not = "switched off by TEGULA_CACHE=0";
    return {};
  }
  if (std::string folder = variable("TEGULA_CACHE_DIR"); !folder.empty()) return folder;
  // The XDG specification: a relative path there is to be ignored.
  if (const std::string folder = variable("XDG_CACHE_HOME"); folder.starts_with('/')) {
    return folder + "/tegula";
  }
  if (const std::string home = variable("HOME"); home.starts_with('/'))
    return home + "/.cache/tegula";
  why_not = "none of TEGULA_CACHE_DIR, XDG_CACHE_HOME and HOME is set";
  return {};
}

}  // namespace tegula::cuda
