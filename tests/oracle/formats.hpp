// SPDX-License-Identifier: Apache-2.0
// The oracle's own number formats: fp16, bf16, e4m3 (OCP e4m3fn: no Inf, one NaN) and e5m2.
// Written from the formats' definitions; nothing here is shared with the library under test.
#pragma once

#include <cstdint>

namespace tegula::oracle {

enum class Format { kFp32, kFp16, kBf16, kE4m3, kE5m2 };

int bytes_of(Format format);

// The stored bits as a real number; every value of every format is exact in double.
double decode(Format format, std::uint32_t bits);

// Round to nearest even, once, from double. Overflow: with `saturate` the largest finite value
// (Inf saturates too), else Inf (e4m3: NaN). NaN stays NaN, with the sign kept.
std::uint32_t encode(Format format, double value, bool saturate = false);

// The distance from |value| to the next representable magnitude above it (at least the smallest
// denormal).
double ulp(Format format, double value);

double load(Format format, const void* address);
void store(Format format, void* address, double value, bool saturate = false);

}  // namespace tegula::oracle
