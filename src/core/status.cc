// SPDX-License-Identifier: Apache-2.0
#include "src/core/status.hpp"

#include <cstdarg>
#include <cstdio>

namespace tegula {
namespace {
thread_local char text[512];
}  // namespace

Status fail(tegula_status code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return Status(code);
}

void refuse(Refusal& why, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(why.text, sizeof why.text, format, arguments);
  va_end(arguments);
}

void clear_error() { text[0] = '\0'; }
const char* error_text() { return text; }

}  // namespace tegula
