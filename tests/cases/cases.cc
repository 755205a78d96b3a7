// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/cases.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#ifndef TEGULA_CASES_DIR
#define TEGULA_CASES_DIR "tests/cases"
#endif

namespace tegula::cases {
namespace {

using nlohmann::json;

template <typename Value>
struct Names {
  const char* what;
  std::vector<std::pair<const char*, Value>> entries;

  Value operator()(const std::string& name) const {
    for (const auto& [text, value] : entries) {
      if (name == text) return value;
    }
    throw std::runtime_error(std::string(what) + ": unknown value \"" + name + "\"");
  }
};

const Names<tegula_dtype>& dtype_names() {
  static const Names<tegula_dtype> names{"dtype",
                                         {{"f32", TEGULA_F32},
                                          {"f16", TEGULA_F16},
                                          {"bf16", TEGULA_BF16},
                                          {"e4m3", TEGULA_E4M3},
                                          {"e5m2", TEGULA_E5M2},
                                          {"bool", TEGULA_BOOL},
                                          {"none", TEGULA_DTYPE_NONE}}};
  return names;
}

const Names<Strides>& stride_names() {
  static const Names<Strides> names{"strides",
                                    {{"packed", Strides::kPacked},
                                     {"padded", Strides::kPadded},
                                     {"head_major", Strides::kHeadMajor},
                                     {"sliced", Strides::kSliced},
                                     {"shifted", Strides::kShifted},
                                     {"broadcast_batch", Strides::kBroadcastBatch},
                                     {"broadcast_heads", Strides::kBroadcastHeads},
                                     {"broadcast_tokens", Strides::kBroadcastTokens}}};
  return names;
}

const Names<PerHead>& per_head_names() {
  static const Names<PerHead> names{"per head",
                                    {{"none", PerHead::kNone},
                                     {"one", PerHead::kOne},
                                     {"heads", PerHead::kHeads},
                                     {"batch_heads", PerHead::kBatchHeads}}};
  return names;
}

// Reads fields out of one object and complains about those that nobody asked for.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  template <typename Value>
  void read(const char* name, Value& value) {
    asked_.insert(name);
    const auto found = object_.find(name);
    if (found == object_.end()) return;
    try {
      value = found->get<Value>();
    } catch (const json::exception& error) {
      throw std::runtime_error(std::string(name) + ": " + error.what());
    }
  }

  template <typename Value>
  void read(const char* name, Value& value, const Names<Value>& names) {
    std::string text;
    read(name, text);
    if (!text.empty()) value = names(text);
  }

  void finish() const {
    for (const auto& entry : object_.items()) {
      if (asked_.count(entry.key()) == 0) {
        throw std::runtime_error("unknown field \"" + entry.key() + "\"");
      }
    }
  }

 private:
  const json& object_;
  std::set<std::string> asked_;
};

void check(bool condition, const std::string& text) {
  if (!condition) throw std::runtime_error(text);
}

void check_consistent(const Case& item) {
  check(!item.id.empty(), "id: missing");
  const std::size_t batch = item.seqlens_q.size();
  if (item.op != Op::kCombine) {
    check(item.seqlens_k.size() == batch, "seqlens_k: length differs from seqlens_q");
  }
  check(item.seqlens_new.empty() || item.seqlens_new.size() == batch, "seqlens_new: wrong length");
  check(item.leftpad_k.empty() || item.leftpad_k.size() == batch, "leftpad_k: wrong length");
  check(!item.paged() || item.page_size > 0, "page_size: missing");
  const auto equal = [](const std::vector<std::int64_t>& list) {
    return std::adjacent_find(list.begin(), list.end(), std::not_equal_to<>()) == list.end();
  };
  const bool forward = item.op == Op::kForward;
  check(!forward || item.ragged_q || item.seqused_q || equal(item.seqlens_q),
        "seqlens_q: differ in a dense layout without seqused_q");
  check(!forward || item.layout_k != LayoutK::kDense || item.seqused_k || equal(item.seqlens_k),
        "seqlens_k: differ in a dense layout without seqused_k");
  check(!item.paged() || item.seqused_k, "seqused_k: required for pages");
  check(item.new_tokens != NewTokens::kNumber || equal(item.seqlens_new), "seqlens_new: differ");
}

}  // namespace

