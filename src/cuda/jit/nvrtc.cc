// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/jit/nvrtc.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <type_traits>

#include "src/cuda/driver/driver.hpp"
#include "src/cuda/jit/environment.hpp"

namespace tegula::cuda {
namespace {

// Copies that were opened, as a list that only grows.
struct Opened {
  Nvrtc nvrtc;
  Opened* next;
};

constinit std::mutex mutex;
constinit Opened* opened = nullptr;

void install_fork_handlers() {
  pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
}

bool same_file(const std::string& a, const std::string& b) {
  struct stat first, second;
  return stat(a.c_str(), &first) == 0 && stat(b.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

// By absolute path: a bare soname would give the copy that PyTorch has loaded. The builtins library
// goes first, because libnvrtc asks for it by its soname, from no folder in particular.
Status open_file(const NvrtcFile& file, Nvrtc& nvrtc) {
  for (const std::string* path : {&file.builtins, &file.path}) {
    void* const handle = dlopen(path->c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* const why = dlerror();
      return fail(TEGULA_UNSUPPORTED, "NVRTC: %.300s", why != nullptr ? why : path->c_str());
    }
    if (path == &file.builtins) continue;
    const auto find = [&](auto& pointer, const char* name) -> Status {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(dlsym(handle, name));
      if (pointer != nullptr) return {};
      return fail(TEGULA_UNSUPPORTED, "NVRTC: %.300s has no %s", path->c_str(), name);
    };
#define TEGULA_NVRTC_FIND(type, symbol, parameters) \
  TEGULA_RETURN_IF_ERROR(find(nvrtc.symbol, #symbol));
    TEGULA_NVRTC_ENTRY_POINTS(TEGULA_NVRTC_FIND)
#undef TEGULA_NVRTC_FIND
  }
  int major = 0, minor = 0;
  if (nvrtc.nvrtcVersion(&major, &minor) != NVRTC_SUCCESS) {
    return fail(TEGULA_UNSUPPORTED, "NVRTC: %.300s does not tell its version", file.path.c_str());
  }
  nvrtc.version = major * 1000 + minor * 10;
  nvrtc.path = file.path;
  return {};
}

Status open_once(const NvrtcFile& file, const Nvrtc*& nvrtc) {
  static constinit pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, install_fork_handlers);
  const std::lock_guard lock(mutex);
  for (const Opened* known = opened; known != nullptr; known = known->next) {
    if (!same_file(known->nvrtc.path, file.path)) continue;
    nvrtc = &known->nvrtc;
    return {};
  }
  auto added = std::make_unique<Opened>(Opened{{}, opened});
  TEGULA_RETURN_IF_ERROR(open_file(file, added->nvrtc));
  opened = added.release();
  nvrtc = &opened->nvrtc;
  return {};
}

}  // namespace

Status open_nvrtc(const std::string& path, const Nvrtc*& nvrtc) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) {
    return fail(TEGULA_UNSUPPORTED, "NVRTC: %.300s: no such file or folder", path.c_str());
  }
  // A path without a slash would be looked for on the linker's path.
  char* const resolved = realpath(path.c_str(), nullptr);
  const std::string absolute = resolved != nullptr ? resolved : path;
  std::free(resolved);
  const bool is_folder = S_ISDIR(status.st_mode);
  const std::string folder = is_folder ? absolute : absolute.substr(0, absolute.rfind('/'));
  for (const NvrtcFile& file : nvrtc_files({folder})) {
    if (is_folder || same_file(file.path, absolute)) return open_once(file, nvrtc);
  }
  return fail(TEGULA_UNSUPPORTED,
              "NVRTC: %.300s: no libnvrtc.so.<major> with its libnvrtc-builtins.so.<major>.<minor>",
              path.c_str());
}

Status find_nvrtc(const Nvrtc*& nvrtc) {
  if (const std::string asked = variable("TEGULA_NVRTC"); !asked.empty())
    return open_nvrtc(asked, nvrtc);

  // Binaries of CUDA 12.x load on every driver from 12.0 on, those of 13.x on every one from 13.0.
  int driver_major = 1000;
  const Driver* driver = nullptr;
  if (find_driver(driver).ok()) {
    driver_major = driver->version / 1000;
  } else {
    clear_error();
  }
  const std::vector<std::string> folders = nvrtc_folders();
  const NvrtcFile* too_new = nullptr;
  const std::vector<NvrtcFile> files = nvrtc_files(folders);
  Status last;
  for (const NvrtcFile& file : files) {
    if (file.version / 1000 > driver_major) {
      too_new = &file;
      continue;
    }
    last = open_once(file, nvrtc);
    if (last.ok()) return {};
  }
  if (!last.ok()) return last;  // with the text of the oldest one
  if (too_new != nullptr) {
    return fail(TEGULA_UNSUPPORTED,
                "NVRTC: %.200s is for CUDA %d and the driver for CUDA %d; pip install "
                "nvidia-cuda-nvrtc-cu12, or set TEGULA_NVRTC",
                too_new->path.c_str(), too_new->version / 1000, driver_major);
  }
  return fail(
      TEGULA_UNSUPPORTED,
      "NVRTC: no libnvrtc.so in the nvidia packages of Python (loaded libraries, VIRTUAL_ENV, "
      "CONDA_PREFIX, user, system), in CUDA toolkits (CUDA_HOME, /usr/local/cuda*) nor in "
      "library folders, %zu folders in all; pip install nvidia-cuda-nvrtc (drivers from 580) "
      "or nvidia-cuda-nvrtc-cu12, or set TEGULA_NVRTC; packs of kernels need none",
      folders.size());
}

}  // namespace tegula::cuda
