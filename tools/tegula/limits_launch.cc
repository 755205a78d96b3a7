// SPDX-License-Identifier: Apache-2.0
// The price of a parallel loop on this machine, with nothing around it: one word that opens the
// loop, one that closes it.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tools/tegula/bench_machine.hpp"
#include "tools/tegula/limits.hpp"
#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

using Clock = std::chrono::steady_clock;

struct Loop {
  alignas(64) std::atomic<int> opened{0};
  alignas(64) std::atomic<int> running{0};
  alignas(64) std::atomic<bool> sleeping{false}, stopping{false};
};

void serve(Loop& loop, int cpu) {
  pin_thread(0, cpu);
  for (int seen = 0; !loop.stopping;) {
    if (loop.sleeping) {
      loop.opened.wait(seen);
    } else {
      // A thread that shares its CPU has to let the other one go on.
      for (int spins = 0; loop.opened == seen && !loop.sleeping; ++spins) {
        if (spins > 100000) std::this_thread::yield();
      }
      if (loop.opened == seen) continue;
    }
    if (loop.opened == seen) continue;
    seen = loop.opened;
    --loop.running;
  }
}

double median_launch(Loop& loop, int threads, int count, std::chrono::microseconds pause) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    const Clock::time_point begin = Clock::now();
    loop.running = threads - 1;
    ++loop.opened;
    if (loop.sleeping) loop.opened.notify_all();
    for (int spins = 0; loop.running > 0; ++spins) {
      if (spins > 100000) std::this_thread::yield();
    }
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return median(times);
}

}  // namespace

LaunchTimes Limits::launch(int threads) const {
  if (threads < 2) return {0.0, 0.0};
  Loop loop;
  std::vector<std::thread> team;
  for (int i = 1; i < threads; ++i)
    team.emplace_back([&loop, cpu = cpus_[static_cast<std::size_t>(i)]] { serve(loop, cpu); });
  median_launch(loop, threads, 100, {});  // threads start
  LaunchTimes times;
  times.hot = median_launch(loop, threads, 2000, {});
  loop.sleeping = true;
  times.cold = median_launch(loop, threads, 100, std::chrono::microseconds(1000));
  loop.stopping = true;
  loop.running = threads - 1;
  ++loop.opened;
  loop.opened.notify_all();
  for (std::thread& thread : team) thread.join();
  return times;
}

}  // namespace tegula::program
