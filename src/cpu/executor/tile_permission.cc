// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/executor/tile_permission.hpp"

#include <atomic>
#include <cstdint>

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tegula::cpu {
namespace {

enum class Answer : uint8_t { kUnasked, kYes, kNo };
// No function-local static: a fork while another thread holds its guard would hang the child.
constinit std::atomic<Answer> the_answer{Answer::kUnasked};

bool ask() noexcept {
#if defined(__linux__) && defined(__x86_64__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

bool tiles_permitted() noexcept {
  Answer answer = the_answer.load(std::memory_order_relaxed);
  if (answer == Answer::kUnasked) {
    answer = ask() ? Answer::kYes : Answer::kNo;
    the_answer.store(answer, std::memory_order_relaxed);
  }
  return answer == Answer::kYes;
}

}  // namespace tegula::cpu
