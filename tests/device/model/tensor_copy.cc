// SPDX-License-Identifier: Apache-2.0
#include "tests/device/model/tensor_copy.hpp"

#include <cstddef>
#include <cstring>

namespace tegula::model {

// Rows of a box are 128 bytes: chunks of 16 change places by the low bits of their row's address.
const char* copy_box(char* to, const TensorView& view, const int (&at)[4]) {
  const std::size_t row_bytes = view.box[0] * static_cast<std::size_t>(view.element_size);
  if (row_bytes != 128) return "TMA: a box whose rows are not 128 bytes";
  std::size_t place = 0;
  for (std::uint32_t i3 = 0; i3 < view.box[3]; ++i3) {
    for (std::uint32_t i2 = 0; i2 < view.box[2]; ++i2) {
      for (std::uint32_t i1 = 0; i1 < view.box[1]; ++i1) {
        for (std::uint32_t i0 = 0; i0 < view.box[0];
             ++i0, place += static_cast<std::size_t>(view.element_size)) {
          const std::uint32_t within[4] = {i0, i1, i2, i3};
          const unsigned char* from = view.data;
          bool inside = true;
          for (int d = 0; d < 4; ++d) {
            const std::int64_t index = std::int64_t{at[d]} + within[d];
            inside = inside && index >= 0 && index < static_cast<std::int64_t>(view.sizes[d]);
            from += index * static_cast<std::int64_t>(view.strides[d]);
          }
          char* const element = to + (place ^ (place >> 7 & 7) << 4);
          if (inside) {
            std::memcpy(element, from, static_cast<std::size_t>(view.element_size));
          } else {
            std::memset(element, 0, static_cast<std::size_t>(view.element_size));
          }
        }
      }
    }
  }
  return nullptr;
}

}  // namespace tegula::model
