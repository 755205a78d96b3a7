// SPDX-License-Identifier: Apache-2.0
// What the searches for compilers, packs and caches ask of the process and of folders.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tegula::cuda {

// An environment variable, "" if it is not set; none of a program with more rights than its user.
std::string variable(const char* name);

// The parts of a list with colons between them, but for empty ones.
std::vector<std::string> parts_of(std::string_view list);

// The names in a folder, in order, but for those that begin with a dot; none if it cannot be read.
std::vector<std::string> names_in(const std::string& folder);

}  // namespace tegula::cuda
