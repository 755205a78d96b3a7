// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/operand.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

namespace tegula::cases {

Memory::Memory(std::size_t size, Placement placement, int fill_byte) : size_(size) {
  if (placement == Placement::kAligned) {
    constexpr std::align_val_t kAlignment{64};
    void* block = ::operator new(size > 0 ? size : 1, kAlignment);
    owner_ = std::shared_ptr<void>(
        block, [kAlignment](void* pointer) { ::operator delete(pointer, kAlignment); });
    data_ = static_cast<std::byte*>(block);
  } else {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t used = (size + page - 1) / page * page;
    void* block =
        mmap(nullptr, used + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    owner_ = std::shared_ptr<void>(block,
                                   [used, page](void* pointer) { munmap(pointer, used + page); });
    auto* bytes = static_cast<std::byte*>(block);
    if (mprotect(bytes + used, page, PROT_NONE) != 0) throw std::runtime_error("mprotect failed");
    data_ = bytes + (used - size);
  }
  fill(fill_byte);
}

void Memory::fill(int byte) const {
  if (size_ > 0) std::memset(data_, byte, size_);
}

bool Memory::equals(const std::vector<std::byte>& bytes) const {
  return bytes.size() == size_ && (size_ == 0 || std::memcmp(bytes.data(), data_, size_) == 0);
}

bool Memory::filled_with(int byte) const {
  return std::all_of(data_, data_ + size_,
                     [byte](std::byte got) { return got == static_cast<std::byte>(byte); });
}

oracle::Format format_of(tegula_dtype dtype) {
  switch (dtype) {
    case TEGULA_F32: return oracle::Format::kFp32;
    case TEGULA_F16: return oracle::Format::kFp16;
    case TEGULA_BF16: return oracle::Format::kBf16;
    case TEGULA_E4M3: return oracle::Format::kE4m3;
    case TEGULA_E5M2: return oracle::Format::kE5m2;
    default: throw std::logic_error("not a float type");
  }
}

std::byte* Operand::at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d,
                       std::int64_t e) const {
  const std::int64_t element = offset + a * strides[0] + b * strides[1] + c * strides[2] +
                               d * strides[3] + e * strides[4];
  return memory.data() + element * static_cast<std::int64_t>(element_size());
}

double Operand::get(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d,
                    std::int64_t e) const {
  const std::byte* address = at(a, b, c, d, e);
  switch (dtype) {
    case TEGULA_BOOL: return *address != std::byte{0} ? 1.0 : 0.0;
    case TEGULA_I32: {
      std::int32_t bits = 0;
      std::memcpy(&bits, address, sizeof bits);
      return bits;
    }
    case TEGULA_F32: {
      float bits = 0;
      std::memcpy(&bits, address, sizeof bits);
      return static_cast<double>(bits);
    }
    default: return oracle::load(format_of(dtype), address);
  }
}

void Operand::set(double value, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d,
                  std::int64_t e) const {
  std::byte* address = at(a, b, c, d, e);
  if (dtype == TEGULA_BOOL) {
    *address = value != 0.0 ? std::byte{1} : std::byte{0};
  } else if (dtype == TEGULA_I32) {
    const auto bits = static_cast<std::int32_t>(value);
    std::memcpy(address, &bits, sizeof bits);
  } else if (dtype == TEGULA_I64) {
    const auto bits = static_cast<std::int64_t>(value);
    std::memcpy(address, &bits, sizeof bits);
  } else {
    oracle::store(format_of(dtype), address, value, element_size() == 1);
  }
}

Operand make_operand(tegula_dtype dtype, const std::vector<std::int64_t>& shape,
                     const std::vector<std::int64_t>& strides, std::int64_t offset,
                     Placement placement, int fill, std::int64_t spare) {
  Operand operand;
  operand.dtype = dtype;
  operand.offset = offset;
  std::int64_t extent = 1;
  bool empty = false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    empty = empty || shape[i] == 0;
    operand.strides[i] = shape[i] <= 1 ? 0 : strides[i];
    extent += shape[i] <= 1 ? 0 : (shape[i] - 1) * strides[i];
  }
  const auto elements =
      static_cast<std::size_t>(empty || extent < spare ? 0 : offset + extent - spare);
  operand.memory = Memory(elements * tegula_dtype_size(dtype), placement, fill);
  // NULL is legal, and given, where there is no element.
  void* data = elements == 0 ? nullptr : operand.memory.data();
  if (tegula_tensor_init(&operand.tensor, data, dtype, static_cast<std::int32_t>(shape.size()),
                         shape.data()) != TEGULA_OK) {
    throw std::runtime_error(tegula_last_error());
  }
  for (std::size_t i = 0; i < shape.size(); ++i) operand.tensor.strides[i] = strides[i];
  operand.tensor.byte_offset =
      data == nullptr ? 0 : static_cast<std::uint64_t>(offset) * tegula_dtype_size(dtype);
  return operand;
}

