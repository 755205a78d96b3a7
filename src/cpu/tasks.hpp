// SPDX-License-Identifier: Apache-2.0
// Running the tasks of one call: the caller's executor or the library's pool, with the
// floating-point environment that the kernels are written for.
#pragma once

#include <cstdint>
#include <type_traits>

#include "src/core/calls.hpp"
#include "src/core/float_environment.hpp"

namespace tegula::cpu {

// fn(task, worker) for every task in [0, count), worker < num_workers. Fn is called concurrently
// and must not throw.
void run_tasks(const Execution& execution, int32_t num_workers, int64_t count,
               void (*fn)(void*, int64_t, int32_t), void* argument);

template <class Fn>
void run_tasks(const Execution& execution, int32_t num_workers, int64_t count, Fn&& fn) {
  run_tasks(
      execution, num_workers, count,
      [](void* argument, int64_t task, int32_t worker) {
        const FloatEnvironment environment;
        (*static_cast<std::remove_reference_t<Fn>*>(argument))(task, worker);
      },
      &fn);
}

// Workers that the execution offers, where no plan fixes their number.
int32_t num_workers_of(const Execution& execution);

}  // namespace tegula::cpu
