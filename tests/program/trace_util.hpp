// SPDX-License-Identifier: Apache-2.0
// Makes small traces: what a model with any mask might have left.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "src/io/safetensors.hpp"
#include "tests/oracle/formats.hpp"

namespace tegula::program {

struct MadeLayer {
  int number = 0;
  std::int64_t num_heads_q = 4, num_heads_kv = 2, head_dim = 16, head_dim_v = 16;
  double scale = 0.25, softcap = 0.0;
  std::int64_t window_left = -1;
  bool sink = false;
};

struct MadePrompt {
  std::int64_t prompt_tokens = 5, steps = 3;
};

// A trace before it is a file; tests change it to make wrong ones.
struct MadeTrace {
  std::map<std::string, std::string> metadata;
  struct Tensor {
    io::Dtype dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor> tensors;

  // o is the reference's, rounded once.
  static MadeTrace make(oracle::Format format, const std::vector<MadeLayer>& layers,
                        const std::vector<MadePrompt>& prompts);

  void write(const std::filesystem::path& path) const;
};

// A folder that is removed at the end of the test.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace tegula::program
