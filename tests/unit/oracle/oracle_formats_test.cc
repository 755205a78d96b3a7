// SPDX-License-Identifier: Apache-2.0
// The oracle's number formats against values written down by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/oracle/formats.hpp"

namespace tegula::oracle {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(OracleFormats, KnownCodes) {
  EXPECT_EQ(decode(Format::kFp16, 0x3c00), 1.0);
  EXPECT_EQ(decode(Format::kFp16, 0xc000), -2.0);
  EXPECT_EQ(decode(Format::kFp16, 0x7bff), 65504.0);
  EXPECT_EQ(decode(Format::kFp16, 0x0001), 0x1p-24);
  EXPECT_EQ(decode(Format::kFp16, 0x03ff), 1023 * 0x1p-24);
  EXPECT_EQ(decode(Format::kFp16, 0x7c00), kInf);
  EXPECT_TRUE(std::isnan(decode(Format::kFp16, 0x7c01)));
  EXPECT_EQ(decode(Format::kBf16, 0x3f80), 1.0);
  EXPECT_EQ(decode(Format::kBf16, 0x4049), 3.140625);
  EXPECT_EQ(decode(Format::kBf16, 0xff80), -kInf);
  EXPECT_EQ(decode(Format::kE4m3, 0x38), 1.0);
  EXPECT_EQ(decode(Format::kE4m3, 0x7e), 448.0);
  EXPECT_EQ(decode(Format::kE4m3, 0x01), 0x1p-9);
  EXPECT_TRUE(std::isnan(decode(Format::kE4m3, 0x7f)));
  EXPECT_TRUE(std::isnan(decode(Format::kE4m3, 0xff)));
  EXPECT_EQ(decode(Format::kE5m2, 0x3c), 1.0);
  EXPECT_EQ(decode(Format::kE5m2, 0x7b), 57344.0);
  EXPECT_EQ(decode(Format::kE5m2, 0x01), 0x1p-16);
  EXPECT_EQ(decode(Format::kE5m2, 0xfc), -kInf);
}

TEST(OracleFormats, EveryCodeSurvivesARoundTrip) {
  for (const Format format : {Format::kFp16, Format::kBf16, Format::kE4m3, Format::kE5m2}) {
    const std::uint32_t codes = bytes_of(format) == 1 ? 0x100u : 0x10000u;
    for (std::uint32_t code = 0; code < codes; ++code) {
      const double value = decode(format, code);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(decode(format, encode(format, value))));
      } else {
        ASSERT_EQ(encode(format, value), code) << static_cast<int>(format);
      }
    }
  }
}

TEST(OracleFormats, RoundsToNearestEvenAtEveryMidpoint) {
  for (const Format format : {Format::kFp16, Format::kBf16, Format::kE4m3, Format::kE5m2}) {
    const std::uint32_t top = format == Format::kFp16   ? 0x7bffu
                              : format == Format::kBf16 ? 0x7f7fu
                              : format == Format::kE4m3 ? 0x7eu
                                                        : 0x7bu;
    for (std::uint32_t code = 0; code < top; ++code) {
      const double low = decode(format, code);
      const double high = decode(format, code + 1);
      const double middle = low + (high - low) / 2;
      ASSERT_EQ(encode(format, middle), code % 2 == 0 ? code : code + 1) << code;
      ASSERT_EQ(encode(format, std::nextafter(middle, 0.0)), code) << code;
      ASSERT_EQ(encode(format, std::nextafter(middle, kInf)), code + 1) << code;
    }
  }
}

TEST(OracleFormats, FloatAgreesWithTheCompiler) {
  for (int n = 0; n < 100000; ++n) {
    const double value = std::ldexp(1.0 + n * 1.2345678901234567e-5, n % 300 - 160);
    const auto narrow = static_cast<float>(value);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &narrow, sizeof bits);
    ASSERT_EQ(encode(Format::kFp32, value), bits) << value;
  }
}

TEST(OracleFormats, Overflow) {
  EXPECT_EQ(encode(Format::kFp16, 65519.0), 0x7bffu);
  EXPECT_EQ(encode(Format::kFp16, 65520.0), 0x7c00u);
  EXPECT_EQ(encode(Format::kE4m3, 449.0), 0x7eu);
  EXPECT_EQ(encode(Format::kE4m3, 1e9, true), 0x7eu);
  EXPECT_EQ(encode(Format::kE4m3, -kInf, true), 0xfeu);
  EXPECT_EQ(encode(Format::kE4m3, 1e9), 0x7fu);
  EXPECT_EQ(encode(Format::kE5m2, 1e9, true), 0x7bu);
  EXPECT_EQ(encode(Format::kE5m2, kInf, true), 0x7bu);
  EXPECT_EQ(encode(Format::kE5m2, kInf), 0x7cu);
  EXPECT_TRUE(std::isnan(decode(Format::kE5m2, encode(Format::kE5m2, kNan, true))));
  EXPECT_EQ(encode(Format::kFp32, 1e300), 0x7f800000u);
  EXPECT_EQ(encode(Format::kE4m3, 0x1p-10), 0u);   // half of the smallest: to even
  EXPECT_EQ(encode(Format::kE4m3, 1.5 * 0x1p-10), 1u);
  EXPECT_EQ(encode(Format::kBf16, -0.0), 0x8000u);
}

TEST(OracleFormats, Ulp) {
  EXPECT_EQ(ulp(Format::kFp16, 1.0), 0x1p-10);
  EXPECT_EQ(ulp(Format::kFp16, 1.99), 0x1p-10);
  EXPECT_EQ(ulp(Format::kFp16, -2.0), 0x1p-9);
  EXPECT_EQ(ulp(Format::kFp16, 0.0), 0x1p-24);
  EXPECT_EQ(ulp(Format::kBf16, 100.0), 0.5);
  EXPECT_EQ(ulp(Format::kFp32, 1.0), 0x1p-23);
}

}  // namespace
}  // namespace tegula::oracle
