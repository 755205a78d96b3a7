// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "tests/device/model/machine.hpp"

namespace tegula::model {

void* open_kernels(const void* image, std::string& why) {
  const auto* const header = static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_machine != EM_X86_64) {
    why = "the image is no library of the model";
    return nullptr;
  }
  // The section headers come last.
  const std::size_t bytes = header->e_shoff + std::size_t{header->e_shnum} * header->e_shentsize;
  const int file = memfd_create("tegula-kernels", MFD_CLOEXEC);
  void* library = nullptr;
  if (file >= 0 && write(file, image, bytes) == static_cast<ssize_t>(bytes)) {
    library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    const char* const text = dlerror();
    why = text != nullptr ? text : "no memory for the library";
  }
  // The file stays open: the loader knows a library by its path, and another with the same number
  // would be taken for this one.
  if (library == nullptr && file >= 0) close(file);
  return library;
}

}  // namespace tegula::model
