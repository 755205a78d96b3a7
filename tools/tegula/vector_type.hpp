// SPDX-License-Identifier: Apache-2.0
// Vectors of the compiler's own kind, for the yardsticks: one body, inlined into a function for each instruction set.
#pragma once

#include <cstdint>

#define TEGULA_INLINE inline __attribute__((always_inline))

namespace tegula::program {

template <int kLanes>
struct VectorType {
  typedef float type __attribute__((vector_size(kLanes * sizeof(float))));
  typedef std::int32_t integer __attribute__((vector_size(kLanes * sizeof(float))));
};

}  // namespace tegula::program
