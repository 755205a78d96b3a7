// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/executor/scratch_pool.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <bit>
#include <cstdlib>

#include "src/core/integer.hpp"

namespace tegula::cpu {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kMaxBytes = int64_t{1} << 46;  // beyond any address space

// Steps of at most a quarter, so that calls of nearly the same size share a block.
int64_t capacity_for(int64_t bytes) {
  if (bytes >= kHugePage) return round_up(bytes, kHugePage);
  const auto floor = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)));
  return round_up(bytes, floor / 4 > 4096 ? floor / 4 : 4096);
}

void* map_huge(int64_t bytes) {
  const int64_t mapped = bytes + kHugePage;
  void* base = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  const int64_t before = -static_cast<int64_t>(reinterpret_cast<uintptr_t>(base)) & (kHugePage - 1);
  auto* start = static_cast<char*>(base) + before;
  if (before > 0) munmap(base, static_cast<size_t>(before));
  if (before < kHugePage) munmap(start + bytes, static_cast<size_t>(kHugePage - before));
  madvise(start, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a wish; kernels without it refuse
  return start;
}

ScratchBlock allocate(int64_t bytes) {
  const int64_t capacity = capacity_for(bytes);
  void* data = capacity >= kHugePage ? map_huge(capacity)
                                     : std::aligned_alloc(64, static_cast<size_t>(capacity));
  return data ? ScratchBlock{data, capacity} : ScratchBlock{};
}

void deallocate(ScratchBlock block) {
  if (block.bytes >= kHugePage) {
    munmap(block.data, static_cast<size_t>(block.bytes));
  } else {
    std::free(block.data);
  }
}

constinit ScratchPool the_process_pool;

}  // namespace

// The child gets the idle blocks; those in use by the parent's other threads are lost to it.
struct ScratchPool::ForkHandlers {
  static void prepare() { the_process_pool.mutex_.lock(); }
  static void both() { the_process_pool.mutex_.unlock(); }
  static void install() { pthread_atfork(prepare, both, both); }
};

ScratchPool& ScratchPool::process_pool() noexcept {
  static constinit pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, ForkHandlers::install);
  return the_process_pool;
}

ScratchBlock ScratchPool::acquire(int64_t bytes) noexcept {
  if (bytes <= 0 || bytes > kMaxBytes) return {};
  ScratchBlock outgrown;
  {
    const std::lock_guard lock(mutex_);
    int32_t fit = -1;
    int32_t largest = -1;
    for (int32_t i = 0; i < num_idle_; ++i) {
      const int64_t size = idle_[i].bytes;
      if (size >= bytes && (fit < 0 || size < idle_[fit].bytes)) fit = i;
      if (largest < 0 || size > idle_[largest].bytes) largest = i;
    }
    const int32_t taken = fit >= 0 ? fit : largest;
    if (taken >= 0) {
      const ScratchBlock block = std::exchange(idle_[taken], idle_[num_idle_ - 1]);
      --num_idle_;
      if (fit >= 0) return block;
      // A caller whose sizes grow must not leave its earlier blocks behind.
      outgrown = block;
    }
  }
  deallocate(outgrown);
  return allocate(bytes);
}

void ScratchPool::release(ScratchBlock block) noexcept {
  if (!block.data) return;
  {
    const std::lock_guard lock(mutex_);
    if (num_idle_ < kMaxIdle) {
      idle_[num_idle_++] = block;
      return;
    }
    int32_t smallest = 0;
    for (int32_t i = 1; i < num_idle_; ++i) {
      if (idle_[i].bytes < idle_[smallest].bytes) smallest = i;
    }
    if (idle_[smallest].bytes < block.bytes) std::swap(idle_[smallest], block);
  }
  deallocate(block);
}

int64_t ScratchPool::trim() noexcept {
  std::array<ScratchBlock, kMaxIdle> freed;
  int32_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    freed = idle_;
    count = std::exchange(num_idle_, 0);
  }
  int64_t bytes = 0;
  for (int32_t i = 0; i < count; ++i) {
    bytes += freed[i].bytes;
    deallocate(freed[i]);
  }
  return bytes;
}

ScratchPool::Stats ScratchPool::stats() noexcept {
  const std::lock_guard lock(mutex_);
  Stats stats{0, num_idle_};
  for (int32_t i = 0; i < num_idle_; ++i) stats.idle_bytes += idle_[i].bytes;
  return stats;
}

}  // namespace tegula::cpu
