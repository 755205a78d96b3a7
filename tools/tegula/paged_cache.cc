// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/paged_cache.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

#include <fmt/format.h>

#include "tools/tegula/library.hpp"

namespace tegula::program {

constexpr std::size_t kLine = 64;

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  const std::size_t rounded = std::max(kLine, (bytes + kLine - 1) / kLine * kLine);
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kLine, rounded)));
  if (!data_) throw std::bad_alloc();
}

void Buffer::Free::operator()(std::byte* data) const { std::free(data); }

PageAllocator::PageAllocator(std::int64_t num_pages, std::uint64_t seed)
    : free_(static_cast<std::size_t>(num_pages)), taken_before_(static_cast<std::size_t>(num_pages)),
      random_(seed) {
  std::iota(free_.begin(), free_.end(), 0);
  std::shuffle(free_.begin(), free_.end(), random_);
}

std::int32_t PageAllocator::take() {
  if (free_.empty()) throw Failure(fmt::format("page pool: all {} pages are in use", num_pages()));
  const std::int32_t page = free_.back();
  free_.pop_back();
  const auto at = static_cast<std::size_t>(page);
  if (taken_before_[at]) ++reused_;
  taken_before_[at] = true;
  peak_ = std::max(peak_, num_pages() - static_cast<std::int64_t>(free_.size()));
  return page;
}

void PageAllocator::give_back(const std::vector<std::int32_t>& pages) {
  free_.insert(free_.end(), pages.begin(), pages.end());
  std::shuffle(free_.begin(), free_.end(), random_);
}

LayerCache::LayerCache(std::int64_t pages, std::int64_t size, std::int64_t heads, std::int64_t dim,
                       std::int64_t dim_v, Dtype type)
    : num_pages(pages), page_size(size), num_heads_kv(heads), head_dim(dim), head_dim_v(dim_v), dtype(type),
      k_row_bytes(static_cast<std::size_t>(heads * dim) * size_of(type)),
      v_row_bytes(static_cast<std::size_t>(heads * dim_v) * size_of(type)),
      k_pages(static_cast<std::size_t>(pages * size) * k_row_bytes),
      v_pages(static_cast<std::size_t>(pages * size) * v_row_bytes) {
  // All bits set is NaN in each of the types.
  std::memset(k_pages.data(), 0xff, k_pages.size());
  std::memset(v_pages.data(), 0xff, v_pages.size());
}

Tensor LayerCache::k() const {
  return Tensor(k_pages.data(), dtype, {num_pages, page_size, num_heads_kv, head_dim});
}

Tensor LayerCache::v() const {
  return Tensor(v_pages.data(), dtype, {num_pages, page_size, num_heads_kv, head_dim_v});
}

namespace {

std::size_t slot(const LayerCache& cache, const std::vector<std::int32_t>& pages, std::int64_t position) {
  const std::int64_t page = pages[static_cast<std::size_t>(position / cache.page_size)];
  return static_cast<std::size_t>(page * cache.page_size + position % cache.page_size);
}

}  // namespace

const std::byte* LayerCache::k_row(const std::vector<std::int32_t>& pages, std::int64_t position) const {
  return k_pages.data() + slot(*this, pages, position) * k_row_bytes;
}

const std::byte* LayerCache::v_row(const std::vector<std::int32_t>& pages, std::int64_t position) const {
  return v_pages.data() + slot(*this, pages, position) * v_row_bytes;
}

}  // namespace tegula::program
