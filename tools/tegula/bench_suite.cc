// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/bench_suite.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace tegula::program {
namespace {

constexpr Dtype kForwardDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};
constexpr std::int64_t kHeadDims[] = {64, 128};
constexpr CellMask kMasks[] = {CellMask::kFull, CellMask::kCausal};
constexpr std::int64_t kPageSize = 16;

// One long sequence and a tail, the sizes of a batch that a server sees; no length is a multiple of
// a block.
const std::vector<std::int64_t> kLongTail = {2048, 997, 611, 402, 283, 211, 160, 127,
                                             97,   71,  50,  33,  20,  11,  5,   1};

LimitKind compute_limit(Dtype dtype) {
  return dtype == Dtype::kF32    ? LimitKind::kFma
         : dtype == Dtype::kBf16 ? LimitKind::kBf16
                                 : LimitKind::kFp16;
}

Cell forward_cell(Dtype dtype, std::int64_t head_dim, CellMask mask, std::int64_t seqlen,
                  int threads) {
  Cell cell;
  cell.group = "forward";
  cell.stage = fmt::format("forward {}", tegula::name(dtype));
  cell.dtype = cell.kv_dtype = dtype;
  cell.head_dim = head_dim;
  cell.mask = mask;
  cell.seqlen_q = cell.seqlen_k = seqlen;
  cell.threads = threads;
  cell.limit = compute_limit(dtype);
  cell.name =
      fmt::format("forward-{}-d{}-{}-s{}", tegula::name(dtype), head_dim, cell.mask_name(), seqlen);
  cell.set = fmt::format("forward-{}-d{}-s{}", tegula::name(dtype), head_dim, seqlen);
  return cell;
}

Cell variant(Cell cell, const std::string& suffix) {
  cell.name += "-" + suffix;
  return cell;
}

Cell window_cell(Dtype dtype, std::int64_t head_dim, std::int64_t seqlen, std::int64_t window,
                 int threads) {
  Cell cell = forward_cell(dtype, head_dim, CellMask::kWindow, seqlen, threads);
  cell.group = "features";
  cell.window_left = window - 1;
  cell.name =
      fmt::format("forward-{}-d{}-window{}-s{}", tegula::name(dtype), head_dim, window, seqlen);
  return cell;
}

// What stands beside S 2048: eight query heads on two kv heads, and a ragged batch.
void add_beside(std::vector<Cell>& cells, const Cell& cell) {
  Cell grouped = variant(cell, "ratio4");
  grouped.heads_kv = grouped.heads_q / 4;
  cells.push_back(grouped);
  Cell ragged = variant(cell, "ragged");
  ragged.lengths = kLongTail;
  ragged.batch = static_cast<std::int64_t>(kLongTail.size());
  cells.push_back(ragged);
}

void add_features(std::vector<Cell>& cells, Cell cell) {
  cell.group = "features";
  Cell softcap = variant(cell, "softcap");
  softcap.softcap = 30.0;
  cells.push_back(softcap);
  Cell sink = variant(cell, "sink");
  sink.sink = true;
  cells.push_back(sink);
}

void add_forward(std::vector<Cell>& cells, int threads) {
  for (const Dtype dtype : kForwardDtypes) {
    for (const std::int64_t head_dim : kHeadDims) {
      for (const std::int64_t seqlen : {128, 512, 1024, 2048, 4096}) {
        for (const CellMask mask : kMasks) {
          const Cell cell = forward_cell(dtype, head_dim, mask, seqlen, threads);
          cells.push_back(cell);
          if (seqlen == 2048) add_beside(cells, cell);
          if (seqlen == 2048 && mask == CellMask::kFull) add_features(cells, cell);
        }
        if (seqlen != 4096) continue;
        for (const std::int64_t window : {256, 1024}) {
          cells.push_back(window_cell(dtype, head_dim, seqlen, window, threads));
        }
      }
    }
  }
}

struct CacheOrder {
  const char* name;
  std::int64_t page_size;
  bool permuted;
};
constexpr CacheOrder kOrders[] = {
    {"dense", 0, false}, {"paged16", kPageSize, false}, {"permuted16", kPageSize, true}};

// e4m3 caches are read by bf16 queries.
Cell decode_cell(Dtype kv_dtype, std::int64_t ratio, const CacheOrder& order, int threads) {
  Cell cell;
  cell.group = "decode";
  cell.op = Op::kDecode;
  cell.kv_dtype = kv_dtype;
  cell.dtype = kv_dtype == Dtype::kE4m3 ? Dtype::kBf16 : kv_dtype;
  cell.head_dim = 128;
  cell.heads_kv = 8;
  cell.heads_q = 8 * ratio;
  cell.seqlen_k = 8192;
  cell.page_size = order.page_size;
  cell.permuted = order.permuted;
  cell.threads = threads;
  cell.name = fmt::format("decode-{}-ratio{}-{}", tegula::name(kv_dtype), ratio, order.name);
  return cell;
}

