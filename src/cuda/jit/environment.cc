// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/jit/environment.hpp"

#include <dirent.h>

#include <algorithm>
#include <cstdlib>

namespace tegula::cuda {

std::string variable(const char* name) {
  const char* const value = secure_getenv(name);
  return value != nullptr ? value : "";
}

std::vector<std::string> parts_of(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const size_t at = std::min(list.find(':'), list.size());
    if (at > 0) parts.emplace_back(list.substr(0, at));
    list.remove_prefix(std::min(at + 1, list.size()));
  }
  return parts;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const stream = opendir(folder.c_str());
  if (stream == nullptr) return names;
  while (const dirent* entry = readdir(stream)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tegula::cuda
