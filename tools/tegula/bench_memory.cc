// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/bench_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <random>

#include "tests/oracle/formats.hpp"
#include "tools/tegula/library.hpp"

namespace tegula::program {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

HugePages::HugePages(std::size_t bytes)
    : size_((bytes + kHugePage - 1) / kHugePage * kHugePage), mapped_size_(size_ + kHugePage) {
  mapped_ = mmap(nullptr, mapped_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped_ == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<std::uintptr_t>(mapped_);
  data_ = static_cast<std::byte*>(mapped_) + (kHugePage - address % kHugePage) % kHugePage;
  madvise(data_, size_, MADV_HUGEPAGE);  // where refused, small pages serve
}

HugePages::~HugePages() {
  munmap(mapped_, mapped_size_);
}

void fill_normal(std::byte* data, std::size_t bytes, Dtype dtype, std::uint64_t seed) {
  constexpr std::size_t kPeriod = 1000003;
  const std::size_t size = size_of(dtype);
  const std::size_t period = std::min(bytes / size, kPeriod) * size;
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at < period; at += size) {
    const std::uint64_t bits = random();
    double sum = 0.0;
    for (int part = 0; part < 4; ++part) sum += static_cast<double>(bits >> (16 * part) & 0xffff);
    oracle::store(format_of(dtype), data + at, (sum / 65536 - 2.0) * std::sqrt(3.0));
  }
  // Each copy doubles what is there, from the start: the period holds throughout.
  for (std::size_t done = period; period > 0 && done < bytes;) {
    const std::size_t step = std::min(done, bytes - done);
    std::memcpy(data + done, data, step);
    done += step;
  }
}

std::byte* DataStore::normal(Dtype dtype, std::size_t bytes, std::uint64_t seed) {
  std::vector<std::unique_ptr<HugePages>>& blocks = blocks_[{dtype, seed}];
  for (const std::unique_ptr<HugePages>& block : blocks) {
    if (block->size() >= bytes) return block->data();
  }
  blocks.push_back(std::make_unique<HugePages>(bytes));
  fill_normal(blocks.back()->data(), blocks.back()->size(), dtype, seed);
  return blocks.back()->data();
}

}  // namespace tegula::program
