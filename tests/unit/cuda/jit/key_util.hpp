// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/cuda/jit/digest.hpp"

namespace tegula::cuda {

// A kernel's key, another for each number.
inline Digest key_of(int number) {
  Sha256 hash;
  hash.add(&number, sizeof number);
  return hash.finish();
}

}  // namespace tegula::cuda
