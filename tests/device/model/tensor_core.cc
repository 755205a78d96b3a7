// SPDX-License-Identifier: Apache-2.0
#include "tests/device/model/tensor_core.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tegula::model {
namespace {

float value_of(std::uint16_t bits, bool bf16) {
  if (bf16) {
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  const int exponent = bits >> 10 & 31;
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  const float fraction = static_cast<float>(bits & 1023);
  if (exponent == 31) return fraction != 0 ? std::nanf("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

// Fields of a matrix descriptor, in bytes (PTX ISA, "Matrix descriptor format"); 128-byte swizzle.
struct Matrix {
  unsigned start, leading, stride;
  bool swizzled;

  explicit Matrix(std::uint64_t descriptor)
      : start(static_cast<unsigned>(descriptor & 0x3fff) << 4),
        leading(static_cast<unsigned>(descriptor >> 16 & 0x3fff) << 4),
        stride(static_cast<unsigned>(descriptor >> 32 & 0x3fff) << 4),
        swizzled(descriptor >> 62 == 1) {}

  // Rows of 64 elements along k, groups of 8 rows apart by `stride`.
  unsigned k_major(unsigned row, unsigned k) const {
    return swizzle(start + row / 8 * stride + row % 8 * 128 + k * 2);
  }
  // Rows of 64 elements along the other side, `leading` apart; groups of 8 k apart by `stride`.
  unsigned mn_major(unsigned column, unsigned k) const {
    return swizzle(start + column / 64 * leading + k / 8 * stride + k % 8 * 128 + column % 64 * 2);
  }
  static unsigned swizzle(unsigned address) { return address ^ (address >> 7 & 7) << 4; }
};

}  // namespace

void WgmmaThread::collect(std::size_t done) {
  std::erase_if(accumulators_, [done](const std::unique_ptr<Accumulator>& acc) {
    if (acc->last > done) return false;
    std::memcpy(acc->home, acc->values, static_cast<std::size_t>(acc->count) * sizeof(float));
    return true;
  });
}

const char* WarpgroupQueue::issue(WgmmaThread& thread, const Wgmma& operation, unsigned lane) {
  const std::size_t index = thread.issued_++;
  if (index < done_) return "wgmma: a thread issues what its warpgroup has done";
  if (index - done_ == operations_.size()) {
    operations_.emplace_back();
    operations_.back().shape = operation;
  }
  Operation& joined = operations_[index - done_];
  const Wgmma& shape = joined.shape;
  if (shape.n != operation.n || shape.a != operation.a || shape.b != operation.b ||
      shape.bf16 != operation.bf16 || shape.transpose_b != operation.transpose_b ||
      shape.accumulate != operation.accumulate) {
    return "wgmma: threads of a warpgroup with different operands";
  }
  const auto& in_use = thread.accumulators_;
  const auto known = std::find_if(in_use.begin(), in_use.end(),
                                  [&](const auto& acc) { return acc->home == operation.d; });
  Accumulator* acc = known != in_use.end() ? known->get() : nullptr;
  if (acc == nullptr) {
    acc = thread.accumulators_.emplace_back(std::make_unique<Accumulator>()).get();
    acc->home = operation.d;
    acc->count = operation.n / 2;
    std::memcpy(acc->values, operation.d, static_cast<std::size_t>(acc->count) * sizeof(float));
    std::fill_n(operation.d, acc->count, std::nanf(""));
  }
  if (acc->count != operation.n / 2) return "wgmma: one accumulator with two shapes";
  acc->last = index + 1;
  joined.accumulators[lane] = acc;
  joined.a_registers[lane] = operation.a_registers;
  ++joined.joined;
  return nullptr;
}

bool WarpgroupQueue::run(const Address& address) {
  if (operations_.empty() || operations_.front().joined < 128) return false;
  const Operation& operation = operations_.front();
  const Wgmma& shape = operation.shape;
  const auto n = static_cast<unsigned>(shape.n);
  const auto load = [&](unsigned at) {
    std::uint16_t bits = 0x7fff;  // outside: NaN
    const char* const from = address(at);
    if (from != nullptr) std::memcpy(&bits, from, sizeof bits);
    return value_of(bits, shape.bf16);
  };
  static float a[64][16], b[16][256], d[64][256];
  const Matrix left(shape.a), right(shape.b);
  for (unsigned row = 0; row < 64; ++row) {
    for (unsigned k = 0; k < 16; ++k) {
      if (shape.a_registers == nullptr) {
        a[row][k] = load(left.k_major(row, k));
        continue;
      }
      // PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16", A.
      const unsigned thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
      const unsigned word = operation.a_registers[thread][k / 8 * 2 + row % 16 / 8];
      a[row][k] = value_of(static_cast<std::uint16_t>(k % 2 == 0 ? word : word >> 16), shape.bf16);
    }
  }
  for (unsigned k = 0; k < 16; ++k) {
    for (unsigned column = 0; column < n; ++column) {
      b[k][column] = load(shape.transpose_b ? right.mn_major(column, k) : right.k_major(column, k));
    }
  }
  const auto element = [&](unsigned row, unsigned column) -> float& {
    const unsigned thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
    return operation.accumulators[thread]->values[column / 8 * 4 + row % 16 / 8 * 2 + column % 2];
  };
  for (unsigned row = 0; row < 64; ++row) {
    for (unsigned column = 0; column < n; ++column) {
      d[row][column] = shape.accumulate ? element(row, column) : 0.0f;
    }
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned column = 0; column < n; ++column) d[row][column] += a[row][k] * b[k][column];
    }
    for (unsigned column = 0; column < n; ++column) element(row, column) = d[row][column];
  }
  operations_.pop_front();
  ++done_;
  return true;
}

}  // namespace tegula::model
