// SPDX-License-Identifier: Apache-2.0
// A cell of a benchmark suite: one call that is measured, as plain data. What runs it is elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tegula/tegula.hpp>

#include "tools/tegula/command.hpp"

namespace tegula::program {

enum class Op { kForward, kDecode, kAppend };
enum class CellMask { kFull, kCausal, kWindow };

// What bounds a cell's rate: operations a second, or bytes a second.
enum class LimitKind {
  kNone,
  kFma,      // fp32 multiply-adds
  kBf16,     // products of bf16 pairs: the fastest of AMX, dot and FMA
  kFp16,     // fp16 products: FMA, or AMX with each operand as two bf16, which takes three products
  kDram,     // reads from memory
  kL3,       // reads of as many bytes as the cell's cache has
  kRowCopy,  // memcpy of the cell's rows, one by one
};
// GPU: how q, k and v are to be loaded.
enum class Loads {
  kChosen,     // as the library does with tensors that the copy engine can move
  kPlain,      // such tensors, but without it
  kUnaligned,  // tensors that begin 2 bytes past a multiple of 16
};

const char* limit_name(LimitKind kind);
inline bool is_compute(LimitKind kind) {
  return kind == LimitKind::kFma || kind == LimitKind::kBf16 || kind == LimitKind::kFp16;
}

struct Cell {
  std::string group;  // the table of the report in which it stands
  std::string name;   // unique within the suite
  std::string stage;  // cells of one stage share data, and the limits are taken before and after it
  std::string
      set;  // cells of one set are measured in the same rounds, so that they may be compared
  Op op = Op::kForward;
  Dtype dtype = Dtype::kF32;     // of q and o
  Dtype kv_dtype = Dtype::kF32;  // of k and v
  std::int64_t batch = 1, heads_q = 8, heads_kv = 8, head_dim = 64;
  std::int64_t head_dim_v = 0;  // 0: as head_dim
  std::int64_t seqlen_q = 1, seqlen_k = 1;  // ragged: the longest
  CellMask mask = CellMask::kFull;
  std::int64_t window_left = -1;      // with kWindow; window_right is 0
  std::vector<std::int64_t> lengths;  // ragged: of each sequence, its queries as its keys
  std::int64_t page_size = 0;         // 0: no pages
  bool permuted = false;              // pages in random order
  double softcap = 0.0;
  bool sink = false;
  Loads loads = Loads::kChosen;
  std::string residence;        // of K and V: dram, l3; empty: wherever the caches leave them
  std::int64_t cache_sets = 1;  // how many K and V of that size the calls go through in turn
  int threads = 1;
  LimitKind limit = LimitKind::kNone;

  bool ragged() const { return !lengths.empty(); }
  std::int64_t value_dim() const { return head_dim_v > 0 ? head_dim_v : head_dim; }
  std::string layout() const;    // dense, ragged, paged:16, paged:16:permuted
  std::string features() const;  // softcap,sink
  const char* mask_name() const;

  std::int64_t rows() const;          // of q and o, all sequences
  std::int64_t kv_rows() const;       // of k and v; append: that are written
  double visible_keys() const;        // pairs of a query and a key that it sees, one head
  double flops() const;  // 2 b h s^2 (head_dim + head_dim_v), half of it with a causal mask
  double kv_bytes() const;            // K and V once; append: the rows written
  double rate(double seconds) const;  // in the unit of the limit, per second
};

const char* op_name(Op op);

// The cell's shape for other programs (bench/peers_cpu.py reads it from --list --json).
Json shape_of(const Cell& cell);

// True if `name` matches one of the comma-separated patterns (* and ?) of `filter`; an empty filter
// takes all.
bool matches(const std::string& filter, const std::string& name);

}  // namespace tegula::program
