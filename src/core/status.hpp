// SPDX-License-Identifier: Apache-2.0
// Errors inside the library: a status code, and one line of text kept per thread.
#pragma once

#include <tegula/tegula.h>

namespace tegula {

class [[nodiscard]] Status {
 public:
  constexpr Status() = default;
  constexpr explicit Status(tegula_status code) : code_(code) {}
  constexpr bool ok() const { return code_ == TEGULA_OK; }
  constexpr tegula_status code() const { return code_; }

 private:
  tegula_status code_ = TEGULA_OK;
};

// Formats the calling thread's error text (printf style, cut at 511 characters) and returns the
// code as a Status. The text names the argument and shows both values:
// fail(TEGULA_INVALID_ARGUMENT, "k: num_heads_kv %lld ...").
__attribute__((format(printf, 2, 3))) Status fail(tegula_status code, const char* format, ...);

// Why an implementation cannot take a problem; empty: it can.
struct Refusal {
  char text[160] = "";
  explicit operator bool() const { return text[0] != '\0'; }
};
__attribute__((format(printf, 2, 3))) void refuse(Refusal& why, const char* format, ...);

// Clears the calling thread's error text; every entry point of the C ABI begins with it.
void clear_error();
const char* error_text();

#define TEGULA_RETURN_IF_ERROR(expression)                                      \
  do {                                                                          \
    if (::tegula::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

}  // namespace tegula
