// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/jit/compile.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>

namespace tegula::cuda {
namespace {

std::string_view next_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

// `#include "name"` -> name; empty for any other line.
std::string_view included(std::string_view line) {
  const auto skip_blanks = [&line] {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  };
  skip_blanks();
  if (!line.starts_with('#')) return {};
  line.remove_prefix(1);
  skip_blanks();
  if (!line.starts_with("include")) return {};
  line.remove_prefix(7);
  skip_blanks();
  if (!line.starts_with('"')) return {};
  line.remove_prefix(1);
  const size_t end = line.find('"');
  return end == std::string_view::npos ? std::string_view{} : line.substr(0, end);
}

void reach(std::string_view source, std::vector<const DeviceText*>& reached) {
  while (!source.empty()) {
    const std::string_view name = included(next_line(source));
    const DeviceText* const file = name.empty() ? nullptr : find_device_text(name);
    if (file == nullptr || std::find(reached.begin(), reached.end(), file) != reached.end())
      continue;
    reached.push_back(file);
    reach({file->text, file->size}, reached);
  }
}

class Program {
 public:
  Program(const Nvrtc& nvrtc, const KernelText& text) : nvrtc_(nvrtc) {
    std::vector<const char*> headers, names;
    for (const DeviceText* file : device_closure(text.source)) {
      headers.push_back(file->text);
      names.push_back(file->name);
    }
    result_ =
        nvrtc.nvrtcCreateProgram(&program_, text.source.c_str(), (text.name + ".cu").c_str(),
                                 static_cast<int>(names.size()), headers.data(), names.data());
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (program_ != nullptr) nvrtc_.nvrtcDestroyProgram(&program_);
  }

  nvrtcResult compile(const std::vector<std::string>& options) {
    if (result_ != NVRTC_SUCCESS) return result_;
    std::vector<const char*> words;
    for (const std::string& option : options) words.push_back(option.c_str());
    return nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(words.size()), words.data());
  }
  std::string log() const {
    std::string text = read(nvrtc_.nvrtcGetProgramLogSize, nvrtc_.nvrtcGetProgramLog);
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }
  std::string cubin() const { return read(nvrtc_.nvrtcGetCUBINSize, nvrtc_.nvrtcGetCUBIN); }

 private:
  template <class Size, class Text>
  std::string read(Size size_of, Text text_of) const {
    size_t size = 0;
    if (program_ == nullptr || size_of(program_, &size) != NVRTC_SUCCESS) return {};
    std::string text(size, '\0');
    return text_of(program_, text.data()) == NVRTC_SUCCESS ? text : std::string();
  }

  const Nvrtc& nvrtc_;
  nvrtcProgram program_ = nullptr;
  nvrtcResult result_;
};

}  // namespace

std::vector<const DeviceText*> device_closure(std::string_view source) {
  std::vector<const DeviceText*> reached;
  reach(source, reached);
  std::sort(reached.begin(), reached.end(), [](const DeviceText* a, const DeviceText* b) {
    return std::string_view(a->name) < b->name;
  });
  return reached;
}

// The source's folder is no include path: with it, a file of the working directory could be taken.
// -v brings registers and spills into the log.
std::vector<std::string> compile_options(const KernelText& text) {
  std::string arch = std::to_string(text.arch);
  if (text.arch >= 90) arch += 'a';
  return {"--std=c++20", "--gpu-architecture=sm_" + arch, "--no-source-include",
          "--ptxas-options=-v"};
}

std::string first_error(std::string_view log) {
  constexpr size_t kMost = 300;
  const std::string_view first = log.substr(0, std::min(log.find('\n'), log.size()));
  while (!log.empty()) {
    const std::string_view line = next_line(log);
    if (line.find("error") != std::string_view::npos ||
        line.find("serialized") != std::string_view::npos) {
      return std::string(line.substr(0, kMost));
    }
  }
  return std::string(first.substr(0, kMost));
}

PtxasReport read_report(std::string_view log) {
  PtxasReport report;
  const auto before = [](std::string_view line, std::string_view phrase, int& value) {
    size_t end = line.find(phrase);
    if (end == std::string_view::npos) return;
    size_t begin = end;
    while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
    std::from_chars(line.data() + begin, line.data() + end, value);
  };
  while (!log.empty()) {
    const std::string_view line = next_line(log);
    before(line, " bytes stack frame", report.stack_bytes);
    before(line, " bytes spill stores", report.spill_stores);
    before(line, " bytes spill loads", report.spill_loads);
    before(line, " registers", report.registers);
    before(line, " bytes smem", report.shared_bytes);
  }
  return report;
}

Digest kernel_key(const KernelText& text) {
  Sha256 hash;
  hash.add_field("tegula kernel 1");
  for (const std::string& option : compile_options(text)) hash.add_field(option);
  hash.add_field(text.entry);
  hash.add_field(text.source);
  for (const DeviceText* file : device_closure(text.source)) {
    hash.add_field(file->name);
    hash.add_field({file->text, file->size});
  }
  return hash.finish();
}

Status compile_with(const Nvrtc& nvrtc, const KernelText& text, Compiled& compiled) {
  if (text.uses_wgmma && nvrtc.version < kLeastForWgmma) {
    return fail(
        TEGULA_UNSUPPORTED,
        "%.100s: NVRTC %d.%d (%.120s) serialises wgmma; use a pack of kernels (TEGULA_PACK), or "
        "pip install nvidia-cuda-nvrtc-cu12==12.9.86 (nvidia-cuda-nvrtc for drivers from 580)",
        text.name.c_str(), nvrtc.version / 1000, nvrtc.version % 1000 / 10, nvrtc.path.c_str());
  }
  const auto begin = std::chrono::steady_clock::now();
  Program program(nvrtc, text);
  std::vector<std::string> options = compile_options(text);
  // The compiler has a disk cache of its own since 12.9; it changes no binary.
  if (nvrtc.version >= 12090) options.push_back("--no-cache");
  const nvrtcResult result = program.compile(options);
  compiled.log = program.log();
  compiled.cubin = result == NVRTC_SUCCESS ? program.cubin() : std::string();
  compiled.compiler = nvrtc.version;
  compiled.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (result == NVRTC_ERROR_OUT_OF_MEMORY) {
    return fail(TEGULA_OUT_OF_MEMORY, "%.100s: the compiler has no memory left", text.name.c_str());
  }
  if (result != NVRTC_SUCCESS || compiled.cubin.empty()) {
    const std::string why = first_error(compiled.log);
    return fail(TEGULA_DEVICE_ERROR, "%.100s: NVRTC %d.%d: %s", text.name.c_str(),
                nvrtc.version / 1000, nvrtc.version % 1000 / 10,
                why.empty() ? nvrtc.nvrtcGetErrorString(result) : why.c_str());
  }
  // C7510 to C7515: right results at three quarters of the speed, which nobody would see.
  if (text.uses_wgmma && compiled.log.find("serialized") != std::string::npos) {
    return fail(TEGULA_DEVICE_ERROR, "%.100s: NVRTC %d.%d: %s", text.name.c_str(),
                nvrtc.version / 1000, nvrtc.version % 1000 / 10, first_error(compiled.log).c_str());
  }
  return {};
}

Status compile(const KernelText& text, Compiled& compiled) {
  const Nvrtc* nvrtc = nullptr;
  TEGULA_RETURN_IF_ERROR(find_nvrtc(nvrtc));
  return compile_with(*nvrtc, text, compiled);
}

}  // namespace tegula::cuda
