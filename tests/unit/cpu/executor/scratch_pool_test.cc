// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/executor/scratch_pool.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace tegula::cpu {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

uintptr_t address(const ScratchBlock& block) { return reinterpret_cast<uintptr_t>(block.data); }

struct TrimmedPool : ScratchPool {
  ~TrimmedPool() { trim(); }
};

TEST(ScratchPool, BlocksAreAlignedLargeEnoughAndWritable) {
  TrimmedPool pool;
  for (const int64_t bytes : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{4096}, int64_t{4097},
                              int64_t{300'000}, 2 * kMiB - 1, 2 * kMiB, 2 * kMiB + 1, 33 * kMiB}) {
    const ScratchBlock block = pool.acquire(bytes);
    ASSERT_NE(block.data, nullptr) << bytes;
    EXPECT_GE(block.bytes, bytes);
    const int64_t step = bytes >= kMiB ? 2 * kMiB : int64_t{4096};
    EXPECT_LE(block.bytes, bytes + std::max(bytes / 4, step));
    EXPECT_EQ(address(block) % (block.bytes >= 2 * kMiB ? 2 * kMiB : 64), 0u) << bytes;
    std::memset(block.data, 0x5a, static_cast<size_t>(block.bytes));
    pool.release(block);
    pool.trim();
  }
}

TEST(ScratchPool, NothingForSizesThatCannotBe) {
  TrimmedPool pool;
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{1} << 46}) {
    const ScratchBlock block = pool.acquire(bytes);
    EXPECT_EQ(block.data, nullptr) << bytes;
    EXPECT_EQ(block.bytes, 0) << bytes;
    pool.release(block);
  }
  EXPECT_EQ(pool.stats().idle_blocks, 0);
}

TEST(ScratchPool, ReusesTheSmallestBlockThatFitsAndLeavesItsContent) {
  TrimmedPool pool;
  const ScratchBlock small = pool.acquire(10'000);
  const ScratchBlock middle = pool.acquire(100'000);
  const ScratchBlock large = pool.acquire(3 * kMiB);
  std::memset(middle.data, 0x77, static_cast<size_t>(middle.bytes));
  for (const ScratchBlock& block : {large, small, middle}) pool.release(block);

  const ScratchBlock again = pool.acquire(90'000);
  EXPECT_EQ(again.data, middle.data);
  EXPECT_EQ(again.bytes, middle.bytes);
  const auto* content = static_cast<const unsigned char*>(again.data);
  EXPECT_EQ(content[0], 0x77);
  EXPECT_EQ(content[again.bytes - 1], 0x77);
  const ScratchBlock next = pool.acquire(90'000);  // the next larger one
  EXPECT_EQ(next.data, large.data);
  EXPECT_EQ(pool.stats().idle_blocks, 1);
  pool.release(again);
  pool.release(next);
}

TEST(ScratchPool, GrowingSizesOfOneCallerKeepOneBlock) {
  TrimmedPool pool;
  for (int64_t bytes = 1000; bytes < 20 * kMiB; bytes = bytes * 5 / 4) {
    pool.release(pool.acquire(bytes));
    EXPECT_EQ(pool.stats().idle_blocks, 1) << bytes;
  }
}

TEST(ScratchPool, VariedCallsDoNotGrowIt) {
  TrimmedPool pool;
  uint64_t state = 1;
  int64_t largest = 0;
  for (int call = 0; call < 10'000; ++call) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto bytes = static_cast<int64_t>(state >> 33) % (4 * kMiB) + 1;
    largest = std::max(largest, bytes);
    pool.release(pool.acquire(bytes));
    ASSERT_EQ(pool.stats().idle_blocks, 1);
  }
  EXPECT_LE(pool.stats().idle_bytes, largest + 2 * kMiB);
}

TEST(ScratchPool, KeepsABoundedNumberAndTheLargest) {
  TrimmedPool pool;
  constexpr int kExtra = 10;
  std::vector<ScratchBlock> blocks;
  for (int i = 0; i < ScratchPool::kMaxIdle + kExtra; ++i) {
    blocks.push_back(pool.acquire(4096 * (i + 1)));
  }
  int64_t largest_bytes = 0;
  for (size_t i = kExtra; i < blocks.size(); ++i) largest_bytes += blocks[i].bytes;
  std::reverse(blocks.begin() + 5, blocks.end());
  for (const ScratchBlock& block : blocks) pool.release(block);
  EXPECT_EQ(pool.stats().idle_blocks, ScratchPool::kMaxIdle);
  EXPECT_EQ(pool.stats().idle_bytes, largest_bytes);
}

TEST(ScratchPool, TrimFreesTheIdleOnesOnly) {
  TrimmedPool pool;
  const ScratchBlock used = pool.acquire(5000);
  const ScratchBlock idle = pool.acquire(3 * kMiB);
  pool.release(idle);
  EXPECT_EQ(pool.trim(), idle.bytes);
  EXPECT_EQ(pool.trim(), 0);
  EXPECT_EQ(pool.stats().idle_bytes, 0);
  std::memset(used.data, 1, static_cast<size_t>(used.bytes));
  pool.release(used);
  EXPECT_EQ(pool.stats().idle_bytes, used.bytes);
}

TEST(ScratchPool, LeaseReturnsItsBlockOnce) {
  TrimmedPool pool;
  {
    ScratchLease lease(100, pool);
    ASSERT_NE(lease.data(), nullptr);
    const ScratchLease moved(std::move(lease));
    EXPECT_GE(moved.bytes(), 100);
    EXPECT_EQ(pool.stats().idle_blocks, 0);
  }
  EXPECT_EQ(pool.stats().idle_blocks, 1);
}

TEST(ScratchPool, ThreadsNeverShareABlock) {
  TrimmedPool pool;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 300; ++round) {
        const ScratchLease lease(1000 + 7919 * ((thread + round) % 13), pool);
        auto* content = static_cast<unsigned char*>(lease.data());
        std::memset(content, thread, static_cast<size_t>(lease.bytes()));
        std::this_thread::yield();
        if (content[0] != thread || content[lease.bytes() - 1] != thread) ++wrong;
        if (round % 50 == 0) pool.trim();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ScratchPool, ForkWhileOtherThreadsUseTheProcessPool) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "ASan of g++ 12 leaves its own allocator locked in the child";
#endif
  ScratchPool& pool = ScratchPool::process_pool();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      while (!stop) pool.release(pool.acquire(20'000));
    });
  }
  for (int round = 0; round < 30; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a lock held over the fork would hang here
      const ScratchBlock block = pool.acquire(20'000);
      pool.release(block);
      pool.trim();
      _exit(block.data ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  pool.trim();
}

}  // namespace
}  // namespace tegula::cpu
