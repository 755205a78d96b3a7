// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace tegula::program {
namespace {

bool terminal_attached() {
  const char* kind = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

}  // namespace

Progress::Progress(std::string label, std::int64_t total)
    : label_(std::move(label)), total_(std::max<std::int64_t>(total, 1)), enabled_(terminal_attached()),
      begin_(Clock::now()), last_(begin_) {}

Progress::~Progress() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

void Progress::advance(std::int64_t steps) {
  done_ = std::min(done_ + steps, total_);
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  using std::chrono::duration;
  const double elapsed = duration<double>(now - begin_).count();
  if (elapsed < 1.0 || duration<double>(now - last_).count() < 0.1) return;
  last_ = now;
  drawn_ = true;
  constexpr std::size_t kWidth = 30;
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  const auto filled = static_cast<std::size_t>(share * kWidth);
  const double left = share > 0 ? elapsed / share - elapsed : 0.0;
  fmt::print(stderr, "\r\033[K{} [{}{}] {:3.0f} %, {:.0f} s left", label_, std::string(filled, '#'),
             std::string(kWidth - filled, '.'), share * 100, left);
  std::fflush(stderr);
}

}  // namespace tegula::program
