// SPDX-License-Identifier: Apache-2.0
#include "src/core/log.hpp"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <mutex>

namespace tegula {
namespace {

// The mutex keeps callback and context a pair; the callback itself runs outside it, so it may set
// another one.
constinit std::mutex mutex;
constinit tegula_log_fn current_callback = nullptr;
constinit void* current_context = nullptr;
constinit std::atomic<bool> wanted{false};

}  // namespace

void set_log_callback(tegula_log_fn callback, void* context) {
  const std::lock_guard lock(mutex);
  current_callback = callback;
  current_context = context;
  wanted.store(callback != nullptr, std::memory_order_relaxed);
}

void log_message(const char* format, ...) {
  if (!wanted.load(std::memory_order_relaxed)) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  tegula_log_fn callback;
  void* context;
  {
    const std::lock_guard lock(mutex);
    callback = current_callback;
    context = current_context;
  }
  if (callback != nullptr) callback(context, text);
}

}  // namespace tegula
