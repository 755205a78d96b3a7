// SPDX-License-Identifier: Apache-2.0
#include "src/core/dtype.hpp"

namespace tegula {
namespace {

constexpr DtypeInfo kUnknown = {"?", 0, 255};
// Indexed by tegula_dtype.
constexpr DtypeInfo kDtypes[] = {
    {"none", 0, 255}, {"f32", 4, 2},  {"f16", 2, 2}, {"bf16", 2, 4}, {"e4m3", 1, 10},
    {"e5m2", 1, 12},  {"bool", 1, 6}, {"i32", 4, 0}, {"i64", 8, 0},
};
constexpr int32_t kNumDtypes = sizeof kDtypes / sizeof kDtypes[0];
static_assert(kNumDtypes == TEGULA_I64 + 1);

// A switch: every check of a tensor begins here.
constexpr tegula_dtype from_dlpack(uint8_t code, uint8_t bits) {
  switch (code << 8 | bits) {
    case 2 << 8 | 32: return TEGULA_F32;
    case 2 << 8 | 16: return TEGULA_F16;
    case 4 << 8 | 16: return TEGULA_BF16;
    case 10 << 8 | 8: return TEGULA_E4M3;
    case 12 << 8 | 8: return TEGULA_E5M2;
    case 6 << 8 | 8: return TEGULA_BOOL;
    case 0 << 8 | 32: return TEGULA_I32;
    case 0 << 8 | 64: return TEGULA_I64;
    default: return TEGULA_DTYPE_NONE;
  }
}

constexpr bool agrees_with_table() {
  for (int32_t i = 1; i < kNumDtypes; ++i) {
    const DtypeInfo& info = kDtypes[i];
    if (from_dlpack(info.dlpack_code, static_cast<uint8_t>(8 * info.size)) != i) return false;
  }
  return true;
}
static_assert(agrees_with_table());

}  // namespace

const DtypeInfo& dtype_info(int32_t dtype) {
  return dtype >= 0 && dtype < kNumDtypes ? kDtypes[dtype] : kUnknown;
}

tegula_dtype dtype_from_dlpack(uint8_t code, uint8_t bits) {
  return from_dlpack(code, bits);
}

}  // namespace tegula
