// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/jit/pack.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <utility>

#include "src/cuda/jit/environment.hpp"

namespace tegula::cuda {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'T', 'E', 'G', 'P', 'A', 'C', 'K', '1'};

struct Header {
  char magic[8];
  uint32_t compiler;
  uint32_t least_driver;
  uint32_t count;
  uint32_t reserved;
  uint64_t file_bytes;
  Digest checksum;  // of the fields above and the table
};
static_assert(sizeof(Header) == 64);
static_assert(sizeof(PackedKernel) == 224 && std::is_trivially_copyable_v<PackedKernel>);

Digest table_checksum(const Header& header, const std::vector<PackedKernel>& kernels) {
  Sha256 hash;
  hash.add(&header, offsetof(Header, checksum));
  hash.add(kernels.data(), kernels.size() * sizeof(PackedKernel));
  return hash.finish();
}

Digest digest_of(std::string_view binary) {
  Sha256 hash;
  hash.add(binary.data(), binary.size());
  return hash.finish();
}

bool read_at(int fd, void* to, uint64_t bytes, uint64_t offset) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(fd, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got, bytes -= static_cast<uint64_t>(got), offset += static_cast<uint64_t>(got);
  }
  return true;
}

// nullptr: the record is one.
const char* fault_of(const PackedKernel& kernel, uint64_t begin, uint64_t end) {
  if (kernel.offset < begin || kernel.offset > end) return "a binary begins outside the file";
  if (kernel.bytes == 0 || kernel.bytes > end - kernel.offset)
    return "a binary ends outside the file";
  if (std::memchr(kernel.name, '\0', sizeof kernel.name) == nullptr) return "a name has no end";
  for (const char* c = kernel.name; *c != '\0'; ++c) {
    if (*c < ' ' || *c > '~') return "a name is not printable";
  }
  return nullptr;
}

void add_packs_of(const std::string& folder, std::vector<std::string>& paths) {
  for (const std::string& name : names_in(folder)) {
    if (name.ends_with(".tegpack")) paths.push_back(folder + "/" + name);
  }
}

}  // namespace

Pack::Pack(Pack&& other) noexcept {
  *this = std::move(other);
}

Pack& Pack::operator=(Pack&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(compiler_, other.compiler_);
  std::swap(least_driver_, other.least_driver_);
  std::swap(kernels_, other.kernels_);
  return *this;
}

Pack::~Pack() {
  if (fd_ >= 0) close(fd_);
}

Status Pack::open(const std::string& path, Pack& pack) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    char text[128] = "";
    return fail(TEGULA_INVALID_ARGUMENT, "pack %.250s: %s", path.c_str(),
                strerror_r(errno, text, sizeof text));
  }
  return open(fd, path, pack);
}

Status Pack::open(int fd, const std::string& name, Pack& pack) {
  Pack read;
  read.fd_ = fd;
  read.path_ = name;
  const auto bad = [&name](const char* why) {
    return fail(TEGULA_INVALID_ARGUMENT, "pack %.250s: %s", name.c_str(), why);
  };
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return bad("is not a file");
  const auto size = static_cast<uint64_t>(status.st_size);
  Header header;
  if (size < sizeof header || !read_at(fd, &header, sizeof header, 0)) return bad("is cut short");
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return bad("is not a pack of kernels");
  if (header.file_bytes != size || size > kMaxBytes) return bad("its size is not the one it tells");
  if (header.count > kMaxKernels || header.count * sizeof(PackedKernel) > size - sizeof header) {
    return bad("its table is longer than the file");
  }
  if (header.compiler > 1000000 || header.least_driver > 1000000)
    return bad("its versions are none");
  read.kernels_.resize(header.count);
  const uint64_t table_bytes = header.count * sizeof(PackedKernel);
  if (!read_at(fd, read.kernels_.data(), table_bytes, sizeof header)) return bad("cannot be read");
  if (table_checksum(header, read.kernels_) != header.checksum) return bad("its table is damaged");
  const PackedKernel* previous = nullptr;
  for (const PackedKernel& kernel : read.kernels_) {
    if (const char* why = fault_of(kernel, sizeof header + table_bytes, size)) return bad(why);
    if (previous != nullptr && previous->key >= kernel.key) return bad("its keys are not in order");
    previous = &kernel;
  }
  read.compiler_ = static_cast<int>(header.compiler);
  read.least_driver_ = static_cast<int>(header.least_driver);
  pack = std::move(read);
  return {};
}

