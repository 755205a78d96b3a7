// SPDX-License-Identifier: Apache-2.0
// Counts calls of operator new, which the unit test program replaces.
#pragma once

#include <cstdint>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TEGULA_COUNT_ALLOCATIONS 0  // operator new belongs to the sanitizer
#else
#define TEGULA_COUNT_ALLOCATIONS 1
#endif

namespace tegula_test {

// Of all threads; 0 where nothing is counted.
int64_t num_allocations();

}  // namespace tegula_test
