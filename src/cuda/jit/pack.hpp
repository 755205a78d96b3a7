// SPDX-License-Identifier: Apache-2.0
// A pack: kernels compiled ahead of time, in one file. Little endian:
//   header   magic, compiler, least driver, count, bytes of the file, SHA-256 of header and table
//   table    one fixed record a kernel, ascending by key
//   binaries, each with its own SHA-256 in the table
// The file is untrusted: opening checks header and table, reading a kernel checks its binary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/core/status.hpp"
#include "src/cuda/jit/digest.hpp"

namespace tegula::cuda {

struct PackedKernel {
  Digest key{};
  Digest checksum{};  // of the binary
  uint64_t offset = 0;
  uint64_t bytes = 0;
  int32_t arch = 0;
  int32_t registers = 0;
  int32_t local_bytes = 0;   // of a thread
  int32_t shared_bytes = 0;  // of a block, what is given at launch included
  char name[128] = "";
};

class Pack {
 public:
  static constexpr uint32_t kMaxKernels = 1 << 16;
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 32;

  Pack() = default;
  Pack(Pack&& other) noexcept;
  Pack& operator=(Pack&& other) noexcept;
  ~Pack();

  // Fails with TEGULA_INVALID_ARGUMENT and what is wrong with the file.
  static Status open(const std::string& path, Pack& pack);
  // The same of a descriptor, which it takes; name is for error texts.
  static Status open(int fd, const std::string& name, Pack& pack);

  const std::string& path() const { return path_; }
  int compiler() const { return compiler_; }          // 12090 = NVRTC 12.9
  int least_driver() const { return least_driver_; }  // 12000 = CUDA 12.0
  const std::vector<PackedKernel>& kernels() const { return kernels_; }

  const PackedKernel* find(const Digest& key) const;
  Status read(const PackedKernel& kernel, std::string& binary) const;

 private:
  std::string path_;
  int fd_ = -1;
  int compiler_ = 0;
  int least_driver_ = 0;
  std::vector<PackedKernel> kernels_;
};

// Sets offset, bytes and checksum of the kernels, which come with their binaries in any order, and
// replaces the file at path in one step.
Status write_pack(const std::string& path, int compiler, std::vector<PackedKernel> kernels,
                  const std::vector<std::string>& binaries);

// Where packs are looked for: the files of $TEGULA_PACK (separated by colons; "none": nowhere),
// then *.tegpack beside this library and in ../share/tegula or ../../share/tegula from there.
std::vector<std::string> pack_paths();

// Binaries of a CUDA version load on every driver of its major version and of later ones.
inline constexpr int least_driver_of(int compiler) {
  return compiler / 1000 * 1000;
}

}  // namespace tegula::cuda
