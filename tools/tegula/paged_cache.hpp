// SPDX-License-Identifier: Apache-2.0
// A KV cache in pages, as serving engines keep it: one pool of pages for each layer, one page table for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include <tegula/tegula.hpp>

namespace tegula::program {

// Memory on a cache line, so that speed does not hang on where an allocation falls.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);

  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

// Which pages are whose. The free list is shuffled whenever pages come back, so that a sequence's pages lie
// anywhere in the pool and a page's next owner is anybody.
class PageAllocator {
 public:
  PageAllocator(std::int64_t num_pages, std::uint64_t seed);

  std::int32_t take();  // Failure when none is free
  void give_back(const std::vector<std::int32_t>& pages);

  std::int64_t num_pages() const { return static_cast<std::int64_t>(taken_before_.size()); }
  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t peak() const { return peak_; }      // most pages in use at once
  std::int64_t reused() const { return reused_; }  // takes of a page that had an owner before

 private:
  std::vector<std::int32_t> free_;
  std::vector<bool> taken_before_;
  std::int64_t peak_ = 0;
  std::int64_t reused_ = 0;
  std::mt19937_64 random_;
};

// K and V pages of one layer: [num_pages, page_size, num_heads_kv, dim], filled with NaN at first: whatever
// reads a row that nobody wrote shows it.
struct LayerCache {
  LayerCache(std::int64_t num_pages, std::int64_t page_size, std::int64_t num_heads_kv, std::int64_t head_dim,
             std::int64_t head_dim_v, Dtype dtype);

  Tensor k() const;
  Tensor v() const;
  // Row `position` of a sequence with these pages.
  const std::byte* k_row(const std::vector<std::int32_t>& pages, std::int64_t position) const;
  const std::byte* v_row(const std::vector<std::int32_t>& pages, std::int64_t position) const;

  std::int64_t num_pages, page_size, num_heads_kv, head_dim, head_dim_v;
  Dtype dtype;
  std::size_t k_row_bytes, v_row_bytes;
  Buffer k_pages, v_pages;
};

}  // namespace tegula::program
