// SPDX-License-Identifier: Apache-2.0
// Memory of a benchmark: on huge pages where the system has them, so that the walk of page tables
// is no part of a rate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include <tegula/tegula.hpp>

namespace tegula::program {

class HugePages {
 public:
  explicit HugePages(std::size_t bytes);  // zeros; throws std::bad_alloc
  ~HugePages();
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;  // at a multiple of 2 MiB
  void* mapped_ = nullptr;
  std::size_t size_ = 0, mapped_size_ = 0;
};

// Fills with roughly normal numbers, the same on every machine. They repeat after some 10^6
// elements, a number that divides no size, so that no head equals another.
void fill_normal(std::byte* data, std::size_t bytes, Dtype dtype, std::uint64_t seed);

// Normal data of cells, kept from one cell to the next: to fill a gigabyte takes longer than to
// read it ten times.
class DataStore {
 public:
  // At least `bytes` of `dtype`; different for each `seed`. Valid until clear().
  std::byte* normal(Dtype dtype, std::size_t bytes, std::uint64_t seed);
  void clear() { blocks_.clear(); }

 private:
  std::map<std::tuple<Dtype, std::uint64_t>, std::vector<std::unique_ptr<HugePages>>>
      blocks_;  // ever larger
};

}  // namespace tegula::program
