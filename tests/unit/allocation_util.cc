// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/allocation_util.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count{0};
}

#if TEGULA_COUNT_ALLOCATIONS
// For the whole test program; the array and nothrow forms come here too. Not inlined: g++ 12 would
// take new and free() for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++count;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

int64_t tegula_test::num_allocations() { return count; }
