// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace tegula::program {

// One line for people; main() prints it after "tegula: " and exits with kFailed.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tegula::program
