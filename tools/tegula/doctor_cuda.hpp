// SPDX-License-Identifier: Apache-2.0
// What the library finds of CUDA on this machine.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/tegula/command.hpp"

namespace tegula::program {

struct CudaFindings {
  std::vector<std::pair<std::string, std::string>> lines;  // for people: what, and its state
  Json json;
};

CudaFindings find_cuda();

}  // namespace tegula::program
