// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/call.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace tegula::fuzz {
namespace {

constexpr std::byte kUntouched{0xa5};

// Bytes from the tensor's first element to the end of its last; nullopt if there is none, or more
// than fits a slot, or more elements than `most`.
std::optional<std::size_t> span_bytes(const tegula_tensor& tensor, std::int64_t most) {
  const std::int64_t element = std::max(1, tensor.type_bits * tensor.type_lanes / 8);
  const std::int32_t ndim = std::clamp(tensor.ndim, 0, TEGULA_MAX_DIMS);
  __extension__ typedef __int128 Wide;
  Wide last = 0;
  Wide elements = 1;
  for (std::int32_t i = 0; i < ndim; ++i) {
    if (tensor.shape[i] <= 0) return std::nullopt;
    elements *= tensor.shape[i];
    if (elements > most) return std::nullopt;
    if (tensor.shape[i] > 1)
      last += Wide{tensor.shape[i] - 1} * std::max<std::int64_t>(tensor.strides[i], 0);
    if (last * element > static_cast<Wide>(Arena::kSlotBytes)) return std::nullopt;
  }
  const Wide bytes = (last + 1) * element;
  if (bytes > static_cast<Wide>(Arena::kSlotBytes)) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

template <typename T>
void add_wrapping(T& value, std::int64_t change) {
  value = static_cast<T>(static_cast<std::uint64_t>(value) + static_cast<std::uint64_t>(change));
}

void set_row_major(tegula_tensor& tensor, const std::int64_t* padding) {
  std::int64_t stride = 1;
  for (std::int32_t i = tensor.ndim - 1; i >= 0; --i) {
    tensor.strides[i] = stride;
    stride *= std::max<std::int64_t>(tensor.shape[i] + padding[i], 1);
  }
}

void run_inline(void* context, std::int64_t count, tegula_task_fn fn, void* argument) {
  const auto workers = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(context));
  for (std::int64_t i = 0; i < count; ++i)
    fn(argument, count - 1 - i, static_cast<std::int32_t>(i % workers));
}

}  // namespace

Call::Operand& Call::add(std::int32_t dtype, const std::vector<std::int64_t>& shape, Role role) {
  require(count_ < kMaxOperands);
  Operand& operand = operands_[count_++];
  operand = {};
  operand.role = role;
  operand.at_start = input_.one_in(4);
  // Refused for shapes that it can judge; spoil() makes the others.
  require(tegula_tensor_init(&operand.index.tensor, nullptr, dtype,
                             static_cast<std::int32_t>(shape.size()), shape.data()) == TEGULA_OK);
  return operand;
}

void Call::vary_strides(tegula_tensor& tensor, Role role) {
  std::int64_t padding[TEGULA_MAX_DIMS] = {};
  const std::int32_t outer = tensor.ndim - 1;  // dimensions whose stride is free
  if (outer < 1) return;
  switch (input_.below(8)) {
    case 4:
      padding[1 + input_.below(outer)] = input_.below(9);
      set_row_major(tensor, padding);
      break;
    case 5:
      if (role == Role::kInput) tensor.strides[input_.below(outer)] = 0;
      break;
    case 6:  // as if another dimension came first in memory
      if (outer >= 3) {
        std::swap(tensor.shape[1], tensor.shape[2]);
        set_row_major(tensor, padding);
        std::swap(tensor.shape[1], tensor.shape[2]);
        std::swap(tensor.strides[1], tensor.strides[2]);
      }
      break;
    case 7: tensor.byte_offset = static_cast<std::uint64_t>(input_.below(64)); break;
    default: break;
  }
}

const tegula_tensor* Call::tensor(std::int32_t dtype, std::vector<std::int64_t> shape, Role role) {
  Operand& operand = add(dtype, shape, role);
  vary_strides(operand.index.tensor, role);
  return &operand.index.tensor;
}

const tegula_index* Call::index(std::vector<std::int64_t> shape, std::vector<std::int64_t> values,
                                std::int32_t dtype) {
  Operand& operand = add(dtype, shape, Role::kInput);
  operand.values = std::move(values);
  operand.columns = shape.empty() ? 1 : shape.back();
  if (shape.size() == 2) operand.index.tensor.strides[0] += input_.below(4);
  return &operand.index;
}

const tegula_tensor* Call::head_scale(std::int64_t batch, std::int64_t heads) {
  switch (input_.below(3)) {
    case 0: return tensor(TEGULA_F32, {1});
    case 1: return tensor(TEGULA_F32, {heads});
    default: return tensor(TEGULA_F32, {batch, heads});
  }
}

