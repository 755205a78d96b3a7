// SPDX-License-Identifier: Apache-2.0
// The binary of a kernel: from a pack, the disk cache, or the compiler.
#pragma once

#include <string>

#include "src/core/status.hpp"
#include "src/cuda/jit/digest.hpp"
#include "src/cuda/jit/jit.hpp"
#include "src/cuda/jit/pack.hpp"

namespace tegula::cuda {

enum class Origin { kPack, kDiskCache, kCompiler };

struct Binary {
  std::string cubin;
  Origin origin = Origin::kCompiler;
  Digest cache_key{};  // of the disk cache; unused for kPack
};

struct BinaryWishes {
  bool packs = true;
  bool disk_cache = true;  // false: compiled anew (and stored)
};

// driver_version (13000 = CUDA 13.0): packs that ask for a newer one are passed over.
Status find_binary(const KernelText& text, int driver_version, const BinaryWishes& wishes,
                   Binary& binary);
// The driver has refused it: it must not be found again.
void forget_binary(const Binary& binary);

// The readable packs of pack_paths(), opened at the first call. The others are told to the log.
const std::vector<Pack>& process_packs();

}  // namespace tegula::cuda
