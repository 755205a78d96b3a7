// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/tasks.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "src/cpu/executor/thread_pool.hpp"

namespace tegula::cpu {

#if defined(__x86_64__)
// All exceptions masked, round to nearest, neither flush-to-zero nor denormals-are-zero.
FloatEnvironment::FloatEnvironment() noexcept : saved_(_mm_getcsr()) {
  _mm_setcsr(0x1f80);
}
FloatEnvironment::~FloatEnvironment() noexcept {
  _mm_setcsr(static_cast<unsigned>(saved_));
}
#elif defined(__aarch64__)
FloatEnvironment::FloatEnvironment() noexcept {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
}
FloatEnvironment::~FloatEnvironment() noexcept {
  asm volatile("msr fpcr, %0" : : "r"(saved_));
}
#else
#error "The floating-point environment of this architecture is not known here."
#endif

void run_tasks(const Execution& execution, int32_t num_workers, int64_t count,
               void (*fn)(void*, int64_t, int32_t), void* argument) {
  if (num_workers == 1 || count == 1) {
    for (int64_t task = 0; task < count; ++task) fn(argument, task, 0);
  } else if (execution.executor != nullptr) {
    execution.executor->parallel_for(execution.executor->context, count, fn, argument);
  } else {
    ThreadPool::process_pool().parallel_for(count, fn, argument, num_workers);
  }
}

int32_t num_workers_of(const Execution& execution) {
  return execution.executor != nullptr ? execution.executor->num_workers
                                       : ThreadPool::process_pool().num_workers();
}

}  // namespace tegula::cpu
