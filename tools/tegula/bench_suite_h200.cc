// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "tools/tegula/bench_suite.hpp"

namespace tegula::program {
namespace {

constexpr std::int64_t kTokens = 16384;
constexpr CellMask kMasks[] = {CellMask::kFull, CellMask::kCausal};

// As many tokens, and as many pairs of tokens, as 8 sequences of 2048 have.
const std::vector<std::int64_t> kLongTail = {3582, 2815, 2213, 1739, 1367, 1075, 845, 664,
                                             522,  410,  322,  253,  199,  157,  123, 98};

Cell forward_cell(std::int64_t head_dim, std::int64_t head_dim_v, CellMask mask,
                  std::int64_t seqlen) {
  Cell cell;
  cell.stage = "forward";
  cell.dtype = cell.kv_dtype = Dtype::kBf16;
  cell.head_dim = head_dim;
  cell.head_dim_v = head_dim_v;
  cell.heads_q = cell.heads_kv = 2048 / head_dim;
  cell.batch = kTokens / seqlen;
  cell.seqlen_q = cell.seqlen_k = seqlen;
  cell.mask = mask;
  cell.residence = "hbm";
  const std::string dims = head_dim == head_dim_v ? fmt::format("d{}", head_dim)
                                                  : fmt::format("d{}-{}", head_dim, head_dim_v);
  cell.set = cell.name = fmt::format("forward-bf16-{}-{}-s{}", dims, cell.mask_name(), seqlen);
  return cell;
}

void add(std::vector<Cell>& cells, Cell cell, const std::string& group,
         const std::string& suffix = "") {
  cell.group = group;
  if (!suffix.empty()) cell.name += "-" + suffix;
  cells.push_back(cell);
}

void add_grid(std::vector<Cell>& cells) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const CellMask mask : kMasks) {
      for (const std::int64_t seqlen : {512, 1024, 2048, 4096, 8192, 16384})
        add(cells, forward_cell(head_dim, head_dim, mask, seqlen), "grid");
    }
  }
}

void add_short(std::vector<Cell>& cells) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const CellMask mask : kMasks) {
      for (const std::int64_t seqlen : {128, 256})
        add(cells, forward_cell(head_dim, head_dim, mask, seqlen), "short");
    }
  }
}

void add_family(std::vector<Cell>& cells) {
  const std::pair<std::int64_t, std::int64_t> dims[] = {{96, 96}, {192, 192}, {192, 128}};
  for (const auto& [head_dim, head_dim_v] : dims) {
    for (const CellMask mask : kMasks) {
      for (const std::int64_t seqlen : {1024, 4096, 8192})
        add(cells, forward_cell(head_dim, head_dim_v, mask, seqlen), "head dims");
    }
  }
}

// Beside the plain cell of the same mask and length, which the grid has.
void add_variants(std::vector<Cell>& cells) {
  for (const CellMask mask : kMasks) {
    const Cell plain = forward_cell(128, 128, mask, 4096);
    Cell grouped = plain;
    grouped.heads_kv = grouped.heads_q / 8;
    add(cells, grouped, "heads and types", "ratio8");
    Cell half = plain;
    half.dtype = half.kv_dtype = Dtype::kF16;
    add(cells, half, "heads and types", "f16");

    Cell ragged = forward_cell(128, 128, mask, 2048);
    ragged.lengths = kLongTail;
    ragged.batch = static_cast<std::int64_t>(kLongTail.size());
    add(cells, ragged, "ragged", "ragged");

    Cell sink = plain;
    sink.sink = true;
    add(cells, sink, "features", "sink");
    Cell softcap = plain;  // scores are about normal: |s| < softcap / 2 for nearly all
    softcap.softcap = 30.0;
    add(cells, softcap, "features", "softcap");
    softcap.softcap = 0.5;
    add(cells, softcap, "features", "softcap-saturated");
    Cell loads = plain;
    loads.loads = Loads::kPlain;
    add(cells, loads, "loads", "plain");
    loads.loads = Loads::kUnaligned;
    add(cells, loads, "loads", "unaligned");
  }
  Cell window = forward_cell(128, 128, CellMask::kWindow, 16384);
  window.window_left = 1023;
  add(cells, window, "window", "w1024");
}

}  // namespace

std::vector<Cell> suite_h200_forward() {
  std::vector<Cell> cells;
  add_grid(cells);
  add_short(cells);
  add_family(cells);
  add_variants(cells);
  return cells;
}

}  // namespace tegula::program
