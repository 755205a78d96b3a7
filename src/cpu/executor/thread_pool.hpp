// SPDX-License-Identifier: Apache-2.0
// The thread pool behind the default executor; docs/design/cpu_executor.md has the figures.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace tegula::cpu {

using TaskFn = void (*)(void* argument, int64_t task, int32_t worker);

class ThreadPool {
 public:
  // 0 workers asked: default_num_workers(). Threads start when a call first needs them.
  explicit ThreadPool(int32_t num_workers = 0);
  // No call may be in flight.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Runs fn(argument, t, worker) once for each t in [0, count), in any order, worker in
  // [0, min(num_workers(), max_workers)), one task at a time per worker of this call; what tasks
  // wrote is visible after the return. fn must not throw, and its tasks must not wait for one
  // another: a call from inside a task, or while another thread's call has the pool, runs all tasks
  // on its own thread.
  void parallel_for(int64_t count, TaskFn fn, void* argument,
                    int32_t max_workers = INT32_MAX) noexcept;

  int32_t num_workers() const noexcept { return num_workers_; }

  // The library's pool; made at the first use, which may throw std::bad_alloc, and never destroyed,
  // so that threads may outlive exit().
  static ThreadPool& process_pool();

 private:
  struct Worker;
  struct ForkHandlers;

  static void* worker_main(void* worker);
  void worker_loop(int32_t id) noexcept;
  int32_t start_workers(int32_t wanted) noexcept;
  void run_tasks(int32_t id) noexcept;
  void wake_workers(uint32_t state) noexcept;
  void forget_workers() noexcept;

  struct Job {
    TaskFn fn = nullptr;
    void* argument = nullptr;
    int64_t count = 0;
    bool by_thread = true;  // worker ids: the thread's own, or the place it took in this job
  };

  // state_ holds the number of active workers, the places still open in the running job, and flags.
  // It is the futex word of both the sleeping workers and the sleeping caller (told apart by bits).
  alignas(64) std::atomic<uint32_t> state_{0};
  std::atomic<int32_t> num_asleep_{0};
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<bool> busy_{false};  // whoever sets it owns job_ and num_started_
  Job job_;
  int32_t num_started_ = 0;
  int32_t num_workers_ = 1;
  bool may_spin_ = true;
  std::unique_ptr<Worker[]> workers_;
  ThreadPool* next_pool_ = nullptr;  // list of all pools, walked in a forked child
};

}  // namespace tegula::cpu
