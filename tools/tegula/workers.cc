// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/workers.hpp"

#include <pthread.h>
#include <sched.h>

#include <chrono>

namespace tegula::program {
namespace {

// A loop follows the last one within microseconds while a workload runs: sleeping in between would
// add a wake-up to each.
constexpr std::chrono::microseconds kSpin{50};

// Spins, then yields; true once done() is.
template <typename Done>
bool spin_until(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

}  // namespace

Workers::Workers(int count, const std::vector<int>& cpus) : Executor(count) {
  for (int worker = 1; worker < count; ++worker) {
    threads_.emplace_back([this, worker] { work(worker); });
    if (cpus.empty()) continue;
    const auto cpu = static_cast<std::size_t>(cpus[static_cast<std::size_t>(worker)]);
    cpu_set_t words[8] = {};  // the kernel's limit is 8192 CPUs
    CPU_SET_S(cpu, sizeof words, words);
    pthread_setaffinity_np(threads_.back().native_handle(), sizeof words, words);
  }
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::take_tasks(int worker) {
  try {
    for (std::int64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) (*task_)(i, worker);
  } catch (...) {
    next_ = count_;  // the others stop at their next task
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void Workers::work(int worker) {
  std::uint64_t seen = 0;
  for (;;) {
    const auto called = [&] { return round_.load() != seen || stopping_.load(); };
    if (!spin_until(called)) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, called);
    }
    if (stopping_) return;
    seen = round_;
    take_tasks(worker);
    running_.fetch_sub(1);
  }
}

void Workers::run(std::int64_t count, const std::function<void(std::int64_t, int)>& task) {
  task_ = &task;
  count_ = count;
  next_ = 0;
  error_ = nullptr;
  const bool alone = threads_.empty() || count < 2;
  if (!alone) {
    running_ = static_cast<int>(threads_.size());
    {
      const std::lock_guard lock(mutex_);
      ++round_;
    }
    wake_.notify_all();
  }
  take_tasks(0);
  if (!alone) {
    while (running_.load() > 0) {
      if (!spin_until([this] { return running_.load() == 0; })) std::this_thread::yield();
    }
  }
  if (error_) std::rethrow_exception(error_);
}

}  // namespace tegula::program
