// SPDX-License-Identifier: Apache-2.0
// The fuzzer's bytes as a stream of small decisions, and memory that cannot be overrun unseen.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

namespace tegula::fuzz {

inline void require(bool condition) {
  if (!condition) std::abort();
}

// After the last byte every decision is the first choice, so that short inputs mean simple calls.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  unsigned byte() { return at_ == end_ ? 0 : *at_++; }
  // [0, count), count <= 65536
  std::int64_t below(std::int64_t count) {
    if (count <= 1) return 0;
    unsigned value = byte();
    if (count > 256) value |= byte() << 8;
    return value % count;
  }
  bool one_in(std::int64_t count) { return below(count) == count - 1; }
  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(static_cast<std::int64_t>(choices.size()))];
  }
  // Numbers that checks stumble over: around 0, the small extents, and every power of two.
  std::int64_t odd_number() {
    const unsigned kind = byte();
    if (kind < 96) return static_cast<std::int64_t>(kind) - 8;
    const std::uint64_t power = std::uint64_t{1} << (kind % 64);
    const unsigned side = byte();
    const std::uint64_t value = power + side % 3 - 1;
    return static_cast<std::int64_t>(side & 4 ? 0 - value : value);
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

// Slots between unreadable pages. The objects with the kernels carry no sanitizer instructions, so
// only the guards see them read or write too far.
class Arena {
 public:
  static constexpr std::size_t kSlots = 40;
  static constexpr std::size_t kSlotBytes = std::size_t{1} << 18;

  Arena() {
    page_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t size = kSlots * (kSlotBytes + page_) + page_;
    void* mapping = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(mapping);
    for (std::size_t i = 0; i <= kSlots; ++i)
      require(::mprotect(base_ + i * (kSlotBytes + page_), page_, PROT_NONE) == 0);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void reset() { used_ = 0; }
  // A slot of its own: against the guard behind it, or against the one before it.
  std::byte* take(std::size_t bytes, bool at_start) {
    require(used_ < kSlots && bytes <= kSlotBytes);
    std::byte* slot = base_ + used_++ * (kSlotBytes + page_) + page_;
    return at_start ? slot : slot + (kSlotBytes - bytes);
  }

 private:
  std::byte* base_ = nullptr;  // kept for the life of the process
  std::size_t page_ = 0;
  std::size_t used_ = 0;
};

}  // namespace tegula::fuzz
