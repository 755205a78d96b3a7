// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/executor/thread_pool.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "src/cpu/executor/topology.hpp"

namespace tegula::cpu {
namespace {

// TSan refuses threads in the child of a process with threads; ASan of g++ 12 does not unlock its
// allocator in a child that was forked while another thread was inside it.
#if defined(__SANITIZE_THREAD__)
constexpr bool kForkWorks = false, kBusyForkWorks = false;
#elif defined(__SANITIZE_ADDRESS__)
constexpr bool kForkWorks = true, kBusyForkWorks = false;
#else
constexpr bool kForkWorks = true, kBusyForkWorks = true;
#endif

using Body = std::function<void(int64_t task, int32_t worker)>;

void run(ThreadPool& pool, int64_t count, const Body& body, int32_t max_workers = INT32_MAX) {
  pool.parallel_for(
      count,
      [](void* argument, int64_t task, int32_t worker) {
        (*static_cast<const Body*>(argument))(task, worker);
      },
      const_cast<Body*>(&body), max_workers);
}

// Plain (not atomic) writes: a missing happens-before edge is a TSan report, and a task that runs
// twice or on two threads of one worker id is a wrong sum.
bool sums_are_right(ThreadPool& pool, int64_t count) {
  struct alignas(64) PerWorker {
    int64_t sum = 0;
    int64_t tasks = 0;
  };
  std::vector<PerWorker> per_worker(static_cast<size_t>(pool.num_workers()));
  std::vector<int64_t> seen(static_cast<size_t>(count), 0);
  std::atomic<bool> ids_legal{true};
  run(pool, count, [&](int64_t task, int32_t worker) {
    if (worker < 0 || worker >= pool.num_workers() || task < 0 || task >= count) {
      ids_legal = false;
      return;
    }
    ++seen[static_cast<size_t>(task)];
    per_worker[static_cast<size_t>(worker)].sum += task;
    ++per_worker[static_cast<size_t>(worker)].tasks;
  });
  int64_t sum = 0, tasks = 0;
  for (const PerWorker& worker : per_worker) {
    sum += worker.sum;
    tasks += worker.tasks;
  }
  for (const int64_t times : seen) {
    if (times != 1) return false;
  }
  return ids_legal && tasks == count && sum == count * (count - 1) / 2;
}

// All tasks of one call are running at once, which only that many threads can achieve.
void meet(ThreadPool& pool, int32_t parties) {
  std::atomic<int32_t> arrived{0};
  run(pool, parties, [&](int64_t, int32_t) {
    ++arrived;
    while (arrived < parties) std::this_thread::yield();
  });
}

// Exit status of a child process that ran `body`; -1 if it did not exit by itself within a minute.
int status_of_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(ThreadPool, RunsEveryTaskOnceWhateverTheCountAndSize) {
  for (const int32_t workers : {1, 2, 3, 8, 33}) {
    ThreadPool pool(workers);
    EXPECT_EQ(pool.num_workers(), workers);
    for (const int64_t count : {0, 1, 2, 3, 7, 31, 32, 33, 1000, 20000}) {
      EXPECT_TRUE(sums_are_right(pool, count)) << workers << " workers, " << count << " tasks";
    }
  }
}

TEST(ThreadPool, CallMayLimitItsWorkers) {
  ThreadPool pool(6);
  meet(pool, 6);  // all threads run and could join
  for (const int32_t limit : {-1, 0, 1, 2, 3, 6, 7}) {
    std::vector<int32_t> used(6, 0);  // not atomic: two threads of one id would be a race
    std::atomic<int32_t> out_of_range{0};
    for (int round = 0; round < 100; ++round) {
      run(
          pool, 50,
          [&](int64_t, int32_t worker) {
            if (worker >= 0 && worker < 6) {
              ++used[static_cast<size_t>(worker)];
            } else {
              ++out_of_range;
            }
          },
          limit);
    }
    EXPECT_EQ(out_of_range, 0);
    int32_t tasks = 0;
    for (int32_t worker = 0; worker < 6; ++worker) {
      tasks += used[static_cast<size_t>(worker)];
      if (worker < std::max(limit, 1)) continue;
      EXPECT_EQ(used[static_cast<size_t>(worker)], 0) << limit;
    }
    EXPECT_EQ(tasks, 5000);
  }
}

TEST(ThreadPool, NoTaskForZeroOrNegativeCounts) {
  ThreadPool pool(4);
  bool ran = false;
  run(pool, 0, [&](int64_t, int32_t) { ran = true; });
  run(pool, -5, [&](int64_t, int32_t) { ran = true; });
  EXPECT_FALSE(ran);
}

TEST(ThreadPool, SingleTaskStaysOnTheCallersThread) {
  ThreadPool pool(4);
  std::thread::id where;
  run(pool, 1, [&](int64_t, int32_t) { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST(ThreadPool, AllWorkersRunAtOnceAndAgain) {
  ThreadPool pool(5);
  for (int round = 0; round < 50; ++round) meet(pool, 2 + round % 4);
}

TEST(ThreadPool, WorkersJoinAfterSleeping) {
  ThreadPool pool(6);
  for (int round = 0; round < 5; ++round) {
    meet(pool, 6);
    usleep(2000);  // longer than the spin: every worker is asleep
  }
}

TEST(ThreadPool, ManyShortCallsBackToBack) {
  ThreadPool pool(3);
  for (int64_t round = 0; round < 5000; ++round) {
    std::atomic<int64_t> sum{0};
    run(pool, 3, [&](int64_t task, int32_t) { sum += task; });
    ASSERT_EQ(sum, 3);
  }
}

TEST(ThreadPool, ConcurrentCallersEachGetTheirOwnTasks) {
  ThreadPool pool(4);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 200; ++round) {
        if (!sums_are_right(pool, 1 + (caller * 37 + round) % 100)) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ThreadPool, CallDoesNotWaitForAnotherThreadsCall) {
  ThreadPool pool(3);
  std::atomic<bool> release{false};
  std::atomic<int> holding{0};
  std::thread first([&] {
    run(pool, 3, [&](int64_t, int32_t) {
      ++holding;
      while (!release) std::this_thread::yield();
    });
  });
  while (holding < 3) std::this_thread::yield();
  EXPECT_TRUE(sums_are_right(pool, 500));  // would hang here if it waited
  release = true;
  first.join();
  meet(pool, 3);
}

TEST(ThreadPool, CallFromInsideATaskRunsInlineAsWorkerZero) {
  ThreadPool pool(4);
  ThreadPool other(4);
  std::atomic<int> wrong{0};
  run(pool, 16, [&](int64_t, int32_t) {
    const std::thread::id outer = std::this_thread::get_id();
    for (ThreadPool* inner : {&pool, &other}) {
      run(*inner, 9, [&](int64_t, int32_t worker) {
        if (std::this_thread::get_id() != outer || worker != 0) ++wrong;
      });
    }
  });
  EXPECT_EQ(wrong, 0);
  meet(other, 4);  // and the mark of being inside is gone afterwards
}

TEST(ThreadPool, SignalsAreLeftToTheProcessesOwnThreads) {
  ThreadPool pool(3);
  const pthread_t caller = pthread_self();
  std::atomic<int> unblocked{0};
  std::atomic<int32_t> arrived{0};
  run(pool, 3, [&](int64_t, int32_t) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    if (!pthread_equal(pthread_self(), caller) && !sigismember(&blocked, SIGINT)) ++unblocked;
  });
  EXPECT_EQ(unblocked, 0);
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_FALSE(sigismember(&blocked, SIGINT));
}

TEST(ThreadPool, PinnedCallerDoesNotPinTheWorkers) {
  const AffinityMask& whole = cpu_info().affinity;
  if (whole.count < 2) GTEST_SKIP() << "needs two CPUs";
  std::vector<int32_t> cpus_of_workers(3, 0);
  std::thread pinned([&] {
    AffinityMask one{};
    for (int32_t cpu = 0; one.count == 0; ++cpu) {
      if (!CPU_ISSET_S(static_cast<size_t>(cpu), sizeof whole.words, whole.words)) continue;
      CPU_SET_S(static_cast<size_t>(cpu), sizeof one.words, one.words);
      one.count = 1;
    }
    apply_affinity(one);
    ThreadPool pool(3);
    std::atomic<int32_t> arrived{0};
    run(pool, 3, [&](int64_t, int32_t worker) {
      ++arrived;
      while (arrived < 3) std::this_thread::yield();
      AffinityMask mine{};
      sched_getaffinity(0, sizeof mine.words, mine.words);
      cpus_of_workers[static_cast<size_t>(worker)] = CPU_COUNT_S(sizeof mine.words, mine.words);
    });
  });
  pinned.join();
  EXPECT_EQ(cpus_of_workers, (std::vector<int32_t>{1, whole.count, whole.count}));
}

TEST(ThreadPool, DefaultSizeIsTheDefaultNumberOfWorkers) {
  ThreadPool pool;
  EXPECT_EQ(pool.num_workers(), default_num_workers());
  EXPECT_EQ(ThreadPool(-3).num_workers(), default_num_workers());
  EXPECT_EQ(ThreadPool(kMaxWorkers + 5).num_workers(), kMaxWorkers);
}

TEST(ThreadPool, ProcessPoolIsOneForAllThreads) {
  std::set<ThreadPool*> pools;
  std::vector<ThreadPool*> seen(6, nullptr);
  std::vector<std::thread> threads;
  for (ThreadPool*& pool : seen) threads.emplace_back([&] { pool = &ThreadPool::process_pool(); });
  for (std::thread& thread : threads) thread.join();
  pools.insert(seen.begin(), seen.end());
  EXPECT_EQ(pools.size(), 1u);
  EXPECT_TRUE(sums_are_right(ThreadPool::process_pool(), 1000));
}

TEST(ThreadPool, ThreadsAreReleasedByTheDestructor) {
  for (int round = 0; round < 20; ++round) {
    ThreadPool pool(4);
    if (round % 2 == 0) meet(pool, 4);
  }
}

TEST(ThreadPool, ForkedChildStartsAfreshAndTheParentGoesOn) {
  if (!kForkWorks) GTEST_SKIP() << "not under this sanitizer";
  ThreadPool pool(4);
  meet(pool, 4);
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(status_of_child([&] {
                meet(pool, 4);
                return sums_are_right(pool, 1000);
              }),
              0);
    meet(pool, 4);
  }
}

TEST(ThreadPool, GrandchildWorksToo) {
  if (!kForkWorks) GTEST_SKIP() << "not under this sanitizer";
  ThreadPool& pool = ThreadPool::process_pool();
  EXPECT_EQ(status_of_child([&] {
              const bool mine = sums_are_right(pool, 100);
              return mine && status_of_child([&] { return sums_are_right(pool, 100); }) == 0;
            }),
            0);
}

TEST(ThreadPool, ForkWhileOtherThreadsCall) {
  if (!kBusyForkWorks) GTEST_SKIP() << "not under this sanitizer";
  ThreadPool pool(4);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      while (!stop) {
        if (!sums_are_right(pool, 64)) ++wrong;
      }
    });
  }
  for (int round = 0; round < 30; ++round) {
    EXPECT_EQ(status_of_child([&] {
                meet(pool, 4);
                return true;
              }),
              0);
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
  meet(pool, 4);
}

// The child has the forking thread only, so what other workers had in hand stays undone there; but
// the call returns, and the next one is whole.
TEST(ThreadPool, ForkInsideATask) {
  if (!kForkWorks) GTEST_SKIP() << "not under this sanitizer";
  ThreadPool pool(3);
  const pthread_t caller = pthread_self();
  pid_t child = -1;
  std::atomic<int32_t> arrived{0};
  run(pool, 3, [&](int64_t, int32_t) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
    if (pthread_equal(pthread_self(), caller)) child = fork();
  });
  if (child == 0) {
    alarm(60);
    _exit(sums_are_right(pool, 100) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  meet(pool, 3);
}

}  // namespace
}  // namespace tegula::cpu
