// SPDX-License-Identifier: Apache-2.0
// Operands of a forward from files: tensors of safetensors files by their names, npy files by theirs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tegula/tegula.hpp>

#include "src/io/npy.hpp"
#include "src/io/safetensors.hpp"

namespace tegula::program {

// The library's view of what was read, and where outputs go.
class Operands {
 public:
  // Each of `files` is PATH, or NAME=PATH for an npy file whose stem is not the operand's name. `prefix` stands
  // before the operands' names in safetensors files. Throws io::FileError or Failure.
  Operands(const std::vector<std::string>& files, const std::string& prefix);

  // Inputs alone; q, k and v of rank 3 without offsets are one sequence and get a batch of 1. A bias may have
  // extents of 1 where the library wants a stride of 0.
  ForwardArgs args() const;

  Dtype dtype(const std::string& name) const;  // of an operand that is there; Failure if it is no operand's type
  const std::vector<std::string>& ignored() const { return ignored_; }  // tensors that are no operand

 private:
  void add(const std::string& name, const io::Array& array);
  Tensor tensor(const std::string& name) const;
  Tensor sequence_tensor(const std::string& name, bool ragged) const;
  Tensor bias(const ForwardArgs& args) const;
  Index index(const std::string& name) const;

  std::vector<std::unique_ptr<io::SafetensorsFile>> safetensors_;
  std::vector<std::unique_ptr<io::NpyFile>> npys_;
  std::map<std::string, io::Array> arrays_;
  std::map<std::string, std::vector<std::int32_t>> indices_;
  std::vector<std::vector<std::byte>> copies_;  // of arrays that lie off their element's alignment
  std::vector<std::string> ignored_;
};

}  // namespace tegula::program
