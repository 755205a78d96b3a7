// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/tasks.hpp"

#include "src/cpu/executor/thread_pool.hpp"

namespace tegula::cpu {

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
