// SPDX-License-Identifier: Apache-2.0
// The structures of DLPack 1.x that the package reads (dmlc/dlpack, dlpack.h): the producer's
// memory layout, so every field stands where DLPack has it.
#pragma once

#include <cstdint>

namespace tegula::python {

struct DLDevice {
  std::int32_t type;  // tegula_device_kind's numbers
  std::int32_t index;
};
struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // nullptr: row-major
  std::uint64_t byte_offset;
};

// Capsule "dltensor".
struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};
// Capsule "dltensor_versioned".
struct DLManagedTensorVersioned {
  struct {
    std::uint32_t major, minor;
  } version;
  void* context;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor tensor;
};
inline constexpr std::uint64_t kDLReadOnly = 1;

// type(x).__dlpack_c_exchange_api__, capsule "dlpack_exchange_api": a tenth of the cost of
// x.__dlpack__().
struct DLExchangeApi {
  struct {
    std::uint32_t major, minor;
  } version;
  DLExchangeApi* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, DLTensor* tensor);  // a view, while the object lives
  int (*current_stream)(std::int32_t device_type, std::int32_t device_index, void** stream);
};

}  // namespace tegula::python
