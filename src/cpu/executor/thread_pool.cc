// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/executor/thread_pool.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <new>
#include <utility>

#include "src/core/log.hpp"
#include "src/cpu/executor/topology.hpp"

namespace tegula::cpu {
namespace {

constexpr uint32_t kActiveMask = 0xffff, kOnePlace = 0x1'0000, kPlacesMask = 0x3fff'0000;
constexpr uint32_t kCallerSleeps = 0x4000'0000, kStop = 0x8000'0000;
static_assert(kMaxWorkers <= int32_t{kPlacesMask / kOnePlace});

constexpr uint32_t kWorkerBit = 1, kCallerBit = 2;
// Each thread that joins wakes at most this many more, so that no thread wakes a hundred others.
constexpr int32_t kWakeFanout = 4;
constexpr auto kSpinTime = std::chrono::microseconds(50);

// Tasks on this thread run inside a call: calls they make run inline.
constinit thread_local bool inside_task = false;

int32_t places(uint32_t state) {
  return static_cast<int32_t>((state & kPlacesMask) / kOnePlace);
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, uint32_t bits) {
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, nullptr, nullptr, bits);
}
void futex_wake(std::atomic<uint32_t>& word, int32_t count, uint32_t bits) {
  syscall(SYS_futex, &word, FUTEX_WAKE_BITSET_PRIVATE, count, nullptr, nullptr, bits);
}

class Spin {
 public:
  explicit Spin(bool enabled) : enabled_(enabled) {}
  void restart() { turns_ = 0; }
  bool again() {
    if (!enabled_) return false;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // `yield` is a no-op on most cores
#endif
    if (turns_++ % 32 != 0) return true;
    sched_yield();  // on a loaded machine the thread waited for may need this very CPU
    const auto now = std::chrono::steady_clock::now();
    if (turns_ == 1) end_ = now + kSpinTime;
    return now < end_;
  }

 private:
  bool enabled_;
  uint32_t turns_ = 0;
  std::chrono::steady_clock::time_point end_;
};

void run_inline(int64_t count, TaskFn fn, void* argument) {
  const bool outer = std::exchange(inside_task, true);
  for (int64_t task = 0; task < count; ++task) fn(argument, task, 0);
  inside_task = outer;
}

constinit std::atomic<ThreadPool*> the_process_pool{nullptr};
constinit std::mutex pool_list_mutex;
constinit ThreadPool* pool_list = nullptr;

}  // namespace

struct ThreadPool::Worker {
  ThreadPool* pool;
  int32_t id;
  pthread_t thread;
};

// A forked child has one thread: its pools start again from nothing, whatever the parent was doing.
struct ThreadPool::ForkHandlers {
  static void prepare() { pool_list_mutex.lock(); }
  static void parent() { pool_list_mutex.unlock(); }
  static void child() {
    for (ThreadPool* pool = pool_list; pool; pool = pool->next_pool_) pool->forget_workers();
    pool_list_mutex.unlock();
  }
  static void install() { pthread_atfork(prepare, parent, child); }
};

ThreadPool::ThreadPool(int32_t num_workers)
    : num_workers_(std::min(num_workers > 0 ? num_workers : default_num_workers(), kMaxWorkers)),
      may_spin_(num_workers_ <= cpu_info().usable_cpus),
      workers_(new(std::nothrow) Worker[static_cast<size_t>(num_workers_)]) {
  if (!workers_) num_workers_ = 1;
  static constinit pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, ForkHandlers::install);
  const std::lock_guard lock(pool_list_mutex);
  next_pool_ = std::exchange(pool_list, this);
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(pool_list_mutex);
    ThreadPool** link = &pool_list;
    while (*link != this) link = &(*link)->next_pool_;
    *link = next_pool_;
  }
  state_.fetch_or(kStop, std::memory_order_release);
  futex_wake(state_, kMaxWorkers, kWorkerBit);
  for (int32_t i = 0; i < num_started_; ++i) pthread_join(workers_[i].thread, nullptr);
}

ThreadPool& ThreadPool::process_pool() {
  // No function-local static: a fork while another thread holds its guard would hang the child.
  ThreadPool* pool = the_process_pool.load(std::memory_order_acquire);
  if (pool) return *pool;
  auto* fresh = new ThreadPool();
  if (the_process_pool.compare_exchange_strong(pool, fresh, std::memory_order_acq_rel)) {
    return *fresh;
  }
  delete fresh;
  return *pool;
}