void Call::spoil() {
  if (count_ == 0) return;
  Operand& operand = operands_[static_cast<std::size_t>(input_.below(count_))];
  tegula_tensor& tensor = operand.index.tensor;
  const auto dimension = static_cast<std::size_t>(input_.below(TEGULA_MAX_DIMS));
  switch (input_.below(12)) {
    case 0: tensor.shape[dimension] = input_.odd_number(); break;
    case 1: add_wrapping(tensor.shape[dimension], input_.below(5) - 2); break;
    case 2: tensor.strides[dimension] = input_.odd_number(); break;
    case 3: tensor.ndim = static_cast<std::int32_t>(input_.odd_number()); break;
    case 4: add_wrapping(tensor.ndim, input_.below(3) - 1); break;
    case 5:
      tensor.type_code = static_cast<std::uint8_t>(input_.below(16));
      tensor.type_bits = input_.pick<std::uint8_t>({8, 16, 32, 64, 0, 1, 4, 128, 255});
      break;
    case 6: tensor.type_lanes = static_cast<std::uint16_t>(input_.below(4)); break;
    case 7: tensor.device_kind = static_cast<std::int32_t>(input_.odd_number()); break;
    case 8: tensor.byte_offset = static_cast<std::uint64_t>(input_.odd_number()); break;
    case 9: operand.is_null = true; break;
    default:
      if (!operand.values.empty()) {
        const auto count = static_cast<std::int64_t>(operand.values.size());
        operand.values[static_cast<std::size_t>(input_.below(std::min<std::int64_t>(count, 256)))] =
            input_.odd_number();
      }
      break;
  }
}

void Call::back() {
  arena_.reset();
  for (std::size_t i = 0; i < count_; ++i) {
    Operand& operand = operands_[i];
    tegula_tensor& tensor = operand.index.tensor;
    const std::optional<std::size_t> bytes = span_bytes(tensor, kMaxElements);
    operand.memory = nullptr;
    operand.bytes = 0;
    tensor.data = nullptr;
    operand.index.host = nullptr;
    if (operand.is_null || !bytes) continue;
    operand.bytes = *bytes;
    operand.memory = arena_.take(*bytes, operand.at_start);
    fill(operand);
    // Unsigned, so that even an offset of nearly 2^64 leads to the memory.
    tensor.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(operand.memory) -
                                          tensor.byte_offset);
    // Ignored for CPU tensors, so it may be anything there; elsewhere it would be read.
    if (tensor.device_kind == TEGULA_CPU) operand.index.host = reinterpret_cast<const void*>(16);
  }
}

void Call::fill(Operand& operand) {
  if (operand.role == Role::kOutput) {
    std::fill_n(operand.memory, operand.bytes, kUntouched);
    return;
  }
  const tegula_tensor& tensor = operand.index.tensor;
  if (operand.values.empty()) {
    // Any bits: not-a-numbers and infinities included, in every float type.
    std::uint32_t state = 0x9e3779b9;
    for (std::size_t i = 0; i < operand.bytes; ++i) {
      state = state * 1664525 + 1013904223;
      operand.memory[i] = static_cast<std::byte>(state >> 24);
    }
    return;
  }
  const std::size_t element = tensor.type_bits == 64 ? 8 : 4;
  const std::int64_t pitch = tensor.ndim == 2 ? std::max<std::int64_t>(tensor.strides[0], 1)
                                              : std::max<std::int64_t>(operand.columns, 1);
  for (std::size_t i = 0; (i + 1) * element <= operand.bytes; ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / pitch;
    const std::int64_t column = static_cast<std::int64_t>(i) % pitch;
    const auto at = static_cast<std::size_t>(row * operand.columns + column);
    const bool inside = column < operand.columns && at < operand.values.size();
    const std::int64_t value = inside ? operand.values[at] : -7;
    std::memcpy(operand.memory + i * element, &value, element);
  }
}

void Call::check(tegula_status status) {
  require(status >= TEGULA_OK && status < TEGULA_INTERNAL_ERROR);
  if (status == TEGULA_OK) return;
  require_error_text();
  for (std::size_t i = 0; i < count_; ++i) {
    const Operand& operand = operands_[i];
    if (operand.role != Role::kOutput) continue;
    require(std::all_of(operand.memory, operand.memory + operand.bytes,
                        [](std::byte value) { return value == kUntouched; }));
  }
}

tegula_executor inline_executor(std::int32_t num_workers) {
  tegula_executor executor;
  tegula_executor_init(&executor);
  executor.context = reinterpret_cast<void*>(static_cast<std::intptr_t>(num_workers));
  executor.parallel_for = run_inline;
  executor.num_workers = num_workers;
  return executor;
}

void require_error_text() {
  const char* text = tegula_last_error();
  require(text != nullptr && *text != '\0');
  for (; *text != '\0'; ++text) require(*text >= 0x20 && *text < 0x7f);
}

}  // namespace tegula::fuzz

// A plan may ask for more scratch than there is; that must come back as a status.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
