// SPDX-License-Identifier: Apache-2.0
// A forward case's operands as a copy on a GPU, and their outputs back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tegula/tegula.h>

#include "tests/cases/forward_case.hpp"
#include "tests/cases/gpu.hpp"

namespace tegula::cases {

class DeviceForward {
 public:
  // Copies what `data` holds now, outputs included. host_copies: index tensors bring theirs.
  DeviceForward(Gpu& gpu, ForwardData& data, Placement placement, bool host_copies = false);
  DeviceForward(const DeviceForward&) = delete;
  DeviceForward& operator=(const DeviceForward&) = delete;

  const tegula_forward_args& args() const { return args_; }
  tegula_forward_args& args() { return args_; }  // for tests that spoil one
  GpuStream& stream() { return stream_; }

  void upload_outputs();          // o and lse of `data`
  void download_outputs();        // into `data`; waits for the stream
  std::string changed_inputs();   // "" if every input on the GPU is as `data` has it

  // Receives 1 + a bad sequence's index; 0 after construction and upload_outputs().
  std::int32_t* error_word() const { return reinterpret_cast<std::int32_t*>(error_word_.data()); }
  std::int32_t read_error_word();

 private:
  struct Copy {
    const char* name;
    Operand* host;
    DeviceBlock block;
    tegula_tensor tensor;
    tegula_index index;
    bool is_output;
  };
  static constexpr std::size_t kOperands = 20;

  const tegula_tensor* tensor_of(const Operand& operand) const;
  const tegula_index* index_of(const Operand& operand) const;

  ForwardData& data_;
  GpuStream stream_;
  std::vector<Copy> copies_;
  DeviceBlock error_word_;
  tegula_forward_args args_{};
};

}  // namespace tegula::cases
