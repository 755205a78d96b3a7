// SPDX-License-Identifier: Apache-2.0
// The fake driver as tests see it: its controls, and who steers it.
#pragma once

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "tests/device/fake/fake_cuda.hpp"

namespace fake {

// $TEGULA_LIBCUDA, which ctest sets for these tests.
inline const Control& control() {
  static const Control* const the_control = [] {
    const char* const path = std::getenv("TEGULA_LIBCUDA");
    void* const library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    const void* const found = library != nullptr ? dlsym(library, "fake_control") : nullptr;
    if (found == nullptr)
      throw std::runtime_error("TEGULA_LIBCUDA is not the fake driver (run these tests by ctest)");
    return static_cast<const Control*>(found);
  }();
  return *the_control;
}

}  // namespace fake
