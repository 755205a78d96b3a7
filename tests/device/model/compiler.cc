// SPDX-License-Identifier: Apache-2.0
// An NVRTC whose binaries run on the model: the host's compiler makes a library of the kernel's
// text, with the model's twins of device/ptx. TEGULA_MODEL_CXX names another compiler.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "src/cuda/jit/nvrtc.hpp"

namespace fs = std::filesystem;

extern char** environ;

namespace tegula::cuda {
struct _nvrtcProgram {
  std::string source;
  std::vector<std::pair<std::string, std::string>> headers;  // name, text
  std::string log, binary;
};
}  // namespace tegula::cuda

using namespace tegula::cuda;

namespace {

// `extern "C" __global__ ... name(const __grid_constant__ ...`
std::string entry_of(const std::string& source) {
  const std::size_t parameters = source.find("(const __grid_constant__");
  if (source.find("__global__") > parameters) return {};
  const std::size_t begin = source.find_last_of(" \n", parameters - 1) + 1;
  return source.substr(begin, parameters - begin);
}

void write_file(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}
std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool run(const std::vector<std::string>& words, const fs::path& log) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  const int failed =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 1;
  return failed == 0 && waitpid(child, &status, 0) == child && status == 0;
}

nvrtcResult compile(_nvrtcProgram& program) {
  std::string folder = (fs::temp_directory_path() / "tegula-model-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return NVRTC_ERROR_OUT_OF_MEMORY;
  const fs::path root = folder;
  for (const auto& [name, text] : program.headers) {
    if (!name.starts_with("device/ptx/")) write_file(root / name, text);
  }
  write_file(root / "kernel.cc", program.source +
                                     "extern \"C\" __attribute__((visibility(\"default\"))) void "
                                     "tegula_model_run(void** parameters) {\n"
                                     "  tegula::model::call(&" +
                                     entry_of(program.source) + ", parameters);\n}\n");
  const char* const chosen = std::getenv("TEGULA_MODEL_CXX");
  const bool done = run({chosen != nullptr ? chosen : "c++",
                         "-std=c++20",
                         "-O1",
                         "-march=x86-64-v3",
                         "-w",
                         "-fPIC",
                         "-shared",
                         "-fno-gnu-unique",
                         "-fno-extern-tls-init",
                         "-I",
                         TEGULA_MODEL_INCLUDE,
                         "-I",
                         root.string(),
                         "-I",
                         TEGULA_MODEL_ROOT,
                         "-include",
                         "model/cuda.hpp",
                         (root / "kernel.cc").string(),
                         "-o",
                         (root / "kernel.so").string()},
                        root / "log");
  program.log = read_file(root / "log");
  if (done) program.binary = read_file(root / "kernel.so");
  std::error_code ignored;
  fs::remove_all(root, ignored);
  return done ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}

}  // namespace

#define MODEL extern "C" __attribute__((visibility("default")))

MODEL nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return NVRTC_SUCCESS;
}
MODEL const char* nvrtcGetErrorString(nvrtcResult) {
  return "the host's compiler failed";
}
MODEL nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*,
                                     int count, const char* const* texts,
                                     const char* const* names) {
  auto* const made = new _nvrtcProgram{source, {}, {}, {}};
  for (int i = 0; i < count; ++i) made->headers.emplace_back(names[i], texts[i]);
  *program = made;
  return NVRTC_SUCCESS;
}
MODEL nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}
MODEL nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int, const char* const*) {
  return compile(*program);
}
MODEL nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
  *size = program->log.size() + 1;
  return NVRTC_SUCCESS;
}
MODEL nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return NVRTC_SUCCESS;
}
MODEL nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  *size = program->binary.size();
  return NVRTC_SUCCESS;
}
MODEL nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
  std::memcpy(cubin, program->binary.data(), program->binary.size());
  return NVRTC_SUCCESS;
}
