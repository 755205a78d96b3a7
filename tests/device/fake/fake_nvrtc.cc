// SPDX-License-Identifier: Apache-2.0
// An NVRTC whose binaries are the source itself: the fake driver shows them to whoever stands in
// for the kernel.
#include <cstring>
#include <string>

#include "src/cuda/jit/nvrtc.hpp"

namespace tegula::cuda {
struct _nvrtcProgram {
  std::string source;
};
}  // namespace tegula::cuda

using namespace tegula::cuda;

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return NVRTC_SUCCESS;
}
FAKE const char* nvrtcGetErrorString(nvrtcResult) {
  return "NVRTC_ERROR_FAKE";
}
FAKE nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int,
                                    const char* const*, const char* const*) {
  *program = new _nvrtcProgram{source};
  return NVRTC_SUCCESS;
}
FAKE nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}
FAKE nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) {
  return NVRTC_SUCCESS;
}
FAKE nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t* size) {
  *size = 1;
  return NVRTC_SUCCESS;
}
FAKE nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* log) {
  *log = '\0';
  return NVRTC_SUCCESS;
}
FAKE nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  *size = program->source.size() + 1;
  return NVRTC_SUCCESS;
}
FAKE nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
  std::memcpy(cubin, program->source.c_str(), program->source.size() + 1);
  return NVRTC_SUCCESS;
}
