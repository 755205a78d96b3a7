// SPDX-License-Identifier: Apache-2.0
// What a parallel loop costs beside its tasks: our pool, a thread spawned for each helper, and,
// where found, pthreadpool and oneTBB. Figures: docs/design/cpu_executor.md.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/cpu/executor/thread_pool.hpp"
#include "src/cpu/executor/topology.hpp"

#if defined(TEGULA_BENCH_PTHREADPOOL)
#include <pthreadpool.h>
#endif
#if defined(TEGULA_BENCH_TBB)
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration;
using tegula::cpu::TaskFn;

struct Launcher {
  virtual ~Launcher() = default;
  virtual void parallel_for(int64_t count, TaskFn fn, void* argument) = 0;
};

struct Inline : Launcher {
  explicit Inline(int32_t) {}
  void parallel_for(int64_t count, TaskFn fn, void* argument) override {
    for (int64_t task = 0; task < count; ++task) fn(argument, task, 0);
  }
};

struct Tegula : Launcher {
  explicit Tegula(int32_t workers) : pool(workers) {}
  void parallel_for(int64_t count, TaskFn fn, void* argument) override {
    pool.parallel_for(count, fn, argument);
  }
  tegula::cpu::ThreadPool pool;
};

struct Spawn : Launcher {
  explicit Spawn(int32_t workers) : num_workers(workers) {}
  void parallel_for(int64_t count, TaskFn fn, void* argument) override {
    std::atomic<int64_t> next{0};
    const auto work = [&](int32_t worker) {
      for (int64_t task; (task = next.fetch_add(1)) < count;) fn(argument, task, worker);
    };
    std::vector<std::thread> helpers;
    const auto threads = static_cast<int32_t>(std::min<int64_t>(num_workers, count));
    for (int32_t i = 1; i < threads; ++i) helpers.emplace_back(work, i);
    work(0);
    for (std::thread& helper : helpers) helper.join();
  }
  int32_t num_workers;
};

#if defined(TEGULA_BENCH_PTHREADPOOL)
struct Pthreadpool : Launcher {
  explicit Pthreadpool(int32_t workers) : pool(pthreadpool_create(static_cast<size_t>(workers))) {}
  ~Pthreadpool() override { pthreadpool_destroy(pool); }
  void parallel_for(int64_t count, TaskFn fn, void* argument) override {
    struct Call {
      TaskFn fn;
      void* argument;
    } call{fn, argument};
    pthreadpool_parallelize_1d(
        pool,
        [](void* context, size_t task) {
          const auto* self = static_cast<const Call*>(context);
          self->fn(self->argument, static_cast<int64_t>(task), 0);
        },
        &call, static_cast<size_t>(count), 0);
  }
  pthreadpool_t pool;
};
#endif

#if defined(TEGULA_BENCH_TBB)
struct Tbb : Launcher {
  explicit Tbb(int32_t workers) : arena(workers) {}
  void parallel_for(int64_t count, TaskFn fn, void* argument) override {
    arena.execute([&] {
      tbb::parallel_for(
          tbb::blocked_range<int64_t>(0, count, 1),
          [&](const tbb::blocked_range<int64_t>& range) {
            for (int64_t task = range.begin(); task < range.end(); ++task) fn(argument, task, 0);
          },
          tbb::simple_partitioner());
    });
  }
  tbb::task_arena arena;
};
#endif

// A task that keeps its CPU busy for a fixed time, as a kernel's tile would.
void busy_task(void* argument, int64_t, int32_t) {
  const auto length = *static_cast<const std::chrono::nanoseconds*>(argument);
  const Clock::time_point end = Clock::now() + length;
  while (Clock::now() < end) {
  }
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// One task a worker, each `task_ns` long, after `idle_us` without a call. The time reported is the
// median of the call's time minus the task's: what launching and joining added to perfect speed-up.
void launch(benchmark::State& state, Launcher& launcher, int32_t workers) {
  std::chrono::nanoseconds task(state.range(0));
  const std::chrono::microseconds idle(state.range(1));
  for (int i = 0; i < 100; ++i) launcher.parallel_for(workers, busy_task, &task);
  std::vector<double> times;
  for (auto _ : state) {
    if (idle.count() > 0) std::this_thread::sleep_for(idle);
    const Clock::time_point start = Clock::now();
    launcher.parallel_for(workers, busy_task, &task);
    times.push_back(duration<double>(Clock::now() - start).count());
    state.SetIterationTime(times.back());
  }
  const auto quantile = [&](double q) {
    const double last = static_cast<double>(times.size() - 1);
    const auto at = times.begin() + static_cast<std::ptrdiff_t>(q * last);
    std::nth_element(times.begin(), at, times.end());
    return 1e6 * *at - 1e-3 * static_cast<double>(task.count());
  };
  state.counters["median_added_us"] = quantile(0.5);
  state.counters["p10_added_us"] = quantile(0.1);
  state.counters["p90_added_us"] = quantile(0.9);
}

// CPU time that all threads burn in the 50 ms after a call.
void after_call(benchmark::State& state, Launcher& launcher, int32_t workers) {
  std::chrono::nanoseconds task(20'000);
  double burnt = 0;
  for (auto _ : state) {
    launcher.parallel_for(workers, busy_task, &task);
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    burnt += cpu_seconds() - before;
  }
  state.counters["cpu_us_after_call"] = 1e6 * burnt / static_cast<double>(state.iterations());
}

template <typename L>
void add(const std::string& name, int32_t workers) {
  benchmark::RegisterBenchmark((name + "/launch").c_str(),
                               [workers](benchmark::State& state) {
                                 L launcher(workers);
                                 launch(state, launcher, workers);
                               })
      ->ArgNames({"task_ns", "idle_us"})
      ->Args({0, 0})
      ->Args({20'000, 0})
      ->Args({200'000, 0})
      ->Args({200'000, 200})
      ->Args({200'000, 2'000})
      ->UseManualTime()
      ->Iterations(1000)
      ->Unit(benchmark::kMicrosecond);
  benchmark::RegisterBenchmark((name + "/after_call").c_str(),
                               [workers](benchmark::State& state) {
                                 L launcher(workers);
                                 after_call(state, launcher, workers);
                               })
      ->Iterations(20)
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  const int32_t workers = tegula::cpu::default_num_workers();
  benchmark::AddCustomContext("workers", std::to_string(workers));
  benchmark::AddCustomContext("cpu", tegula::cpu::cpu_info().brand);
  add<Inline>("inline", 1);
  add<Tegula>("tegula", workers);
  add<Spawn>("std_thread", workers);
#if defined(TEGULA_BENCH_PTHREADPOOL)
  add<Pthreadpool>("pthreadpool", workers);
#endif
#if defined(TEGULA_BENCH_TBB)
  add<Tbb>("onetbb", workers);
#endif
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
