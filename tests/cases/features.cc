// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/features.hpp"

#include <algorithm>
#include <fstream>
#include <set>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

namespace tegula::cases {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

std::string on_off(bool on) { return on ? "on" : "off"; }

std::string dim_class(std::int64_t dim) {
  if (dim == 1 || dim == 64 || dim == 128 || dim == 256) return std::to_string(dim);
  if (dim < 64) return dim % 2 == 1 ? "odd" : "even<64";
  if (dim < 128) return "65-127";
  return dim < 256 ? "129-255" : ">256";
}

std::string page_class(const Case& item) {
  if (!item.paged()) return "none";
  for (const std::int64_t size : {1, 16, 64, 256}) {
    if (item.page_size == size) return std::to_string(size);
  }
  return "odd";
}

std::string mask_class(const Case& item) {
  if (item.attention_chunk > 0) return item.causal ? "causal_chunk" : "chunk";
  if (item.causal) return item.window_left >= 0 ? "causal_window" : "causal";
  if (item.window_left >= 0) return item.window_right >= 0 ? "window" : "window_left";
  return item.window_right >= 0 ? "window_right" : "none";
}

std::string stride_class(Strides strides) {
  switch (strides) {
    case Strides::kPacked: return "packed";
    case Strides::kPadded: return "padded";
    case Strides::kHeadMajor: return "head_major";
    case Strides::kSliced: return "sliced";
    case Strides::kShifted: return "shifted";
    default: return "broadcast";
  }
}

std::string per_head_class(PerHead per_head) {
  switch (per_head) {
    case PerHead::kNone: return "none";
    case PerHead::kOne: return "one";
    case PerHead::kHeads: return "heads";
    case PerHead::kBatchHeads: return "batch_heads";
  }
  return "?";
}

std::string values_class(Values values) {
  switch (values) {
    case Values::kRandom: return "random";
    case Values::kLarge: return "large";
    case Values::kHuge: return "huge";
    case Values::kGrowing: return "growing";
    case Values::kNanQ: return "nan_q";
    case Values::kNanK: return "nan_k";
    default: return "counting";
  }
}

std::string splits_class(const Case& item) {
  if (item.fixed_split > 0) return "fixed";
  if (item.num_splits == 0) return "auto";
  if (item.num_splits == 1) return "one";
  return item.num_splits <= 16 ? "few" : "many";
}

std::string bias_class(const Case& item) {
  if (item.bias_dtype == TEGULA_DTYPE_NONE) return "none";
  if (item.bias_dtype == TEGULA_BOOL) return "bool";
  return item.bias_dtype == TEGULA_F32 ? "f32" : "q";
}

std::string lengths_class(const Case& item) {
  bool all_equal = true;
  for (std::size_t b = 0; b < item.seqlens_q.size(); ++b) {
    const std::int64_t q = item.seqlens_q[b];
    const std::int64_t k = item.seqlens_k[b];
    if (q == 0 || k == 0) continue;
    if (q > k) return "q>k";
    all_equal = all_equal && q == k;
  }
  return all_equal ? "q=k" : "q<k";
}

std::string empty_class(const Case& item) {
  bool q = false;
  bool k = false;
  for (std::size_t b = 0; b < item.seqlens_q.size(); ++b) {
    q = q || item.seqlens_q[b] == 0;
    k = k || item.seqlens_k[b] == 0;
  }
  if (q && k) return "both";
  return q ? "q" : (k ? "k" : "none");
}

std::int64_t longest(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

}  // namespace

bool Axes::legal(const std::string& axis, const std::string& value, const std::string& with,
                 const std::string& other) const {
  return std::none_of(illegal.begin(), illegal.end(), [&](const Illegal& rule) {
    return (rule.axis == axis && rule.with == with && contains(rule.values, value) &&
            contains(rule.are, other)) ||
           (rule.axis == with && rule.with == axis && contains(rule.values, other) &&
            contains(rule.are, value));
  });
}

Axes load_axes(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error(path + ": cannot be read");
  const nlohmann::json file = nlohmann::json::parse(stream);
  Axes axes;
  axes.axes = file.at("axes").get<std::map<std::string, std::vector<std::string>>>();
  for (const auto& rule : file.at("illegal")) {
    axes.illegal.push_back({rule.at("axis"), rule.at("with"), rule.at("why"), rule.at("values"),
                            rule.at("are")});
  }
  return axes;
}

std::map<std::string, std::string> features_of(const Case& item) {
  if (item.op != Op::kForward || item.has_tag("refused")) return {};
  std::map<std::string, std::string> f;
  f["q_dtype"] = tegula_dtype_name(item.q_dtype);
  f["kv_dtype"] = tegula_dtype_name(item.kv_dtype);
  f["o_dtype"] = tegula_dtype_name(item.o_dtype);
  f["layout_q"] = item.ragged_q ? "ragged" : "dense";
  switch (item.layout_k) {
    case LayoutK::kDense: f["layout_k"] = "dense"; break;
    case LayoutK::kRagged: f["layout_k"] = "ragged"; break;
    case LayoutK::kPageTable: f["layout_k"] = "page_table"; break;
    case LayoutK::kPageIndices: f["layout_k"] = "page_indices"; break;
  }
  f["page_size"] = page_class(item);
  f["table_tail"] = item.paged() ? (item.short_table ? "short" : "garbage") : "none";
  f["mask"] = mask_class(item);
  f["softcap"] = on_off(item.softcap > 0.0);
  f["sink"] = on_off(item.sink);
  f["alibi"] = per_head_class(item.alibi);
  f["bias"] = bias_class(item);
  f["bias_broadcast"] = item.bias_dtype == TEGULA_DTYPE_NONE ? "none"
                        : item.bias_broadcast.empty()        ? "full"
                        : item.bias_broadcast.size() == 1    ? item.bias_broadcast
                                                             : "many";
  f["leftpad"] = on_off(!item.leftpad_k.empty());
  f["seqused_q"] = on_off(item.seqused_q);
  f["seqused_k"] = on_off(item.seqused_k);
  f["new_tokens"] = item.new_tokens == NewTokens::kNone     ? "none"
                    : item.new_tokens == NewTokens::kNumber ? "number"
                                                            : "cu";
  f["head_dim"] = dim_class(item.head_dim);
  f["head_dim_v"] = dim_class(item.head_dim_v);
  f["ratio"] = std::to_string(item.num_heads_q / item.num_heads_kv);
  f["heads_kv"] = item.num_heads_kv == 1 ? "one" : "many";
  f["splits"] = splits_class(item);
  f["lse"] = on_off(item.lse);
  f["strides_q"] = stride_class(item.strides_q);
  f["strides_k"] = stride_class(item.strides_k);
  f["strides_v"] = stride_class(item.strides_v);
  f["strides_o"] = stride_class(item.strides_o);
  const std::int64_t q = longest(item.seqlens_q);
  const std::int64_t k = longest(item.seqlens_k);
  f["rows_q"] = q == 0 ? "0" : q == 1 ? "1" : q <= 16 ? "2-16" : q <= 64 ? "17-64" : ">64";
  f["rows_k"] = k == 0 ? "0" : k <= 2 ? "1-2" : k <= 64 ? "3-64" : k <= 256 ? "65-256" : ">256";
  f["lengths"] = lengths_class(item);
  f["empty"] = empty_class(item);
  f["descale"] = per_head_class(item.descale);
  f["values"] = values_class(item.values);
  f["scale"] = item.softmax_scale > 0.0 ? "given" : "default";
  f["batch"] = item.batch() <= 1 ? "1" : item.batch() <= 4 ? "2-4" : ">=5";
  return f;
}

std::vector<std::string> missing_pairs(const Axes& axes, const std::vector<Case>& table) {
  std::set<std::string> covered;
  const auto name = [](const std::string& a, const std::string& x, const std::string& b,
                       const std::string& y) { return a + "=" + x + " with " + b + "=" + y; };
  for (const Case& item : table) {
    const auto features = features_of(item);
    for (auto a = features.begin(); a != features.end(); ++a) {
      for (auto b = std::next(a); b != features.end(); ++b) {
        covered.insert(name(a->first, a->second, b->first, b->second));
      }
    }
  }
  std::vector<std::string> missing;
  for (auto a = axes.axes.begin(); a != axes.axes.end(); ++a) {
    for (auto b = std::next(a); b != axes.axes.end(); ++b) {
      for (const std::string& x : a->second) {
        for (const std::string& y : b->second) {
          const std::string pair = name(a->first, x, b->first, y);
          if (axes.legal(a->first, x, b->first, y) && covered.count(pair) == 0) {
            missing.push_back(pair);
          }
        }
      }
    }
  }
  return missing;
}

}  // namespace tegula::cases
