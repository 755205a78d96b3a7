// SPDX-License-Identifier: Apache-2.0
// From a kernel's text to its binary, past all caches.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/core/status.hpp"
#include "src/cuda/jit/device_text.hpp"
#include "src/cuda/jit/digest.hpp"
#include "src/cuda/jit/jit.hpp"
#include "src/cuda/jit/nvrtc.hpp"

namespace tegula::cuda {

// Names a binary before it exists: everything that it depends on but for the compiler's version
// (the source, the files of device/ that it reaches, the options, the architecture, the entry).
Digest kernel_key(const KernelText& text);

// compile() of jit.hpp with one compiler of several.
Status compile_with(const Nvrtc& nvrtc, const KernelText& text, Compiled& compiled);

// What ptxas says of a kernel in the log of its compilation; -1: nothing.
struct PtxasReport {
  int registers = -1;
  int stack_bytes = -1;  // local memory of a thread, spills included
  int spill_stores = -1;
  int spill_loads = -1;
  int shared_bytes = 0;  // static
};
PtxasReport read_report(std::string_view log);

// ---- Parts, for tests ---------------------------------------------------------------------------

// The embedded files that the source includes, directly or not, each once, in the order of names.
std::vector<const DeviceText*> device_closure(std::string_view source);
std::vector<std::string> compile_options(const KernelText& text);
// The first line of a log that names an error, or its first line; cut to what a status can hold.
std::string first_error(std::string_view log);

}  // namespace tegula::cuda
