// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/formats.hpp"

#include <cmath>
#include <cstring>
#include <limits>

namespace tegula::oracle {
namespace {

struct Layout {
  int bytes;
  int mantissa_bits;
  int min_exponent;         // of the smallest normal number
  std::uint32_t sign_bit;
  std::uint32_t max_finite;  // code of the largest finite magnitude
  std::uint32_t infinity;    // 0: the format has none
  std::uint32_t nan;
};

Layout layout_of(Format format) {
  switch (format) {
    case Format::kFp32: return {4, 23, -126, 0x80000000u, 0x7f7fffffu, 0x7f800000u, 0x7fc00000u};
    case Format::kFp16: return {2, 10, -14, 0x8000u, 0x7bffu, 0x7c00u, 0x7e00u};
    case Format::kBf16: return {2, 7, -126, 0x8000u, 0x7f7fu, 0x7f80u, 0x7fc0u};
    case Format::kE4m3: return {1, 3, -6, 0x80u, 0x7eu, 0u, 0x7fu};
    case Format::kE5m2: return {1, 2, -14, 0x80u, 0x7bu, 0x7cu, 0x7fu};
  }
  return {};
}

}  // namespace

int bytes_of(Format format) { return layout_of(format).bytes; }

double decode(Format format, std::uint32_t bits) {
  const Layout layout = layout_of(format);
  const double sign = (bits & layout.sign_bit) != 0 ? -1.0 : 1.0;
  const std::uint32_t code = bits & (layout.sign_bit - 1);
  if (code > layout.max_finite) {
    if (layout.infinity != 0 && code == layout.infinity) {
      return sign * std::numeric_limits<double>::infinity();
    }
    return std::numeric_limits<double>::quiet_NaN();
  }
  const std::uint32_t exponent = code >> layout.mantissa_bits;
  const std::uint32_t hidden = 1u << layout.mantissa_bits;
  const std::uint32_t fraction = code & (hidden - 1);
  if (exponent == 0) {
    return sign * std::ldexp(static_cast<double>(fraction),
                             layout.min_exponent - layout.mantissa_bits);
  }
  return sign * std::ldexp(static_cast<double>(hidden + fraction),
                           layout.min_exponent + static_cast<int>(exponent) - 1 -
                               layout.mantissa_bits);
}

std::uint32_t encode(Format format, double value, bool saturate) {
  const Layout layout = layout_of(format);
  const std::uint32_t sign = std::signbit(value) ? layout.sign_bit : 0u;
  if (std::isnan(value)) return sign | layout.nan;
  const std::uint32_t overflow =
      saturate ? layout.max_finite : (layout.infinity != 0 ? layout.infinity : layout.nan);
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | overflow;
  if (magnitude == 0.0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int lead = exponent - 1 > layout.min_exponent ? exponent - 1 : layout.min_exponent;
  if (lead > 1000) return sign | overflow;
  // In units of the last place the number is below 2^(mantissa_bits + 1), so floor is exact.
  const double scaled = std::ldexp(magnitude, layout.mantissa_bits - lead);
  const double whole = std::floor(scaled);
  std::uint64_t units = static_cast<std::uint64_t>(whole);
  const double rest = scaled - whole;
  if (rest > 0.5 || (rest == 0.5 && (units & 1) != 0)) ++units;
  // The hidden bit, when present, carries into the exponent field: that is the whole encoding.
  const std::uint64_t code =
      (static_cast<std::uint64_t>(lead - layout.min_exponent) << layout.mantissa_bits) + units;
  if (code > layout.max_finite) return sign | overflow;
  return sign | static_cast<std::uint32_t>(code);
}

double ulp(Format format, double value) {
  const Layout layout = layout_of(format);
  int exponent = 0;
  std::frexp(value, &exponent);
  const int lead = value != 0.0 && exponent - 1 > layout.min_exponent ? exponent - 1
                                                                      : layout.min_exponent;
  return std::ldexp(1.0, lead - layout.mantissa_bits);
}

double load(Format format, const void* address) {
  if (bytes_of(format) == 4) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, address, 4);
    return decode(format, bits);
  }
  if (bytes_of(format) == 2) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, address, 2);
    return decode(format, bits);
  }
  std::uint8_t bits = 0;
  std::memcpy(&bits, address, 1);
  return decode(format, bits);
}

void store(Format format, void* address, double value, bool saturate) {
  const std::uint32_t code = encode(format, value, saturate);
  if (bytes_of(format) == 4) {
    std::memcpy(address, &code, 4);
  } else if (bytes_of(format) == 2) {
    const auto narrow = static_cast<std::uint16_t>(code);
    std::memcpy(address, &narrow, 2);
  } else {
    const auto narrow = static_cast<std::uint8_t>(code);
    std::memcpy(address, &narrow, 1);
  }
}

}  // namespace tegula::oracle