// Beyond the L3: 16 sequences, and as many such caches in turn as make 1 GiB, of which the largest
// L3 (some 260 MiB, shared with neighbours) keeps nothing of use.
Cell in_memory(Cell cell) {
  constexpr double kRotated = 1024.0 * 1024 * 1024;
  cell.residence = "dram";
  cell.limit = LimitKind::kDram;
  cell.batch = 16;
  cell.cache_sets =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(kRotated / cell.kv_bytes()));
  cell.name += "-dram";
  return cell;
}

// Inside it: one sequence, with as many keys as give the class's size.
Cell in_l3(Cell cell, std::int64_t bytes) {
  cell.residence = "l3";
  cell.limit = LimitKind::kL3;
  cell.batch = 1;
  cell.seqlen_k = 1;
  cell.seqlen_k = bytes / static_cast<std::int64_t>(cell.kv_bytes());
  cell.name += "-l3";
  return cell;
}

void add_decode(std::vector<Cell>& cells, std::int64_t l3_bytes, int threads) {
  for (const bool memory : {true, false}) {
    for (const std::int64_t ratio : {1, 4, 8, 16}) {
      for (const Dtype kv_dtype : {Dtype::kBf16, Dtype::kF32, Dtype::kE4m3}) {
        for (const CacheOrder& order : kOrders) {
          const Cell cell = decode_cell(kv_dtype, ratio, order, threads);
          cells.push_back(memory ? in_memory(cell) : in_l3(cell, l3_bytes));
          cells.back().set = fmt::format("decode-{}-ratio{}", cells.back().residence, ratio);
          cells.back().stage = memory ? "decode beyond the L3" : "decode inside the L3";
        }
      }
    }
  }
}

// New rows of 16 sequences, 4 MiB of K and V or more, behind what a cache of 8k holds; each call
// writes further on.
void add_append(std::vector<Cell>& cells, int threads) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    for (const CacheOrder& order : kOrders) {
      Cell cell = decode_cell(dtype, 1, order, threads);
      cell.group = cell.stage = "append";
      cell.op = Op::kAppend;
      cell.batch = 16;
      cell.seqlen_q = 64;
      cell.residence = "dram";
      cell.limit = LimitKind::kRowCopy;
      cell.name = fmt::format("append-{}-{}", tegula::name(dtype), order.name);
      cell.set = cell.name;
      cells.push_back(cell);
    }
  }
}

// Calls so small that the work around them counts; one query and one key are nothing but that.
void add_small(std::vector<Cell>& cells, int threads) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const std::int64_t seqlen : {1, 16, 64, 128}) {
      Cell cell = forward_cell(dtype, 64, CellMask::kFull, seqlen, threads);
      cell.group = cell.stage = "small";
      cell.name = fmt::format("small-{}-s{}", tegula::name(dtype), seqlen);
      cell.set = fmt::format("small-{}", tegula::name(dtype));
      cells.push_back(cell);
    }
  }
}

// 1, 2, 4 ... threads and all of them.
std::vector<int> thread_counts(int threads) {
  std::vector<int> counts;
  for (int count = 1; count < threads; count *= 2) counts.push_back(count);
  counts.push_back(threads);
  return counts;
}

void add_scaling(std::vector<Cell>& cells, int threads) {
  const Cell base[] = {forward_cell(Dtype::kF32, 64, CellMask::kFull, 2048, threads),
                       forward_cell(Dtype::kBf16, 128, CellMask::kFull, 2048, threads),
                       forward_cell(Dtype::kBf16, 64, CellMask::kCausal, 1024, threads),
                       in_memory(decode_cell(Dtype::kBf16, 1, kOrders[1], threads))};
  for (const Cell& cell : base) {
    for (const int count : thread_counts(threads)) {
      Cell scaled = cell;
      scaled.group = scaled.stage = "scaling";
      scaled.name = fmt::format("scaling-{}-t{}", cell.name, count);
      scaled.set = "scaling-" + cell.name;
      scaled.threads = count;
      cells.push_back(scaled);
    }
  }
}

}  // namespace

std::vector<Cell> suite_cpu(MachineClass machine, int threads) {
  std::vector<Cell> cells;
  add_forward(cells, threads);
  add_decode(cells, l3_cache_bytes(machine), threads);
  add_append(cells, threads);
  add_small(cells, threads);
  add_scaling(cells, threads);
  return cells;
}

}  // namespace tegula::program