bool Case::has_tag(const std::string& tag) const {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

Case parse_case(const std::string& json_line) {
  const json object = json::parse(json_line);
  Case item;
  Fields fields(object);
  fields.read("id", item.id);
  fields.read("tags", item.tags);
  static const Names<Op> ops{
      "op", {{"forward", Op::kForward}, {"append_kv", Op::kAppendKv}, {"combine", Op::kCombine}}};
  fields.read("op", item.op, ops);
  fields.read("seed", item.seed);
  fields.read("q_dtype", item.q_dtype, dtype_names());
  fields.read("kv_dtype", item.kv_dtype, dtype_names());
  fields.read("v_dtype", item.v_dtype, dtype_names());
  fields.read("o_dtype", item.o_dtype, dtype_names());
  fields.read("num_heads_q", item.num_heads_q);
  fields.read("num_heads_kv", item.num_heads_kv);
  fields.read("head_dim", item.head_dim);
  fields.read("head_dim_v", item.head_dim_v);
  static const Names<bool> q_layouts{"layout_q", {{"dense", false}, {"ragged", true}}};
  fields.read("layout_q", item.ragged_q, q_layouts);
  static const Names<LayoutK> k_layouts{"layout_k",
                                        {{"dense", LayoutK::kDense},
                                         {"ragged", LayoutK::kRagged},
                                         {"page_table", LayoutK::kPageTable},
                                         {"page_indices", LayoutK::kPageIndices}}};
  fields.read("layout_k", item.layout_k, k_layouts);
  fields.read("seqlens_q", item.seqlens_q);
  fields.read("seqlens_k", item.seqlens_k);
  fields.read("seqused_q", item.seqused_q);
  fields.read("seqused_k", item.seqused_k);
  fields.read("slack_q", item.slack_q);
  fields.read("slack_k", item.slack_k);
  static const Names<NewTokens> new_names{
      "new_tokens",
      {{"none", NewTokens::kNone}, {"number", NewTokens::kNumber}, {"cu", NewTokens::kCu}}};
  fields.read("new_tokens", item.new_tokens, new_names);
  fields.read("seqlens_new", item.seqlens_new);
  fields.read("page_size", item.page_size);
  fields.read("short_table", item.short_table);
  fields.read("shared_pages", item.shared_pages);
  fields.read("causal", item.causal);
  fields.read("window_left", item.window_left);
  fields.read("window_right", item.window_right);
  fields.read("attention_chunk", item.attention_chunk);
  fields.read("softmax_scale", item.softmax_scale);
  fields.read("softcap", item.softcap);
  fields.read("sink", item.sink);
  fields.read("alibi", item.alibi, per_head_names());
  fields.read("bias_dtype", item.bias_dtype, dtype_names());
  fields.read("bias_broadcast", item.bias_broadcast);
  fields.read("leftpad_k", item.leftpad_k);
  fields.read("descale", item.descale, per_head_names());
  fields.read("descale_expanded", item.descale_expanded);
  fields.read("lse", item.lse);
  fields.read("num_splits", item.num_splits);
  fields.read("fixed_split", item.fixed_split);
  fields.read("strides_q", item.strides_q, stride_names());
  fields.read("strides_k", item.strides_k, stride_names());
  fields.read("strides_v", item.strides_v, stride_names());
  fields.read("strides_o", item.strides_o, stride_names());
  fields.read("strides_lse", item.strides_lse, stride_names());
  static const Names<Values> value_names{"values",
                                         {{"random", Values::kRandom},
                                          {"large", Values::kLarge},
                                          {"huge", Values::kHuge},
                                          {"growing", Values::kGrowing},
                                          {"zero_q", Values::kZeroQ},
                                          {"heads", Values::kHeads},
                                          {"nan_q", Values::kNanQ},
                                          {"special", Values::kSpecial},
                                          {"nan_k", Values::kNanK}}};
  fields.read("values", item.values, value_names);
  fields.read("new_dtype", item.new_dtype, dtype_names());
  fields.read("slot_mapping", item.slot_mapping);
  fields.read("skip_slots", item.skip_slots);
  fields.read("rotary_dim", item.rotary_dim);
  fields.read("interleaved", item.interleaved);
  fields.read("rotary_f32", item.rotary_f32);
  fields.read("positions", item.positions);
  fields.read("rotate_q", item.rotate_q);
  fields.read("empty_partials", item.empty_partials);
  fields.finish();
  check_consistent(item);
  return item;
}

std::vector<Case> load_table(const std::string& file_or_folder) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  if (fs::is_directory(file_or_folder)) {
    for (const auto& entry : fs::directory_iterator(file_or_folder)) {
      if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
  } else {
    files.emplace_back(file_or_folder);
  }
  std::vector<Case> table;
  std::set<std::string> ids;
  for (const fs::path& file : files) {
    // A device may have no end, a FIFO no writer.
    if (fs::exists(file) && !fs::is_regular_file(file))
      throw std::runtime_error(file.string() + ": is not a regular file");
    std::ifstream stream(file);
    if (!stream) throw std::runtime_error(file.string() + ": cannot be read");
    std::string line;
    for (int number = 1; std::getline(stream, line); ++number) {
      if (line.empty()) continue;
      try {
        table.push_back(parse_case(line));
        check(ids.insert(table.back().id).second, "id \"" + table.back().id + "\" occurs twice");
      } catch (const std::exception& error) {
        throw std::runtime_error(file.string() + ":" + std::to_string(number) + ": " +
                                 error.what());
      }
    }
  }
  if (table.empty()) throw std::runtime_error(file_or_folder + ": no cases");
  return table;
}

std::string default_folder() { return TEGULA_CASES_DIR; }

}  // namespace tegula::cases
