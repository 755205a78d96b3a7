// SPDX-License-Identifier: Apache-2.0
// NVIDIA's run-time compiler: where it may lie, and the one that is taken.
#pragma once

#include <string>
#include <vector>

#include "src/core/status.hpp"

namespace tegula::cuda {

// Our own declarations, as in driver/api.hpp.
using nvrtcProgram = struct _nvrtcProgram*;
enum nvrtcResult : int {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_OUT_OF_MEMORY = 1,
  NVRTC_ERROR_COMPILATION = 6,
};

#define TEGULA_NVRTC_ENTRY_POINTS(F)                                                \
  F(nvrtcResult, nvrtcVersion, (int* major, int* minor))                            \
  F(const char*, nvrtcGetErrorString, (nvrtcResult result))                         \
  F(nvrtcResult, nvrtcCreateProgram,                                                \
    (nvrtcProgram * program, const char* source, const char* name, int num_headers, \
     const char* const* headers, const char* const* include_names))                 \
  F(nvrtcResult, nvrtcDestroyProgram, (nvrtcProgram * program))                     \
  F(nvrtcResult, nvrtcCompileProgram,                                               \
    (nvrtcProgram program, int num_options, const char* const* options))            \
  F(nvrtcResult, nvrtcGetProgramLogSize, (nvrtcProgram program, size_t* size))      \
  F(nvrtcResult, nvrtcGetProgramLog, (nvrtcProgram program, char* log))             \
  F(nvrtcResult, nvrtcGetCUBINSize, (nvrtcProgram program, size_t* size))           \
  F(nvrtcResult, nvrtcGetCUBIN, (nvrtcProgram program, char* cubin))

struct Nvrtc {
#define TEGULA_NVRTC_MEMBER(type, symbol, parameters) type(*symbol) parameters = nullptr;
  TEGULA_NVRTC_ENTRY_POINTS(TEGULA_NVRTC_MEMBER)
#undef TEGULA_NVRTC_MEMBER
  int version = 0;   // 12090 = 12.9
  std::string path;  // absolute
};

// Older ones serialise wgmma (20 to 32 % slower in every cell that was measured).
inline constexpr int kLeastForWgmma = 12090;

// The newest that the driver can load the binaries of (any, where there is no driver), from the
// nvidia-* Python packages, CUDA toolkits and the system; or what $TEGULA_NVRTC names, a file or
// its folder. Fails with TEGULA_UNSUPPORTED and one line of what was looked for.
Status find_nvrtc(const Nvrtc*& nvrtc);

// The one at path, a file or its folder. Opened once, never closed.
Status open_nvrtc(const std::string& path, const Nvrtc*& nvrtc);

// ---- The search, for tests ----------------------------------------------------------------------

struct NvrtcFile {
  std::string path;
  std::string builtins;
  int version = 0;  // told by the name of the builtins library; 12090 = 12.9
};

// Site-packages folders of the loaded libraries (PyTorch's among them), VIRTUAL_ENV, CONDA_PREFIX,
// the user and the system; then toolkits; then the system's library folders. Each once.
std::vector<std::string> nvrtc_folders();
// What lies there, the newest first; of equals the one of the earlier folder.
std::vector<NvrtcFile> nvrtc_files(const std::vector<std::string>& folders);

}  // namespace tegula::cuda
