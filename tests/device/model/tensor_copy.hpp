// SPDX-License-Identifier: Apache-2.0
// What TMA copies.
#pragma once

#include <cstdint>

namespace tegula::model {

// A 4-dimensional tensor as a tensor map describes it; 128-byte swizzle.
struct TensorView {
  const unsigned char* data;
  int element_size;
  std::uint64_t sizes[4];
  std::uint64_t strides[4];  // bytes
  std::uint32_t box[4];
};

// The box that begins at `at`, with zeros for what lies outside the tensor. nullptr, or what is
// wrong.
const char* copy_box(char* to, const TensorView& view, const int (&at)[4]);

}  // namespace tegula::model
