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

}  // namespace

const DtypeInfo& dtype_info(int32_t dtype) {
  return dtype >= 0 && dtype < kNumDtypes ? kDtypes[dtype] : kUnknown;
}

tegula_dtype dtype_from_dlpack(uint8_t code, uint8_t bits) {
  for (int32_t i = 1; i < kNumDtypes; ++i) {
    if (kDtypes[i].dlpack_code == code && kDtypes[i].size * 8 == bits) {
      return static_cast<tegula_dtype>(i);
    }
  }
  return TEGULA_DTYPE_NONE;
}

}  // namespace tegula