const PackedKernel* Pack::find(const Digest& key) const {
  const auto at = std::lower_bound(
      kernels_.begin(), kernels_.end(), key,
      [](const PackedKernel& kernel, const Digest& wanted) { return kernel.key < wanted; });
  return at != kernels_.end() && at->key == key ? &*at : nullptr;
}

Status Pack::read(const PackedKernel& kernel, std::string& binary) const {
  std::string found(kernel.bytes, '\0');
  if (!read_at(fd_, found.data(), found.size(), kernel.offset) ||
      digest_of(found) != kernel.checksum) {
    return fail(TEGULA_INVALID_ARGUMENT, "pack %.250s: the binary of \"%s\" is damaged",
                path_.c_str(), kernel.name);
  }
  binary = std::move(found);
  return {};
}

Status write_pack(const std::string& path, int compiler, std::vector<PackedKernel> kernels,
                  const std::vector<std::string>& binaries) {
  std::vector<size_t> order(kernels.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return kernels[a].key < kernels[b].key; });
  std::vector<PackedKernel> table;
  uint64_t offset = sizeof(Header) + kernels.size() * sizeof(PackedKernel);
  for (const size_t i : order) {
    if (!table.empty() && table.back().key == kernels[i].key) {
      return fail(TEGULA_INVALID_ARGUMENT, "pack %.250s: \"%s\" is \"%s\" once more", path.c_str(),
                  kernels[i].name, table.back().name);
    }
    table.push_back(kernels[i]);
    table.back().offset = offset;
    table.back().bytes = binaries[i].size();
    table.back().checksum = digest_of(binaries[i]);
    offset += binaries[i].size();
  }
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.compiler = static_cast<uint32_t>(compiler);
  header.least_driver = static_cast<uint32_t>(least_driver_of(compiler));
  header.count = static_cast<uint32_t>(table.size());
  header.file_bytes = offset;
  header.checksum = table_checksum(header, table);

  const std::string unfinished = path + "." + std::to_string(getpid());
  std::FILE* const file = std::fopen(unfinished.c_str(), "wbe");
  if (file == nullptr) {
    return fail(TEGULA_INVALID_ARGUMENT, "pack %.250s: cannot be written", unfinished.c_str());
  }
  bool done = std::fwrite(&header, sizeof header, 1, file) == 1;
  done = done && (table.empty() || std::fwrite(table.data(), sizeof(PackedKernel), table.size(),
                                               file) == table.size());
  for (const size_t i : order) {
    done =
        done && std::fwrite(binaries[i].data(), 1, binaries[i].size(), file) == binaries[i].size();
  }
  done = std::fclose(file) == 0 && done;
  done = done && std::rename(unfinished.c_str(), path.c_str()) == 0;
  if (done) return {};
  std::remove(unfinished.c_str());
  return fail(TEGULA_INVALID_ARGUMENT, "pack %.250s: cannot be written", path.c_str());
}

std::vector<std::string> pack_paths() {
  const std::string asked = variable("TEGULA_PACK");
  if (asked == "none") return {};
  std::vector<std::string> paths = parts_of(asked);
  // The file that holds this function: the shared library, or a program linked with the static one.
  Dl_info where;
  if (dladdr(reinterpret_cast<void*>(&pack_paths), &where) == 0 || where.dli_fname == nullptr)
    return paths;
  char* const resolved = realpath(where.dli_fname, nullptr);
  const std::string library = resolved != nullptr ? resolved : "";
  std::free(resolved);
  const size_t slash = library.rfind('/');
  if (slash == std::string::npos) return paths;
  const std::string folder = library.substr(0, slash);
  add_packs_of(folder, paths);
  add_packs_of(folder + "/../share/tegula", paths);
  add_packs_of(folder + "/../../share/tegula", paths);  // of lib/x86_64-linux-gnu
  return paths;
}

}  // namespace tegula::cuda
