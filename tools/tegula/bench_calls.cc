// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/bench_calls.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace tegula::program {
namespace {

std::vector<std::int32_t> page_table(const Cell& cell) {
  if (cell.page_size == 0) return {};
  std::vector<std::int32_t> pages(
      static_cast<std::size_t>(cell.batch * (cell.seqlen_k / cell.page_size)));
  std::iota(pages.begin(), pages.end(), 0);
  if (cell.permuted) std::shuffle(pages.begin(), pages.end(), std::mt19937_64(4));
  return pages;
}

std::vector<std::int32_t> offsets(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int32_t> sums = {0};
  for (const std::int64_t length : lengths)
    sums.push_back(sums.back() + static_cast<std::int32_t>(length));
  return sums;
}

// K or V, `index` of the caches that the calls go through.
Tensor cache_tensor(const Cell& cell, std::byte* data, std::int64_t index) {
  const std::int64_t rows = cell.ragged() ? cell.rows() : cell.batch * cell.seqlen_k;
  data += index * rows * cell.heads_kv * cell.head_dim *
          static_cast<std::int64_t>(size_of(cell.kv_dtype));
  if (cell.ragged()) return Tensor(data, cell.kv_dtype, {rows, cell.heads_kv, cell.head_dim});
  if (cell.page_size > 0) {
    return Tensor(data, cell.kv_dtype,
                  {rows / cell.page_size, cell.page_size, cell.heads_kv, cell.head_dim});
  }
  return Tensor(data, cell.kv_dtype, {cell.batch, cell.seqlen_k, cell.heads_kv, cell.head_dim});
}

std::size_t cache_bytes(const Cell& cell) {
  const std::int64_t rows = cell.ragged() ? cell.rows() : cell.batch * cell.seqlen_k;
  return static_cast<std::size_t>(cell.cache_sets * rows * cell.heads_kv * cell.head_dim) *
         size_of(cell.kv_dtype);
}

enum Seed : std::uint64_t { kQ = 1, kK, kV, kO, kNewK, kNewV };

class ForwardCall final : public Call {
 public:
  ForwardCall(const Cell& cell, const Device& device, DataStore& store)
      : cell_(cell),
        lengths_(static_cast<std::size_t>(cell.batch), static_cast<std::int32_t>(cell.seqlen_k)),
        pages_(page_table(cell)),
        offsets_(cell.ragged() ? offsets(cell.lengths) : std::vector<std::int32_t>()),
        sink_(static_cast<std::size_t>(cell.heads_q), 0.5F) {
    const auto elements = static_cast<std::size_t>(cell.rows() * cell.heads_q * cell.head_dim);
    q_ = store.normal(cell.dtype, elements * size_of(cell.dtype), kQ);
    o_ = store.normal(cell.dtype, elements * size_of(cell.dtype), kO);
    k_ = store.normal(cell.kv_dtype, cache_bytes(cell), kK);
    v_ = store.normal(cell.kv_dtype, cache_bytes(cell), kV);
    Options options;
    options.causal = cell.mask == CellMask::kCausal;
    if (cell.mask == CellMask::kWindow) {
      options.window_left = cell.window_left;
      options.window_right = 0;
    }
    options.softcap = cell.softcap;
    for (std::int64_t i = 0; i < cell.cache_sets; ++i) args_.push_back(args(i));
    plan_ = std::make_unique<Plan>(Problem(args_[0], options), device);
  }

  void run() override {
    plan_->forward(args_[next_]);
    next_ = (next_ + 1) % args_.size();
  }
  std::string implementation() const override { return plan_->info().implementation; }

 private:
  ForwardArgs args(std::int64_t index) const {
    ForwardArgs args;
    const auto rows = [&](std::byte* data) {
      if (cell_.ragged())
        return Tensor(data, cell_.dtype, {cell_.rows(), cell_.heads_q, cell_.head_dim});
      return Tensor(data, cell_.dtype,
                    {cell_.batch, cell_.seqlen_q, cell_.heads_q, cell_.head_dim});
    };
    args.q = rows(q_);
    args.o = rows(o_);
    args.k = cache_tensor(cell_, k_, index);
    args.v = cache_tensor(cell_, v_, index);
    if (cell_.ragged()) args.cu_seqlens_q = args.cu_seqlens_k = Index(offsets_);
    if (cell_.page_size > 0) {
      args.seqused_k = Index(lengths_);
      args.page_table = Index(pages_, {cell_.batch, cell_.seqlen_k / cell_.page_size});
    }
    if (cell_.sink) args.sink = Tensor(sink_, {cell_.heads_q});
    return args;
  }

