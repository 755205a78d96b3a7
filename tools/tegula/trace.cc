// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/trace.hpp"

#include <charconv>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tools/tegula/library.hpp"

namespace tegula::program {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;
constexpr std::int64_t kMaxPrompts = 4096;
constexpr std::int64_t kMaxLayers = 4096;

// A metadata value as a number in [low, high].
template <typename Number>
Number number_in(const std::string& path, const std::string& key, const std::string& text, Number low,
                 Number high) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= low && value <= high)) {
    throw Failure(fmt::format("{}: metadata {}: '{}' is no number in [{}, {}]", path, key,
                              io::printable(text), low, high));
  }
  return value;
}

void check_array(const std::string& path, const io::Array& array, io::Dtype dtype,
                 const std::vector<std::int64_t>& shape) {
  if (array.dtype != dtype) {
    throw Failure(fmt::format("{}: {}: type {} where the metadata says {}", path, io::printable(array.name),
                              io::dtype_name(array.dtype), io::dtype_name(dtype)));
  }
  if (array.shape != shape) {
    throw Failure(fmt::format("{}: {}: shape {} where the metadata says {}", path,
                              io::printable(array.name), io::shape_text(array.shape),
                              io::shape_text(shape)));
  }
}

std::string rows_name(std::size_t prompt, int layer, const char* phase, char operand) {
  return fmt::format("prompt{}.layer{:02}.{}.{}", prompt, layer, phase, operand);
}

}  // namespace

Trace Trace::open(const std::filesystem::path& path) {
  Trace trace;
  trace.path_ = path.string();
  trace.file_ = io::SafetensorsFile::open(path);
  trace.read_metadata();
  trace.check_tensors();
  return trace;
}

void Trace::read_metadata() {
  const auto& metadata = file_.metadata();
  const auto format = metadata.find("format");
  if (format == metadata.end() || format->second != "tegula-trace") {
    throw Failure(fmt::format("{}: no trace: metadata 'format' is {} where 'tegula-trace' is expected", path_,
                              format == metadata.end() ? "absent" : io::printable(format->second)));
  }
  const auto at = [&](const std::string& key) -> const std::string& { return file_.metadata_at(key); };
  const auto count = [&](const std::string& key, std::int64_t low, std::int64_t high) {
    return number_in<std::int64_t>(path_, key, at(key), low, high);
  };
  if (at("format_version") != "1") {
    throw Failure(fmt::format("{}: metadata format_version: {} where this program reads 1", path_,
                              io::printable(at("format_version"))));
  }
  if (at("mask") != "causal") {
    throw Failure(fmt::format("{}: metadata mask: '{}' where 'causal' is expected", path_,
                              io::printable(at("mask"))));
  }
  model_ = io::printable(at("model"));
  model_layers_ = static_cast<int>(count("model_layers", 1, kMaxLayers));
  dtype_ = parse_dtype(path_ + ": metadata dtype", io::printable(at("dtype")));
  if (is_8bit(dtype_)) throw Failure(path_ + ": metadata dtype: 8 bits where 16 or 32 are expected");

  const std::string& list = at("layers");
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const auto number = number_in<std::int64_t>(path_, "layers", list.substr(begin, end - begin), 0,
                                                model_layers_ - 1);
    if (!layers_.empty() && number <= layers_.back().number) {
      throw Failure(fmt::format("{}: metadata layers: {} does not ascend", path_, io::printable(list)));
    }
    read_layer(static_cast<int>(number));
    begin = end + 1;
  }
  const std::int64_t prompts = count("num_prompts", 1, kMaxPrompts);
  for (std::int64_t p = 0; p < prompts; ++p) {
    const std::string prefix = fmt::format("prompt{}.", p);
    TracePrompt prompt;
    const auto name = metadata.find(prefix + "name");
    prompt.name = name == metadata.end() ? fmt::format("prompt {}", p) : io::printable(name->second);
    prompt.prompt_tokens = count(prefix + "prompt_tokens", 1, kMaxTokens);
    prompt.steps = count(prefix + "steps", 0, kMaxTokens);
    prompts_.push_back(prompt);
  }
}

void Trace::read_layer(int number) {
  const auto& metadata = file_.metadata();
  // A layer that differs from the rest of the model has its own value.
  const auto value = [&](const char* key) -> std::pair<std::string, const std::string*> {
    std::string own = fmt::format("layer{:02}.{}", number, key);
    const auto found = metadata.find(own);
    if (found != metadata.end()) return {std::move(own), &found->second};
    return {key, &file_.metadata_at(key)};
  };
  const auto integer = [&](const char* key, std::int64_t low, std::int64_t high) {
    const auto [name, text] = value(key);
    return number_in<std::int64_t>(path_, name, *text, low, high);
  };
  const auto real = [&](const char* key) {
    const auto [name, text] = value(key);
    return number_in<double>(path_, name, *text, 0.0, 1e30);
  };
  TraceLayer layer;
  layer.number = number;
  layer.num_heads_q = integer("num_heads_q", 1, 1 << 16);
  layer.num_heads_kv = integer("num_heads_kv", 1, 1 << 16);
  layer.head_dim = integer("head_dim", 1, 1 << 16);
  layer.head_dim_v = integer("head_dim_v", 1, 1 << 16);
  layer.softmax_scale = real("scale");
  if (layer.softmax_scale == 0) {  // the library would take its default
    throw Failure(fmt::format("{}: layer {}: scale 0 is not more than 0", path_, number));
  }
  layer.softcap = real("softcap");
  layer.window_left = integer("window_left", -1, kMaxTokens);
  if (layer.num_heads_q % layer.num_heads_kv != 0) {
    throw Failure(fmt::format("{}: layer {}: num_heads_kv {} does not divide num_heads_q {}", path_, number,
                              layer.num_heads_kv, layer.num_heads_q));
  }
  if (const io::Array* sink = file_.find(fmt::format("layer{:02}.sink", number))) {
    check_array(path_, *sink, io::Dtype::kF32, {layer.num_heads_q});
    layer.sink.resize(static_cast<std::size_t>(layer.num_heads_q));
    std::memcpy(layer.sink.data(), sink->data, sink->bytes);
  }
  layers_.push_back(std::move(layer));
}

void Trace::check_tensors() {
  const io::Dtype dtype = file_dtype(dtype_);
  for (std::size_t p = 0; p < prompts_.size(); ++p) {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const TraceLayer& layer = layers_[l];
      for (const char operand : {'q', 'k', 'v', 'o'}) {
        const std::int64_t heads =
            operand == 'q' || operand == 'o' ? layer.num_heads_q : layer.num_heads_kv;
        const std::int64_t dim = operand == 'q' || operand == 'k' ? layer.head_dim : layer.head_dim_v;
        const TraceRows both = rows(p, l, operand);
        check_array(path_, *both.prefill, dtype, {prompts_[p].prompt_tokens, heads, dim});
        check_array(path_, *both.decode, dtype, {prompts_[p].steps, heads, dim});
      }
    }
  }
}

TraceRows Trace::rows(std::size_t prompt, std::size_t layer, char operand) const {
  const int number = layers_[layer].number;
  return {&file_.at(rows_name(prompt, number, "prefill", operand)),
          &file_.at(rows_name(prompt, number, "decode", operand))};
}

}  // namespace tegula::program
