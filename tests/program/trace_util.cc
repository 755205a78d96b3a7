// SPDX-License-Identifier: Apache-2.0
#include "tests/program/trace_util.hpp"

#include <stdlib.h>

#include <cstddef>
#include <stdexcept>
#include <system_error>

#include "tests/oracle/oracle.hpp"

namespace tegula::program {
namespace {

// Numbers in [-2, 2) as the format stores them.
std::vector<double> numbers(std::int64_t count, std::uint32_t seed, oracle::Format format) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525U + 1013904223U;
    const double value = static_cast<double>(seed >> 8) / (1 << 22) - 2.0;
    values.push_back(oracle::decode(format, oracle::encode(format, value)));
  }
  return values;
}

std::vector<std::byte> stored(const std::vector<double>& values, oracle::Format format) {
  const auto size = static_cast<std::size_t>(oracle::bytes_of(format));
  std::vector<std::byte> bytes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) oracle::store(format, bytes.data() + i * size, values[i]);
  return bytes;
}

io::Dtype file_type(oracle::Format format) {
  switch (format) {
    case oracle::Format::kFp32: return io::Dtype::kF32;
    case oracle::Format::kFp16: return io::Dtype::kF16;
    default: return io::Dtype::kBf16;
  }
}

const char* name_of(oracle::Format format) {
  switch (format) {
    case oracle::Format::kFp32: return "fp32";
    case oracle::Format::kFp16: return "fp16";
    default: return "bf16";
  }
}

std::string layer_name(int number) { return (number < 10 ? "layer0" : "layer") + std::to_string(number); }

}  // namespace

MadeTrace MadeTrace::make(oracle::Format format, const std::vector<MadeLayer>& layers,
                          const std::vector<MadePrompt>& prompts) {
  MadeTrace trace;
  auto& metadata = trace.metadata;
  metadata = {{"format", "tegula-trace"}, {"format_version", "1"}, {"model", "made"}, {"model_layers", "40"},
              {"dtype", name_of(format)}, {"mask", "causal"}, {"num_prompts", std::to_string(prompts.size())}};
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const std::string prefix = "prompt" + std::to_string(p) + ".";
    metadata[prefix + "prompt_tokens"] = std::to_string(prompts[p].prompt_tokens);
    metadata[prefix + "steps"] = std::to_string(prompts[p].steps);
  }
  std::uint32_t seed = 1;
  for (const MadeLayer& layer : layers) {
    const bool first = metadata.count("layers") == 0;
    metadata["layers"] += (first ? "" : ",") + std::to_string(layer.number);
    const auto set = [&](const std::string& key, const auto& value) {
      metadata[(first ? "" : layer_name(layer.number) + ".") + key] = std::to_string(value);
    };
    set("num_heads_q", layer.num_heads_q);
    set("num_heads_kv", layer.num_heads_kv);
    set("head_dim", layer.head_dim);
    set("head_dim_v", layer.head_dim_v);
    set("scale", layer.scale);
    set("softcap", layer.softcap);
    set("window_left", layer.window_left);
    const std::vector<double> sink = numbers(layer.num_heads_q, seed + 99, oracle::Format::kFp32);
    if (layer.sink) {
      trace.tensors[layer_name(layer.number) + ".sink"] = {io::Dtype::kF32, {layer.num_heads_q},
                                                           stored(sink, oracle::Format::kFp32)};
    }
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      const std::int64_t tokens = prompts[p].prompt_tokens + prompts[p].steps;
      oracle::Attention call;
      call.seqlen_q = call.seqlen_k = tokens;
      call.num_heads_q = layer.num_heads_q;
      call.num_heads_kv = layer.num_heads_kv;
      call.head_dim = layer.head_dim;
      call.head_dim_v = layer.head_dim_v;
      call.q = numbers(tokens * layer.num_heads_q * layer.head_dim, seed++, format);
      call.k = numbers(tokens * layer.num_heads_kv * layer.head_dim, seed++, format);
      call.v = numbers(tokens * layer.num_heads_kv * layer.head_dim_v, seed++, format);
      call.softmax_scale = layer.scale;
      call.softcap = layer.softcap;
      call.causal = true;
      call.window_left = layer.window_left;
      if (layer.sink) call.sink = sink;
      std::vector<double> o;
      for (std::int64_t i = 0; i < tokens; ++i) {
        for (std::int64_t h = 0; h < layer.num_heads_q; ++h) {
          const oracle::Row row = oracle::attend_row(call, i, h);
          o.insert(o.end(), row.o.begin(), row.o.end());
        }
      }
      const auto add = [&](const char* operand, const std::vector<double>& values, std::int64_t heads,
                           std::int64_t dim) {
        const std::string prefix = "prompt" + std::to_string(p) + "." + layer_name(layer.number);
        const auto middle = values.begin() + static_cast<std::ptrdiff_t>(prompts[p].prompt_tokens * heads * dim);
        trace.tensors[prefix + ".prefill." + operand] = {file_type(format), {prompts[p].prompt_tokens, heads, dim},
                                                         stored({values.begin(), middle}, format)};
        trace.tensors[prefix + ".decode." + operand] = {file_type(format), {prompts[p].steps, heads, dim},
                                                        stored({middle, values.end()}, format)};
      };
      add("q", call.q, layer.num_heads_q, layer.head_dim);
      add("k", call.k, layer.num_heads_kv, layer.head_dim);
      add("v", call.v, layer.num_heads_kv, layer.head_dim_v);
      add("o", o, layer.num_heads_q, layer.head_dim_v);
    }
  }
  return trace;
}

void MadeTrace::write(const std::filesystem::path& path) const {
  std::vector<io::Array> arrays;
  for (const auto& [name, tensor] : tensors) {
    arrays.push_back({name, tensor.dtype, tensor.shape, tensor.bytes.data(), tensor.bytes.size()});
  }
  io::write_safetensors(path, arrays, io::Metadata(metadata.begin(), metadata.end()));
}

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "tegula-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error(name + ": cannot be made");
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tegula::program
