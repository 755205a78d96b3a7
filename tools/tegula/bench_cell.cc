// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/bench_cell.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace tegula::program {

const char* limit_name(LimitKind kind) {
  switch (kind) {
    case LimitKind::kFma: return "fma";
    case LimitKind::kBf16: return "bf16";
    case LimitKind::kFp16: return "fp16";
    case LimitKind::kDram: return "dram";
    case LimitKind::kL3: return "l3";
    case LimitKind::kRowCopy: return "row copy";
    default: return "none";
  }
}

const char* op_name(Op op) {
  switch (op) {
    case Op::kDecode: return "decode";
    case Op::kAppend: return "append";
    default: return "forward";
  }
}

std::string Cell::layout() const {
  if (ragged()) return "ragged";
  if (page_size == 0) return "dense";
  return fmt::format("paged:{}{}", page_size, permuted ? ":permuted" : "");
}

std::string Cell::features() const {
  std::string features;
  const auto add = [&features](const char* feature) {
    features += features.empty() ? feature : fmt::format(",{}", feature);
  };
  if (softcap > 0) add("softcap");
  if (sink) add("sink");
  if (loads == Loads::kPlain) add("plain_loads");
  if (loads == Loads::kUnaligned) add("unaligned");
  return features;
}

const char* Cell::mask_name() const {
  return mask == CellMask::kFull ? "full" : mask == CellMask::kCausal ? "causal" : "window";
}

std::int64_t Cell::rows() const {
  return ragged() ? std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})
                  : batch * seqlen_q;
}

std::int64_t Cell::kv_rows() const {
  if (op == Op::kAppend) return batch * seqlen_q;
  return ragged() ? rows() : batch * seqlen_k;
}

double Cell::visible_keys() const {
  const auto pairs = [this](std::int64_t q, std::int64_t k) {
    if (mask == CellMask::kWindow) {
      double sum = 0.0;  // row i sees keys up to i + k - q
      for (std::int64_t i = 0; i < q; ++i)
        sum += static_cast<double>(std::min(i + k - q, window_left) + 1);
      return sum;
    }
    const double all = static_cast<double>(q) * static_cast<double>(k);
    return mask == CellMask::kCausal ? all / 2 : all;
  };
  if (!ragged()) return static_cast<double>(batch) * pairs(seqlen_q, seqlen_k);
  double sum = 0.0;
  for (const std::int64_t length : lengths) sum += pairs(length, length);
  return sum;
}

double Cell::flops() const {
  if (op == Op::kAppend) return 0.0;
  return 2.0 * static_cast<double>(heads_q * (head_dim + value_dim())) * visible_keys();
}

double Cell::kv_bytes() const {
  return static_cast<double>(kv_rows() * heads_kv * (head_dim + value_dim())) *
         static_cast<double>(size_of(kv_dtype));
}

double Cell::rate(double seconds) const {
  return (op == Op::kForward ? flops() : kv_bytes()) / seconds;
}

Json shape_of(const Cell& cell) {
  Json shape;
  shape["cell"] = cell.name;
  shape["group"] = cell.group;
  shape["set"] = cell.set;
  shape["op"] = op_name(cell.op);
  shape["dtype"] = tegula::name(cell.dtype);
  shape["kv_dtype"] = tegula::name(cell.kv_dtype);
  shape["batch"] = cell.batch;
  shape["heads_q"] = cell.heads_q;
  shape["heads_kv"] = cell.heads_kv;
  shape["head_dim"] = cell.head_dim;
  shape["head_dim_v"] = cell.value_dim();
  shape["seqlen_q"] = cell.seqlen_q;
  shape["seqlen_k"] = cell.seqlen_k;
  shape["mask"] = cell.mask_name();
  if (cell.mask == CellMask::kWindow) shape["window_left"] = cell.window_left;
  shape["layout"] = cell.layout();
  if (cell.ragged()) shape["lengths"] = cell.lengths;
  if (cell.page_size > 0) shape["page_size"] = cell.page_size;
  shape["features"] = cell.features();
  if (cell.softcap > 0) shape["softcap"] = cell.softcap;
  if (!cell.residence.empty()) shape["residence"] = cell.residence;
  shape["cache_sets"] = cell.cache_sets;
  shape["threads"] = cell.threads;
  shape["limit"] = limit_name(cell.limit);
  shape["flops"] = cell.flops();
  shape["kv_bytes"] = cell.kv_bytes();
  return shape;
}

bool matches(const std::string& filter, const std::string& name) {
  if (filter.empty()) return true;
  for (std::size_t begin = 0; begin <= filter.size();) {
    const std::size_t end = std::min(filter.find(',', begin), filter.size());
    if (fnmatch(filter.substr(begin, end - begin).c_str(), name.c_str(), 0) == 0) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace tegula::program
