// SPDX-License-Identifier: Apache-2.0
// Traces of attention in a real model: what python -m tegula.capture writes, checked whole at open.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <tegula/tegula.hpp>

#include "src/io/safetensors.hpp"

namespace tegula::program {

struct TraceLayer {
  int number = 0;  // in the model, from 0
  std::int64_t num_heads_q = 0;
  std::int64_t num_heads_kv = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  double softmax_scale = 0.0;
  double softcap = 0.0;           // 0 = none
  std::int64_t window_left = -1;  // -1 = none
  std::vector<float> sink;        // [num_heads_q] or empty
};

struct TracePrompt {
  std::string name;
  std::int64_t prompt_tokens = 0;
  std::int64_t steps = 0;

  std::int64_t tokens() const { return prompt_tokens + steps; }
};

// One operand of one prompt and layer: rows of the prefill, then one row for each decode step.
struct TraceRows {
  const io::Array* prefill = nullptr;
  const io::Array* decode = nullptr;
};

class Trace {
 public:
  // Throws io::FileError or Failure naming tensor or key, and both values.
  static Trace open(const std::filesystem::path& path);

  const std::string& model() const { return model_; }
  int model_layers() const { return model_layers_; }
  Dtype dtype() const { return dtype_; }
  const std::vector<TraceLayer>& layers() const { return layers_; }
  const std::vector<TracePrompt>& prompts() const { return prompts_; }

  // `operand`: 'q', 'k', 'v' or 'o'.
  TraceRows rows(std::size_t prompt, std::size_t layer, char operand) const;

 private:
  void read_metadata();
  void read_layer(int number);
  void check_tensors();

  std::string path_;
  io::SafetensorsFile file_;
  std::string model_;
  int model_layers_ = 0;
  Dtype dtype_ = Dtype::kNone;
  std::vector<TraceLayer> layers_;
  std::vector<TracePrompt> prompts_;
};

}  // namespace tegula::program
