// SPDX-License-Identifier: Apache-2.0
// A pack of kernels: whatever the bytes are, it opens with a table inside the file or fails with
// one line.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "src/core/status.hpp"
#include "src/cuda/jit/pack.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using tegula::cuda::Pack;
using tegula::cuda::PackedKernel;
using tegula::fuzz::require;

void require_one_line() {
  const std::string text = tegula::error_text();
  require(!text.empty());
  for (const char c : text) require(c >= ' ' && c <= '~');
}

void open_and_check(const std::uint8_t* data, std::size_t size) {
  const int fd = memfd_create("pack", MFD_CLOEXEC);
  require(fd >= 0 && write(fd, data, size) == static_cast<ssize_t>(size));
  Pack pack;
  if (!Pack::open(fd, "p", pack).ok()) {
    require(pack.kernels().empty());
    return require_one_line();
  }
  for (const PackedKernel& kernel : pack.kernels()) {
    require(kernel.offset <= size && kernel.bytes <= size - kernel.offset);
    require(pack.find(kernel.key) == &kernel);
    std::string binary;
    if (pack.read(kernel, binary).ok()) {
      require(binary.size() == kernel.bytes);
      require(std::memcmp(binary.data(), data + kernel.offset, binary.size()) == 0);
    } else {
      require_one_line();
    }
  }
}

}  // namespace

// First the bytes as they are, then with magic, size and checksum made right, which a mutator would
// never keep so.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  open_and_check(data, size);
  constexpr std::size_t kHeader = 64, kChecksum = 32;
  if (size < kHeader) return 0;
  std::vector<std::uint8_t> repaired(data, data + size);
  std::memcpy(repaired.data(), "TEGPACK1", 8);
  const std::uint64_t file_bytes = size;
  std::memcpy(repaired.data() + 24, &file_bytes, sizeof file_bytes);
  const std::size_t most = (size - kHeader) / sizeof(PackedKernel);
  std::uint32_t count;
  std::memcpy(&count, repaired.data() + 16, sizeof count);
  count = static_cast<std::uint32_t>(std::min<std::size_t>(count, most));
  std::memcpy(repaired.data() + 16, &count, sizeof count);
  tegula::cuda::Sha256 hash;
  hash.add(repaired.data(), kChecksum);
  hash.add(repaired.data() + kHeader, count * sizeof(PackedKernel));
  const tegula::cuda::Digest digest = hash.finish();
  std::memcpy(repaired.data() + kChecksum, digest.data(), digest.size());
  open_and_check(repaired.data(), repaired.size());
  return 0;
}
