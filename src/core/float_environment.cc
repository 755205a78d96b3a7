// SPDX-License-Identifier: Apache-2.0
#include "src/core/float_environment.hpp"

namespace tegula {

#if defined(__x86_64__)
// All exceptions masked, round to nearest, neither flush-to-zero nor denormals-are-zero.
FloatEnvironment::FloatEnvironment() noexcept : saved_(__builtin_ia32_stmxcsr()) {
  __builtin_ia32_ldmxcsr(0x1f80);
}
FloatEnvironment::~FloatEnvironment() noexcept {
  __builtin_ia32_ldmxcsr(static_cast<unsigned>(saved_));
}
#elif defined(__aarch64__)
FloatEnvironment::FloatEnvironment() noexcept {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
}
FloatEnvironment::~FloatEnvironment() noexcept {
  asm volatile("msr fpcr, %0" : : "r"(saved_));
}
#else
#error "The floating-point environment of this architecture is not known here."
#endif

}  // namespace tegula
