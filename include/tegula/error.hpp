// SPDX-License-Identifier: Apache-2.0
// The one exception type of the C++ layer.
#pragma once

#include <tegula/tegula.h>

#include <stdexcept>
#include <string>

namespace tegula {
inline namespace v1 {

// A call that was refused or failed; its outputs are untouched. what() names the argument and shows
// both values: "k: num_heads_kv 3 does not divide q: num_heads_q 16".
class Error : public std::runtime_error {
 public:
  Error(tegula_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}

  // TEGULA_INVALID_ARGUMENT, TEGULA_WRONG_TYPE, TEGULA_UNSUPPORTED, ...
  tegula_status status() const noexcept { return status_; }

 private:
  tegula_status status_;
};

// Throws Error with the calling thread's last error text unless status is TEGULA_OK.
inline void check(tegula_status status) {
  if (status != TEGULA_OK) throw Error(status, tegula_last_error());
}

}  // namespace v1
}  // namespace tegula
