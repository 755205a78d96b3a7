// SPDX-License-Identifier: Apache-2.0
#include "tests/device/model/fiber.hpp"

#include <sys/mman.h>

#if defined(__x86_64__)
// Saves the callee's registers on the stack, its pointer in *from, and goes on at `to`.
extern "C" void tegula_model_switch(void** from, void* to);
asm(R"(
.text
.type tegula_model_switch, @function
tegula_model_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tegula_model_switch, .-tegula_model_switch
)");
#endif

namespace tegula::model {

char* map_stacks(std::size_t count) {
#if !defined(__x86_64__)
  return nullptr;  // the switch is written for x86-64
#endif
  void* const mapped = mmap(nullptr, count * kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
}

void* start_fiber(char* stack, void (*entry)()) {
  // As the switch leaves a stack: six registers, then where to go on, at 8 modulo 16 there.
  auto* top = reinterpret_cast<void**>(stack + kStackBytes - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int r = 0; r < 6; ++r) *--top = nullptr;
  return top;
}

void switch_fiber([[maybe_unused]] void** from, [[maybe_unused]] void* to) {
#if defined(__x86_64__)
  tegula_model_switch(from, to);
#endif
}

}  // namespace tegula::model
