// SPDX-License-Identifier: Apache-2.0
// Memory and tensors of a case: owning, poisoned, and ending at a guard page where asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <tegula/tegula.h>

#include "tests/cases/cases.hpp"
#include "tests/oracle/formats.hpp"

namespace tegula::cases {

// kAligned: begins at a multiple of 64 bytes. kGuarded: ends at a page that may not be touched, so
// that a read or write past the last element faults even in objects without sanitizers.
enum class Placement { kAligned, kGuarded };

// Every float format reads this byte, repeated, as NaN; an int32 of it is -1.
inline constexpr int kPoison = 0xff;

class Memory {
 public:
  Memory() = default;
  Memory(std::size_t size, Placement placement, int fill);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::vector<std::byte> copy() const { return {data_, data_ + size_}; }
  void fill(int byte) const;
  bool equals(const std::vector<std::byte>& bytes) const;
  bool filled_with(int byte) const;

 private:
  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A tensor and the memory under it. Absent until made.
struct Operand {
  Memory memory;
  tegula_tensor tensor{};
  tegula_dtype dtype = TEGULA_DTYPE_NONE;
  std::int64_t strides[TEGULA_MAX_DIMS] = {};  // the real ones: 0 where a dimension has size <= 1
  std::int64_t offset = 0;                     // elements from memory to the first one

  bool present() const { return dtype != TEGULA_DTYPE_NONE; }
  std::size_t element_size() const { return tegula_dtype_size(dtype); }
  std::byte* at(std::int64_t a, std::int64_t b = 0, std::int64_t c = 0, std::int64_t d = 0,
                std::int64_t e = 0) const;
  double get(std::int64_t a, std::int64_t b = 0, std::int64_t c = 0, std::int64_t d = 0,
             std::int64_t e = 0) const;
  void set(double value, std::int64_t a, std::int64_t b = 0, std::int64_t c = 0,
           std::int64_t d = 0, std::int64_t e = 0) const;
  const tegula_tensor* pointer() const { return present() ? &tensor : nullptr; }
};

oracle::Format format_of(tegula_dtype dtype);

// `spare` elements at the end belong to the shape but not to the memory (a short page table).
Operand make_operand(tegula_dtype dtype, const std::vector<std::int64_t>& shape,
                     const std::vector<std::int64_t>& strides, std::int64_t offset,
                     Placement placement, int fill, std::int64_t spare = 0);

// Row-major.
Operand make_packed(tegula_dtype dtype, const std::vector<std::int64_t>& shape,
                    Placement placement, int fill);

// [outer, tokens, heads, dim], or [tokens, heads, dim] if `outer` < 0.
Operand make_tokens(tegula_dtype dtype, std::int64_t outer, std::int64_t tokens,
                    std::int64_t heads, std::int64_t dim, Strides style, Placement placement,
                    int fill);

// Index tensors.
Operand make_index(const std::vector<std::int64_t>& values, tegula_dtype dtype,
                   Placement placement);
Operand make_floats(const std::vector<double>& values, const std::vector<std::int64_t>& shape,
                    const std::vector<std::int64_t>& strides, Placement placement);

}  // namespace tegula::cases
