// SPDX-License-Identifier: Apache-2.0
// Element types: sizes, names, and DLPack's codes for them.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tegula/tegula.h>

namespace tegula {

struct DtypeInfo {
  const char* name;
  uint8_t size;  // bytes
  uint8_t dlpack_code;
};

// Unknown values get {"?", 0, 255}.
const DtypeInfo& dtype_info(int32_t dtype);

inline const char* dtype_name(int32_t dtype) {
  return dtype_info(dtype).name;
}
inline size_t dtype_size(int32_t dtype) {
  return dtype_info(dtype).size;
}

// TEGULA_DTYPE_NONE if there is no such type here.
tegula_dtype dtype_from_dlpack(uint8_t code, uint8_t bits);

constexpr bool is_8bit_float(int32_t dtype) {
  return dtype == TEGULA_E4M3 || dtype == TEGULA_E5M2;
}
// f32, f16 or bf16.
constexpr bool is_wide_float(int32_t dtype) {
  return dtype == TEGULA_F32 || dtype == TEGULA_F16 || dtype == TEGULA_BF16;
}
constexpr bool is_float(int32_t dtype) {
  return is_wide_float(dtype) || is_8bit_float(dtype);
}

}  // namespace tegula
