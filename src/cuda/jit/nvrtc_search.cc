// SPDX-License-Identifier: Apache-2.0
// Where NVRTC may lie. Nothing is opened here: a copy is libnvrtc.so.<major> beside
// libnvrtc-builtins.so.<major>.<minor>, and the names tell its version.
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "src/cuda/jit/environment.hpp"
#include "src/cuda/jit/nvrtc.hpp"

namespace tegula::cuda {
namespace {

class Folders {
 public:
  void add(const std::string& folder) {
    struct stat status;
    if (folder.empty() || folder[0] != '/' || stat(folder.c_str(), &status) != 0) return;
    if (!S_ISDIR(status.st_mode) || !seen_.emplace(status.st_dev, status.st_ino).second) return;
    found_.push_back(folder);
  }
  // nvidia/cu13/lib of the packages for CUDA 13, nvidia/cuda_nvrtc/lib of those for 12.
  void add_site(const std::string& site) {
    const std::string vendor = site + "/nvidia/";
    for (const std::string& name : names_in(vendor)) add(vendor + name + "/lib");
  }
  void add_python(const std::string& prefix) {
    if (prefix.empty()) return;
    for (const std::string& name : names_in(prefix + "/lib")) {
      if (!name.starts_with("python3")) continue;
      add_site(prefix + "/lib/" + name + "/site-packages");
      add_site(prefix + "/lib/" + name + "/dist-packages");
    }
  }
  void add_toolkit(const std::string& root) {
    if (root.empty()) return;
    add(root + "/lib64");
    add(root + "/lib");
    add(root + "/targets/x86_64-linux/lib");
    add(root + "/targets/sbsa-linux/lib");
  }
  std::vector<std::string> take() { return std::move(found_); }

 private:
  std::vector<std::string> found_;
  std::set<std::pair<dev_t, ino_t>> seen_;
};

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> names;
  // Nothing may be thrown through the C library, which holds a lock there.
  const auto note = [](dl_phdr_info* info, size_t, void* list) noexcept {
    try {
      if (info->dlpi_name != nullptr && info->dlpi_name[0] == '/') {
        static_cast<std::vector<std::string>*>(list)->emplace_back(info->dlpi_name);
      }
      return 0;
    } catch (...) {
      return 1;
    }
  };
  dl_iterate_phdr(note, &names);
  return names;
}

// "13" -> 13; -1 unless the whole text is one number.
int number(std::string_view text) {
  int value = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() && value < 1000 ? value : -1;
}

}  // namespace

std::vector<std::string> nvrtc_folders() {
  Folders folders;
  const std::vector<std::string> libraries = loaded_libraries();
  for (const std::string& library : libraries) {
    for (const std::string_view root : {"/site-packages/", "/dist-packages/"}) {
      const size_t at = library.find(root);
      if (at != std::string::npos) folders.add_site(library.substr(0, at + root.size() - 1));
    }
  }
  for (const std::string& library : libraries) {
    const size_t slash = library.rfind('/');
    if (library.compare(slash + 1, 8, "libnvrtc") == 0) folders.add(library.substr(0, slash));
  }
  folders.add_python(variable("VIRTUAL_ENV"));
  const std::string conda = variable("CONDA_PREFIX");
  folders.add_python(conda);
  folders.add_toolkit(conda);
  if (const std::string home = variable("HOME"); !home.empty())
    folders.add_python(home + "/.local");
  folders.add_python("/usr/local");
  folders.add_python("/usr");

  folders.add_toolkit(variable("CUDA_HOME"));
  folders.add_toolkit(variable("CUDA_PATH"));
  for (const std::string& name : names_in("/usr/local")) {
    if (name.starts_with("cuda")) folders.add_toolkit("/usr/local/" + name);
  }
  folders.add_toolkit("/opt/cuda");

  for (const std::string& folder : parts_of(variable("LD_LIBRARY_PATH"))) folders.add(folder);
#if defined(__aarch64__)
  folders.add("/usr/lib/aarch64-linux-gnu");
#else
  folders.add("/usr/lib/x86_64-linux-gnu");
#endif
  folders.add("/usr/lib64");
  folders.add("/usr/lib");
  return folders.take();
}

std::vector<NvrtcFile> nvrtc_files(const std::vector<std::string>& folders) {
  constexpr std::string_view kName = "libnvrtc.so.", kBuiltins = "libnvrtc-builtins.so.";
  std::vector<NvrtcFile> files;
  for (const std::string& folder : folders) {
    const std::vector<std::string> names = names_in(folder);
    for (const std::string& name : names) {
      if (!name.starts_with(kName)) continue;
      const int major = number(std::string_view(name).substr(kName.size()));
      if (major < 0) continue;
      NvrtcFile file;
      for (const std::string& other : names) {
        if (!other.starts_with(kBuiltins)) continue;
        const std::string_view version = std::string_view(other).substr(kBuiltins.size());
        const size_t dot = version.find('.');
        if (dot == std::string_view::npos || number(version.substr(0, dot)) != major) continue;
        const int minor = number(version.substr(dot + 1));
        if (minor < 0 || minor >= 100 || major * 1000 + minor * 10 <= file.version) continue;
        file = {folder + "/" + name, folder + "/" + other, major * 1000 + minor * 10};
      }
      if (file.version == 0) continue;
      // The newest first, of equal ones the first found. (Not std::stable_sort: clang refuses
      // libstdc++ 12's for the deprecated buffer inside.)
      const auto place = std::upper_bound(
          files.begin(), files.end(), file,
          [](const NvrtcFile& a, const NvrtcFile& b) { return a.version > b.version; });
      files.insert(place, std::move(file));
    }
  }
  return files;
}

}  // namespace tegula::cuda