  Cell cell_;
  std::vector<std::int32_t> lengths_, pages_, offsets_;
  std::vector<float> sink_;
  std::byte *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *o_ = nullptr;
  std::vector<ForwardArgs> args_;
  std::size_t next_ = 0;
  std::unique_ptr<Plan> plan_;
};

// Where an append and the copy that is its yardstick read and write.
struct AppendPlace {
  AppendPlace(const Cell& cell, DataStore& store) : pages(page_table(cell)) {
    const std::size_t bytes =
        static_cast<std::size_t>(cell.batch * cell.seqlen_q * cell.heads_kv * cell.head_dim) *
        size_of(cell.dtype);
    k_new = store.normal(cell.dtype, bytes, kNewK);
    v_new = store.normal(cell.dtype, bytes, kNewV);
    k = store.normal(cell.kv_dtype, cache_bytes(cell), kK);
    v = store.normal(cell.kv_dtype, cache_bytes(cell), kV);
  }
  // Lengths before call number `call`: each call goes on where the last one ended, and starts again
  // where it would not fit.
  static std::int64_t length(const Cell& cell, std::int64_t call) {
    return call % (cell.seqlen_k / cell.seqlen_q) * cell.seqlen_q;
  }

  std::vector<std::int32_t> pages;
  std::byte *k_new, *v_new, *k, *v;
};

class AppendCall final : public Call {
 public:
  AppendCall(const Cell& cell, DataStore& store)
      : cell_(cell), place_(cell, store), lengths_(static_cast<std::size_t>(cell.batch)) {
    const Extents rows = {cell.batch, cell.seqlen_q, cell.heads_kv, cell.head_dim};
    args_.k_new = Tensor(place_.k_new, cell.dtype, rows);
    args_.v_new = Tensor(place_.v_new, cell.dtype, rows);
    args_.k_cache = cache_tensor(cell, place_.k, 0);
    args_.v_cache = cache_tensor(cell, place_.v, 0);
    args_.seqused_k = Index(lengths_);
    if (cell.page_size > 0)
      args_.page_table = Index(place_.pages, {cell.batch, cell.seqlen_k / cell.page_size});
  }

  void run() override {
    std::fill(lengths_.begin(), lengths_.end(),
              static_cast<std::int32_t>(AppendPlace::length(cell_, calls_++)));
    append_kv(args_);
  }
  std::string implementation() const override { return "cpu_append_kv"; }

 private:
  Cell cell_;
  AppendPlace place_;
  std::vector<std::int32_t> lengths_;
  AppendKvArgs args_;
  std::int64_t calls_ = 0;
};

class RowCopy final : public Call {
 public:
  RowCopy(const Cell& cell, Workers& workers, DataStore& store)
      : cell_(cell),
        workers_(workers),
        place_(cell, store),
        row_bytes_(static_cast<std::size_t>(cell.heads_kv * cell.head_dim) * size_of(cell.dtype)) {}

  void run() override {
    const std::int64_t length = AppendPlace::length(cell_, calls_++);
    const std::int64_t rows = cell_.batch * cell_.seqlen_q, parts = workers_.num_workers();
    workers_.run(parts, [&](std::int64_t part, int) {
      for (std::int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row)
        copy(row, length);
    });
  }
  std::string implementation() const override { return "memcpy"; }

 private:
  void copy(std::int64_t row, std::int64_t length) const {
    const std::int64_t sequence = row / cell_.seqlen_q, position = length + row % cell_.seqlen_q;
    std::int64_t slot = sequence * cell_.seqlen_k + position;
    if (cell_.page_size > 0) {
      const std::int64_t page = slot / cell_.page_size;
      slot = place_.pages[static_cast<std::size_t>(page)] * cell_.page_size +
             position % cell_.page_size;
    }
    const std::size_t from = static_cast<std::size_t>(row) * row_bytes_,
                      to = static_cast<std::size_t>(slot) * row_bytes_;
    std::memcpy(place_.k + to, place_.k_new + from, row_bytes_);
    std::memcpy(place_.v + to, place_.v_new + from, row_bytes_);
  }

  Cell cell_;
  Workers& workers_;
  AppendPlace place_;
  std::size_t row_bytes_;
  std::int64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<Call> make_call(const Cell& cell, const Device& device, DataStore& store) {
  if (cell.op == Op::kAppend) return std::make_unique<AppendCall>(cell, store);
  return std::make_unique<ForwardCall>(cell, device, store);
}

std::unique_ptr<Call> make_row_copy(const Cell& cell, Workers& workers, DataStore& store) {
  return std::make_unique<RowCopy>(cell, workers, store);
}

}  // namespace tegula::program
