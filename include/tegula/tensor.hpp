// SPDX-License-Identifier: Apache-2.0
// Non-owning views of the caller's memory: Tensor, and Index for lengths, offsets and page tables.
#pragma once

#include <tegula/tegula.h>
#include <tegula/error.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>

namespace tegula {
inline namespace v1 {

enum class Dtype : int32_t {
  kNone = TEGULA_DTYPE_NONE,
  kF32 = TEGULA_F32,
  kF16 = TEGULA_F16,
  kBf16 = TEGULA_BF16,
  kE4m3 = TEGULA_E4M3,
  kE5m2 = TEGULA_E5M2,
  kBool = TEGULA_BOOL,
  kI32 = TEGULA_I32,
  kI64 = TEGULA_I64,
};

inline const char* name(Dtype dtype) {
  return tegula_dtype_name(static_cast<int32_t>(dtype));
}
inline size_t size_of(Dtype dtype) {
  return tegula_dtype_size(static_cast<int32_t>(dtype));
}

// The Dtype of a C++ type. Specialise it for 16-bit and 8-bit types of your own:
//   template <> inline constexpr tegula::Dtype tegula::dtype_of<MyBfloat16> = tegula::Dtype::kBf16;
template <class T>
inline constexpr Dtype dtype_of = Dtype::kNone;
template <>
inline constexpr Dtype dtype_of<float> = Dtype::kF32;
template <>
inline constexpr Dtype dtype_of<bool> = Dtype::kBool;
template <>
inline constexpr Dtype dtype_of<int32_t> = Dtype::kI32;
template <>
inline constexpr Dtype dtype_of<int64_t> = Dtype::kI64;

// Up to 5 sizes or strides.
class Extents {
 public:
  Extents(std::initializer_list<int64_t> values)
      : Extents(std::span(values.begin(), values.size())) {}
  Extents(std::span<const int64_t> values) : ndim_(static_cast<int32_t>(values.size())) {
    if (values.size() > TEGULA_MAX_DIMS) {
      throw Error(TEGULA_INVALID_ARGUMENT, "tensor: ndim " + std::to_string(values.size()) +
                                               " is more than " + std::to_string(TEGULA_MAX_DIMS));
    }
    std::copy(values.begin(), values.end(), values_);
  }

  int32_t ndim() const { return ndim_; }
  const int64_t* data() const { return values_; }

 private:
  int64_t values_[TEGULA_MAX_DIMS] = {};
  int32_t ndim_ = 0;
};

namespace detail {
template <class R>
concept ContiguousRange = std::ranges::contiguous_range<R> && std::ranges::sized_range<R>;
template <class R>
using Element = std::remove_cvref_t<std::ranges::range_reference_t<R>>;
}  // namespace detail

// A strided view of elements that live elsewhere; inputs are never written to, so const data is
// welcome. Default-constructed: absent.
class Tensor {
 public:
  Tensor() = default;

  // Row-major, on the CPU. data may be null if the tensor has no element.
  Tensor(const void* data, Dtype dtype, const Extents& shape) {
    check(tegula_tensor_init(&tensor_, const_cast<void*>(data), static_cast<int32_t>(dtype),
                             shape.ndim(), shape.data()));
  }
  // strides: in elements, one per dimension; 0 broadcasts an input.
  Tensor(const void* data, Dtype dtype, const Extents& shape, const Extents& strides)
      : Tensor(data, dtype, shape) {
    if (strides.ndim() != shape.ndim()) {
      throw Error(TEGULA_INVALID_ARGUMENT, "tensor: " + std::to_string(strides.ndim()) +
                                               " strides differ from " +
                                               std::to_string(shape.ndim()) + " sizes");
    }
    std::copy_n(strides.data(), strides.ndim(), tensor_.strides);
  }

  template <class T>
    requires(dtype_of<std::remove_cv_t<T>> != Dtype::kNone)
  Tensor(T* data, const Extents& shape) : Tensor(data, dtype_of<std::remove_cv_t<T>>, shape) {}
  template <class T>
    requires(dtype_of<std::remove_cv_t<T>> != Dtype::kNone)
  Tensor(T* data, const Extents& shape, const Extents& strides)
      : Tensor(data, dtype_of<std::remove_cv_t<T>>, shape, strides) {}

  // A vector, array or span that holds the whole row-major tensor.
  template <detail::ContiguousRange R>
    requires(dtype_of<detail::Element<R>> != Dtype::kNone)
  Tensor(R&& elements, const Extents& shape)
      : Tensor(std::forward<R>(elements), dtype_of<detail::Element<R>>, shape) {}
  // Raw storage of another type, such as uint16_t for bf16.
  template <detail::ContiguousRange R>
  Tensor(R&& storage, Dtype dtype, const Extents& shape)
      : Tensor(static_cast<const void*>(std::ranges::data(storage)), dtype, shape) {
    const uint64_t held = std::ranges::size(storage) * sizeof(detail::Element<R>);
    const uint64_t needed = static_cast<uint64_t>(num_elements()) * size_of(dtype);
    if (held < needed) {
      throw Error(TEGULA_INVALID_ARGUMENT, "tensor: " + std::to_string(held) +
                                               " bytes are less than the " +
                                               std::to_string(needed) + " that its shape needs");
    }
  }

  // The same view of memory that lies on a GPU.
  Tensor on_cuda(int32_t index = 0) const {
    Tensor moved = *this;
    moved.tensor_.device_kind = TEGULA_CUDA;
    moved.tensor_.device_index = index;
    return moved;
  }
  bool is_cuda() const { return tensor_.device_kind == TEGULA_CUDA; }
  int32_t device_index() const { return tensor_.device_index; }

  bool present() const { return tensor_.type_lanes != 0; }
  void* data() const { return static_cast<char*>(tensor_.data) + tensor_.byte_offset; }
  int32_t ndim() const { return tensor_.ndim; }
  int64_t size(int32_t dimension) const { return tensor_.shape[dimension]; }
  int64_t stride(int32_t dimension) const { return tensor_.strides[dimension]; }
  int64_t num_elements() const {
    int64_t count = 1;
    for (int32_t i = 0; i < tensor_.ndim; ++i) count *= tensor_.shape[i];
    return count;
  }

  // The C structure: to set a byte offset, or to pass it on. NULL in C means absent.
  tegula_tensor& c() { return tensor_; }
  const tegula_tensor* c_or_null() const { return present() ? &tensor_ : nullptr; }

 private:
  tegula_tensor tensor_ = {};
};

// A view of int32 numbers (slot_mapping: int64): lengths, offsets, page tables.
// Default-constructed: absent.
class Index {
 public:
  Index() = default;
  Index(const int32_t* data, const Extents& shape) : Index(Tensor(data, shape)) {}
  Index(const int64_t* data, const Extents& shape) : Index(Tensor(data, shape)) {}
  // host: for a device tensor, an optional packed row-major copy in host memory.
  explicit Index(const Tensor& tensor, const void* host = nullptr) {
    index_.tensor = Tensor(tensor).c();
    index_.host = host;
  }

  // A vector, array or span of rank 1, or of the given shape.
  template <detail::ContiguousRange R>
    requires(std::same_as<detail::Element<R>, int32_t> || std::same_as<detail::Element<R>, int64_t>)
  Index(R&& values) : Index(values, {static_cast<int64_t>(std::ranges::size(values))}) {}
  template <detail::ContiguousRange R>
    requires(std::same_as<detail::Element<R>, int32_t> || std::same_as<detail::Element<R>, int64_t>)
  Index(R&& values, const Extents& shape) : Index(Tensor(values, shape)) {}

  bool present() const { return index_.tensor.type_lanes != 0; }
  tegula_index& c() { return index_; }
  const tegula_index* c_or_null() const { return present() ? &index_ : nullptr; }

 private:
  tegula_index index_ = {};
};

}  // namespace v1
}  // namespace tegula
