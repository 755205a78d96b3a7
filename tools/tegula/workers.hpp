// SPDX-License-Identifier: Apache-2.0
// A small team of std::threads: an executor of the caller's kind, and the threads of everything here
// that is not the library (the reference, standard attention).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <tegula/tegula.hpp>

namespace tegula::program {

class Workers final : public Executor {
 public:
  // count >= 1, the calling thread included. With `cpus`, thread i >= 1 is bound to cpus[i].
  explicit Workers(int count, const std::vector<int>& cpus = {});
  ~Workers() override;

  // Runs task(index, worker) for every index in [0, count), the calling thread taking part as worker
  // 0. One loop at a time. The first exception of a task is thrown here, when all threads are done.
  void run(std::int64_t count, const std::function<void(std::int64_t, int)>& task);

  // For the library, whose tasks do not throw.
  void parallel_for(std::int64_t count, Task task) noexcept override { run(count, task); }

 private:
  void work(int worker);
  void take_tasks(int worker);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> round_{0};  // grows by one for each loop; written under mutex_
  std::atomic<int> running_{0};          // threads still inside the current loop
  std::atomic<std::int64_t> next_{0};
  std::int64_t count_ = 0;
  const std::function<void(std::int64_t, int)>* task_ = nullptr;
  std::exception_ptr error_;
  std::atomic<bool> stopping_{false};
};

}  // namespace tegula::program
