// SPDX-License-Identifier: Apache-2.0
// The floating-point environment that everything here is written for. The caller's own must change
// no result (contract.md, 10), so that each place that computes with floats, or compares them,
// begins with one of these.
#pragma once

#include <cstdint>

namespace tegula {

// Default rounding, denormals kept, no traps; the caller's settings come back at the end of the
// scope.
class FloatEnvironment {
 public:
  FloatEnvironment() noexcept;
  ~FloatEnvironment() noexcept;
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace tegula