Operand make_packed(tegula_dtype dtype, const std::vector<std::int64_t>& shape,
                    Placement placement, int fill) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return make_operand(dtype, shape, strides, 0, placement, fill);
}

Operand make_tokens(tegula_dtype dtype, std::int64_t outer, std::int64_t tokens,
                    std::int64_t heads, std::int64_t dim, Strides style, Placement placement,
                    int fill) {
  std::int64_t head_stride = dim;
  std::int64_t token_stride = heads * dim;
  std::int64_t outer_stride = tokens * token_stride;
  std::int64_t offset = 0;
  switch (style) {
    case Strides::kPacked: break;
    case Strides::kPadded:
      head_stride = dim + 3;
      token_stride = heads * head_stride + 5;
      outer_stride = tokens * token_stride + 7;
      break;
    case Strides::kHeadMajor:
      token_stride = dim;
      head_stride = tokens * dim;
      outer_stride = heads * head_stride;
      break;
    case Strides::kSliced:
      token_stride = 3 * heads * dim;
      outer_stride = tokens * token_stride;
      offset = heads * dim;
      break;
    case Strides::kShifted: offset = 1; break;
    case Strides::kBroadcastBatch: outer_stride = 0; break;
    case Strides::kBroadcastHeads:
      head_stride = 0;
      token_stride = dim;
      outer_stride = tokens * dim;
      break;
    case Strides::kBroadcastTokens:
      token_stride = 0;
      outer_stride = heads * dim;
      break;
  }
  std::vector<std::int64_t> shape{tokens, heads, dim};
  std::vector<std::int64_t> strides{token_stride, head_stride, 1};
  if (outer >= 0) {
    shape.insert(shape.begin(), outer);
    strides.insert(strides.begin(), outer_stride);
  }
  if (style == Strides::kPadded) {
    // Strides of dimensions of size <= 1 are ignored, whatever they say.
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] <= 1 && i + 1 < shape.size()) strides[i] = 1000003;
    }
  }
  return make_operand(dtype, shape, strides, offset, placement, fill);
}

Operand make_index(const std::vector<std::int64_t>& values, tegula_dtype dtype,
                   Placement placement) {
  Operand operand =
      make_packed(dtype, {static_cast<std::int64_t>(values.size())}, placement, kPoison);
  for (std::size_t i = 0; i < values.size(); ++i) {
    operand.set(static_cast<double>(values[i]), static_cast<std::int64_t>(i));
  }
  return operand;
}

Operand make_floats(const std::vector<double>& values, const std::vector<std::int64_t>& shape,
                    const std::vector<std::int64_t>& strides, Placement placement) {
  Operand operand = make_operand(TEGULA_F32, shape, strides, 0, placement, kPoison);
  const std::int64_t columns = shape.size() > 1 ? shape[1] : 1;
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      operand.set(values[static_cast<std::size_t>(i * columns + j)], i, j);
    }
  }
  return operand;
}

}  // namespace tegula::cases
