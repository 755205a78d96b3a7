// SPDX-License-Identifier: Apache-2.0
// Executors that the contract allows and the library's own pool is not.
#pragma once

#include <tegula/tegula.hpp>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace tegula::testing {

// On the calling thread, from the back.
struct InlineExecutor : Executor {
  InlineExecutor() : Executor(1) {}
  void parallel_for(int64_t count, Task task) noexcept override {
    for (int64_t t = count - 1; t >= 0; --t) task(t, 0);
  }
};

// A std::thread for each worker and call; tasks from the back.
struct ThreadExecutor : Executor {
  explicit ThreadExecutor(int32_t num_workers) : Executor(num_workers) {}
  void parallel_for(int64_t count, Task task) noexcept override {
    std::atomic<int64_t> next{count};
    std::vector<std::thread> threads;
    for (int32_t worker = 0; worker < num_workers(); ++worker) {
      threads.emplace_back([&, worker] {
        for (int64_t t; (t = next.fetch_sub(1) - 1) >= 0;) task(t, worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace tegula::testing
