// SPDX-License-Identifier: Apache-2.0
// The tensors of one fuzzed call of the C ABI. A target describes a legal call, lets the input
// spoil some of it, and then gives every tensor exactly the memory that its final shape and strides
// span. What spans too much stays NULL: a call with elements at NULL must be refused, so nothing
// that the library accepts can reach memory that was not meant for it.
#pragma once

#include <tegula/tegula.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tests/fuzz/input.hpp"

namespace tegula::fuzz {

enum class Role { kInput, kOutput };

class Call {
 public:
  Call(Input& input, Arena& arena) : input_(input), arena_(arena) { arena.reset(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Input& input() { return input_; }

  // Row-major, or with padded, swapped or (inputs only) zero strides, as the input decides. An
  // output keeps its content when a call fails; see check_failure().
  const tegula_tensor* tensor(std::int32_t dtype, std::vector<std::int64_t> shape,
                              Role role = Role::kInput);
  const tegula_index* index(std::vector<std::int64_t> shape, std::vector<std::int64_t> values,
                            std::int32_t dtype = TEGULA_I32);
  // One f32 value, one a head, or one a head and sequence.
  const tegula_tensor* head_scale(std::int64_t batch, std::int64_t heads);

  // Spoils one field of one tensor or one index value.
  void spoil();
  // Gives memory to all tensors, anew if they had some, and fills it.
  void back();

  // After a call: its status is one of the ABI's and not a fault of the library; a failure has left
  // a line of text and the outputs as they were.
  void check(tegula_status status);

  // Copies a structure into memory that ends with it, whatever its struct_size says.
  template <typename T>
  const T* guarded(const T& value) {
    const std::size_t bytes = std::clamp<std::size_t>(value.struct_size, sizeof(T), 8192);
    std::byte* memory = arena_.take(bytes, false);
    std::memset(memory, 0, bytes);
    std::memcpy(memory, &value, sizeof(T));
    return reinterpret_cast<const T*>(memory);
  }
  // A struct_size now and then, which may be anything.
  void spoil_size(std::size_t& struct_size) {
    if (input_.one_in(64)) struct_size = static_cast<std::size_t>(input_.odd_number());
  }

 private:
  static constexpr std::size_t kMaxOperands = 24;
  static constexpr std::int64_t kMaxElements = 1 << 14;  // bounds the time of a call, too

  struct Operand {
    tegula_index index;  // of plain tensors only index.tensor is used
    Role role = Role::kInput;
    std::vector<std::int64_t> values;  // index tensors
    std::int64_t columns = 0;          // of values' rows
    bool at_start = false;             // where in its slot
    bool is_null = false;
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };

  Operand& add(std::int32_t dtype, const std::vector<std::int64_t>& shape, Role role);
  void vary_strides(tegula_tensor& tensor, Role role);
  void fill(Operand& operand);

  Input& input_;
  Arena& arena_;
  std::array<Operand, kMaxOperands> operands_;  // addresses must not change
  std::size_t count_ = 0;
};

// Runs tasks on the calling thread in an order and as workers that the contract allows.
tegula_executor inline_executor(std::int32_t num_workers);

// One printable line, not empty.
void require_error_text();

}  // namespace tegula::fuzz
