// SPDX-License-Identifier: Apache-2.0
// Scratch memory for calls that were given none: blocks are kept between calls, because fresh pages
// cost about 2 us per 4 KiB at their first touch.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <utility>

namespace tegula::cpu {

struct ScratchBlock {
  void* data = nullptr;  // 64-byte aligned; 2 MiB aligned from 2 MiB on. Content is undefined.
  int64_t bytes = 0;     // at least what was asked
};

class ScratchPool {
 public:
  static constexpr int32_t kMaxIdle = 32;

  constexpr ScratchPool() = default;
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  // The smallest idle block that is large enough, or a new one. {nullptr, 0} if bytes <= 0 or the
  // system has no more memory. Any thread.
  ScratchBlock acquire(int64_t bytes) noexcept;

  // Takes back a block of acquire(), or an empty one. Any thread.
  void release(ScratchBlock block) noexcept;

  // Frees all idle blocks and returns their bytes; blocks in use are not touched.
  int64_t trim() noexcept;

  struct Stats {
    int64_t idle_bytes;
    int32_t idle_blocks;
  };
  Stats stats() noexcept;

  // Lives as long as the process; whoever makes another one trims it before it goes.
  static ScratchPool& process_pool() noexcept;

 private:
  struct ForkHandlers;

  std::mutex mutex_;
  std::array<ScratchBlock, kMaxIdle> idle_{};  // the first num_idle_, in no order
  int32_t num_idle_ = 0;
};

// A block for the length of a scope.
class ScratchLease {
 public:
  explicit ScratchLease(int64_t bytes, ScratchPool& pool = ScratchPool::process_pool()) noexcept
      : pool_(&pool), block_(pool.acquire(bytes)) {}
  ScratchLease(ScratchLease&& other) noexcept
      : pool_(other.pool_), block_(std::exchange(other.block_, {})) {}
  ScratchLease& operator=(ScratchLease&&) = delete;
  ~ScratchLease() { pool_->release(block_); }

  void* data() const noexcept { return block_.data; }
  int64_t bytes() const noexcept { return block_.bytes; }

 private:
  ScratchPool* pool_;
  ScratchBlock block_;
};

}  // namespace tegula::cpu
