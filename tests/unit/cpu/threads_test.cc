// SPDX-License-Identifier: Apache-2.0
// Forward calls from many threads, through any executor, after fork and at exit: the same bits, and
// no memory that grows.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <tegula/tegula.hpp>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/executor_util.hpp"

namespace {

using tegula::testing::InlineExecutor;
using tegula::testing::ThreadExecutor;

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadsAfterFork = false, kPlainHeap = false;
#elif defined(__SANITIZE_ADDRESS__)
constexpr bool kThreadsAfterFork = true, kPlainHeap = false;
#else
constexpr bool kThreadsAfterFork = true, kPlainHeap = true;
#endif

struct Shape {
  int64_t batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim;
};

constexpr Shape kPrefill{2, 129, 129, 6, 2, 64};
constexpr Shape kDecode{1, 1, 3001, 8, 2, 32};  // few items: split over keys, then merged
// So many rows that an item has 1,024, 512 or 256 of them, by the number of workers.
constexpr Shape kTall{1, 1100, 1100, 8, 4, 16};
constexpr Shape kShapes[] = {
    kPrefill, kDecode, kTall, {3, 7, 33, 4, 4, 16}, {1, 64, 500, 2, 1, 128}};

// One call with its memory.
class Call {
 public:
  explicit Call(const Shape& shape, bool causal = true)
      : shape_(shape), options_{.causal = causal} {
    const auto fill = [](std::vector<float>& values, int64_t count, uint64_t seed) {
      values.resize(static_cast<size_t>(count));
      for (float& value : values) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        value = static_cast<float>(static_cast<int64_t>(seed >> 40)) * 0x1p-23f - 1.0f;
      }
    };
    fill(q_, shape.batch * shape.seqlen_q * shape.heads_q * shape.head_dim, 1);
    fill(k_, shape.batch * shape.seqlen_k * shape.heads_kv * shape.head_dim, 2);
    fill(v_, shape.batch * shape.seqlen_k * shape.heads_kv * shape.head_dim, 3);
    o_.resize(q_.size());
  }

  tegula::ForwardArgs args() {
    const auto& [b, sq, sk, hq, hkv, d] = shape_;
    return {.q = {q_, {b, sq, hq, d}},
            .k = {k_, {b, sk, hkv, d}},
            .v = {v_, {b, sk, hkv, d}},
            .o = {o_, {b, sq, hq, d}}};
  }
  tegula::Problem problem() { return tegula::Problem(args(), options_); }

  const std::vector<float>& run(const tegula::Plan& plan, const tegula::Execution& execution = {}) {
    std::fill(o_.begin(), o_.end(), -7.0f);
    plan.forward(args(), execution);
    return o_;
  }

 private:
  Shape shape_;
  tegula::Options options_;
  std::vector<float> q_, k_, v_, o_;
};

tegula::Plan plan_of(Call& call, int32_t num_workers) {
  return tegula::Plan(call.problem(), tegula::Device().set_num_workers(num_workers));
}

std::vector<float> single_threaded(const Shape& shape) {
  Call call(shape);
  return call.run(plan_of(call, 1));
}

TEST(Threads, NumberAndExecutorChangeNoBit) {
  for (const Shape& shape : kShapes) {
    const std::vector<float> expected = single_threaded(shape);
    Call call(shape);
    for (const int32_t num_workers : {1, 2, 3, 8}) {
      const tegula::Plan plan = plan_of(call, num_workers);
      EXPECT_EQ(call.run(plan), expected) << "library's pool, " << num_workers;
      InlineExecutor inline_executor;
      EXPECT_EQ(call.run(plan, {.executor = &inline_executor}), expected) << "inline";
      ThreadExecutor threads(num_workers);
      EXPECT_EQ(call.run(plan, {.executor = &threads}), expected) << num_workers << " threads";
    }
  }
}

TEST(Threads, ConcurrentCallersOfOnePlan) {
  Call first(kPrefill);
  const tegula::Plan prefill = plan_of(first, 4);
  Call second(kDecode);
  const tegula::Plan decode = plan_of(second, 4);
  const std::vector<float> expected_prefill = single_threaded(kPrefill);
  const std::vector<float> expected_decode = single_threaded(kDecode);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&, caller] {
      Call mine_prefill(kPrefill);
      Call mine_decode(kDecode);
      ThreadExecutor threads(2);
      std::vector<std::byte> workspace(decode.workspace_size());
      for (int round = 0; round < 10; ++round) {
        tegula::Execution execution;
        if (caller % 3 == 1) execution.executor = &threads;
        if (mine_prefill.run(prefill, execution) != expected_prefill) ++wrong;
        if (caller % 2 == 0) execution.workspace = workspace;
        if (mine_decode.run(decode, execution) != expected_decode) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, TrimWhileOthersCall) {
  const std::vector<float> expected = single_threaded(kDecode);
  std::atomic<bool> stop{false};
  std::thread trimmer([&] {
    while (!stop) tegula::trim_memory();
  });
  Call call(kDecode);
  const tegula::Plan plan = plan_of(call, 2);
  for (int round = 0; round < 50; ++round) EXPECT_EQ(call.run(plan), expected);
  stop = true;
  trimmer.join();
  tegula::trim_memory();
  EXPECT_EQ(tegula::trim_memory(), 0u);
}

TEST(Threads, ForkedChildComputesTheSame) {
  if (!kThreadsAfterFork) GTEST_SKIP() << "not under this sanitizer";
  const std::vector<float> expected = single_threaded(kPrefill);
  Call call(kPrefill);
  const tegula::Plan plan = plan_of(call, 4);
  EXPECT_EQ(call.run(plan), expected);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(call.run(plan) == expected && call.run(plan) == expected ? 0 : 1);
  }
  EXPECT_EQ(call.run(plan), expected);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Handlers of atexit and destructors of static objects run when the main thread's thread_local
// objects are already gone.
TEST(Threads, CallFromAnExitHandler) {
  if (!kThreadsAfterFork) GTEST_SKIP() << "not under this sanitizer";
  static Call call(kDecode);
  static const tegula::Plan plan = plan_of(call, 2);
  static const std::vector<float> expected = single_threaded(kDecode);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    call.run(plan);
    std::atexit([] {
      for (int round = 0; round < 3; ++round) {
        if (call.run(plan) != expected) _exit(1);
      }
      _exit(42);
    });
    std::exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42) << status;
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Under LeakSanitizer also a test that nothing leaks.
TEST(Threads, TenThousandVariedCallsDoNotGrow) {
  uint64_t state = 7;
  const auto draw = [&](int64_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>(state >> 33) % bound;
  };
  std::vector<Call> calls;
  for (int i = 0; i < 40; ++i) {
    const int64_t heads_kv = 1 + draw(3);
    calls.emplace_back(Shape{1 + draw(3), 1 + draw(20), 1 + draw(200), heads_kv * (1 + draw(3)),
                             heads_kv, 8 * (1 + draw(6))},
                       draw(2) == 0);
  }
  int64_t settled = 0;
  for (int round = 0; round < 10'000; ++round) {
    Call& call = calls[static_cast<size_t>(draw(40))];
    call.run(plan_of(call, 1 + static_cast<int32_t>(draw(3))));
    if (round == 2'000) settled = resident_bytes();
  }
  if (kPlainHeap) {
    EXPECT_LT(resident_bytes(), settled + (int64_t{4} << 20));
  }
}

}  // namespace
