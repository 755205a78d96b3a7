// SPDX-License-Identifier: Apache-2.0
// --device cpu | cuda | cuda:N.
#pragma once

#include <memory>
#include <string>

#include "tests/cases/gpu.hpp"

namespace tegula::program {

// "cuda" is GPU 0; -1: the CPU. Failure for anything else.
int gpu_index(const std::string& device);

// Failure with the driver's words if it is not there, or if `device` is the CPU.
std::unique_ptr<cases::Gpu> open_gpu(const std::string& device);

}  // namespace tegula::program