void ThreadPool::parallel_for(int64_t count, TaskFn fn, void* argument,
                              int32_t max_workers) noexcept {
  const int32_t limit = std::min(num_workers_, max_workers);
  const auto helpers = static_cast<int32_t>(std::min<int64_t>(count, limit)) - 1;
  if (helpers <= 0 || inside_task || busy_.exchange(true, std::memory_order_acquire)) {
    return run_inline(count, fn, argument);
  }
  const int32_t open_places = std::min(helpers, start_workers(helpers));
  // A thread's own id keeps its scratch in its cache; under a limit only the places are few enough.
  job_ = {fn, argument, count, limit == num_workers_};
  next_task_.store(0, std::memory_order_relaxed);
  // seq_cst with num_asleep_: this thread sees the sleeper, or the sleeper sees the new state.
  const uint32_t opened = static_cast<uint32_t>(open_places) * kOnePlace;
  state_.exchange(opened, std::memory_order_seq_cst);
  wake_workers(opened);
  run_tasks(0);
  // All tasks are taken and no place is open: only workers that joined are waited for.
  Spin spin(may_spin_);
  for (;;) {
    uint32_t state = state_.load(std::memory_order_acquire);
    if ((state & kActiveMask) == 0) break;
    if (spin.again()) continue;
    if (!(state & kCallerSleeps) &&
        !state_.compare_exchange_weak(state, state | kCallerSleeps, std::memory_order_relaxed)) {
      continue;
    }
    futex_wait(state_, state | kCallerSleeps, kCallerBit);
  }
  state_.store(0, std::memory_order_relaxed);
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::run_tasks(int32_t id) noexcept {
  const Job job = job_;
  inside_task = true;
  for (;;) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= job.count) break;
    job.fn(job.argument, task, id);
  }
  inside_task = false;
  state_.fetch_and(~kPlacesMask, std::memory_order_relaxed);
}

void ThreadPool::wake_workers(uint32_t state) noexcept {
  const int32_t asleep = num_asleep_.load(std::memory_order_seq_cst);
  if (asleep <= 0) return;
  const int32_t idle_awake = num_started_ - asleep - static_cast<int32_t>(state & kActiveMask);
  const int32_t wanted = std::min(places(state) - idle_awake, kWakeFanout);
  if (wanted > 0) futex_wake(state_, wanted, kWorkerBit);
}

void ThreadPool::worker_loop(int32_t id) noexcept {
  Spin spin(may_spin_);
  for (;;) {
    uint32_t state = state_.load(std::memory_order_relaxed);
    if (state & kStop) return;
    if (state & kPlacesMask) {
      const uint32_t joined = state - kOnePlace + 1;
      if (!state_.compare_exchange_weak(state, joined, std::memory_order_acquire)) continue;
      wake_workers(joined);
      run_tasks(job_.by_thread ? id : places(state));
      if (id > num_started_) return;  // a child forked inside a task on this thread
      state = state_.fetch_sub(1, std::memory_order_release);
      if ((state & kActiveMask) == 1 && (state & kCallerSleeps)) futex_wake(state_, 1, kCallerBit);
      spin.restart();
    } else if (!spin.again()) {
      num_asleep_.fetch_add(1, std::memory_order_seq_cst);
      futex_wait(state_, state, kWorkerBit);
      // Spins only after a job: a thread that woke too late for one would spin in the caller's way.
      num_asleep_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
}

void* ThreadPool::worker_main(void* worker) {
  const auto* self = static_cast<const Worker*>(worker);
  // The thread that happened to call first may be pinned to one CPU; the pool counted them all.
  apply_affinity(cpu_info().affinity);
  pthread_setname_np(pthread_self(), "tegula");
  self->pool->worker_loop(self->id);
  return nullptr;
}

// Returns how many run; fewer than wanted when the system refuses more threads.
int32_t ThreadPool::start_workers(int32_t wanted) noexcept {
  if (num_started_ >= wanted) return num_started_;
  sigset_t all, before;  // the process's signal handlers stay on the process's own threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (num_started_ < wanted) {
    Worker& worker = workers_[num_started_];
    worker = {this, num_started_ + 1, {}};
    if (pthread_create(&worker.thread, nullptr, worker_main, &worker) != 0) break;
    ++num_started_;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (num_started_ < wanted) {
    log_message("the system refused a thread: a call runs on %d of %d workers", num_started_ + 1,
                wanted + 1);
  }
  return num_started_;
}

void ThreadPool::forget_workers() noexcept {
  state_.store(0, std::memory_order_relaxed);
  num_asleep_.store(0, std::memory_order_relaxed);
  num_started_ = 0;
  busy_.store(false, std::memory_order_relaxed);
}

}  // namespace tegula::cpu
