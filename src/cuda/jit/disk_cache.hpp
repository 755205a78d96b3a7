// SPDX-License-Identifier: Apache-2.0
// Compiled kernels on disk, a file each, shared by any number of processes. An entry is written
// beside its place and renamed, so that a reader sees a whole one or none, and carries its key and
// a checksum, so that one torn by a crash, or anything else of that name, is compiled again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/cuda/jit/digest.hpp"

namespace tegula::cuda {

class DiskCache {
 public:
  static constexpr uint64_t kMaxBytes = uint64_t{256} << 20;
  static constexpr int64_t kStaleSeconds = 600;  // older unfinished files are of dead processes

  // The folder is made if need be. One that this user does not own or that others can write is
  // refused: what lies there is run.
  explicit DiskCache(const std::string& folder, uint64_t max_bytes = kMaxBytes,
                     int64_t stale_seconds = kStaleSeconds);
  DiskCache(const DiskCache&) = delete;
  DiskCache& operator=(const DiskCache&) = delete;
  ~DiskCache();

  bool usable() const { return fd_ >= 0; }
  const std::string& refusal() const { return refusal_; }  // why it is not usable: one line

  // False: there is none, or none that is whole (which is then removed). A read entry counts as
  // new.
  bool read(const Digest& key, std::string& binary) const;
  // False: the disk refuses. The oldest entries go when all together pass max_bytes.
  bool write(const Digest& key, std::string_view binary) const;
  void remove(const Digest& key) const;

  struct Usage {
    int64_t entries = 0;
    uint64_t bytes = 0;
  };
  Usage usage() const;

 private:
  void sweep() const;

  uint64_t max_bytes_;
  int64_t stale_seconds_;
  int fd_ = -1;  // of the folder: it stays the one that was checked
  std::string refusal_;
};

// $TEGULA_CACHE_DIR, $XDG_CACHE_HOME/tegula or ~/.cache/tegula. Empty, with the reason, if there is
// none or TEGULA_CACHE=0 switches it off.
std::string cache_folder(std::string& why_not);

}  // namespace tegula::cuda
