// SPDX-License-Identifier: Apache-2.0
// tegula pack: kernels compiled ahead of time into one file, for machines without NVRTC and for the
// first second of a process.
#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "src/core/status.hpp"
#include "src/cuda/jit/compile.hpp"
#include "src/cuda/jit/pack.hpp"
#include "tests/cases/cases.hpp"
#include "tools/tegula/command.hpp"
#include "tools/tegula/pack_kernels.hpp"
#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

struct Options {
  std::string output, nvrtc, keep, only;
  std::vector<std::string> tables;
  bool list = false, time = false;
  int threads = 0;
};

struct Result {
  cuda::Compiled compiled;
  std::string failure;  // empty: compiled
  cuda::PtxasReport report;
};

std::vector<Result> compile_all(const cuda::Nvrtc& nvrtc,
                                const std::vector<cuda::KernelText>& texts, int num_threads) {
  std::vector<Result> results(texts.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < texts.size(); i = next.fetch_add(1)) {
      const Status status = cuda::compile_with(nvrtc, texts[i], results[i].compiled);
      if (!status.ok()) results[i].failure = error_text();
      results[i].report = cuda::read_report(results[i].compiled.log);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return results;
}

int shared_bytes(const cuda::KernelText& text, const Result& result) {
  return text.smem_bytes + result.report.shared_bytes;
}

// "forward bf16 64/64 ..." -> "forward_bf16_64_64_..."
std::string file_name(std::string name) {
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

void keep_files(const std::string& folder, const std::vector<cuda::KernelText>& texts,
                const std::vector<Result>& results) {
  std::filesystem::create_directories(folder);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string path = folder + "/" + file_name(texts[i].name);
    std::ofstream(path + ".cubin", std::ios::binary) << results[i].compiled.cubin;
    std::ofstream(path + ".log") << results[i].compiled.log;
    std::ofstream(path + ".cu") << texts[i].source;
    if (!(std::ofstream(path + ".name") << texts[i].name << std::endl)) {
      throw Failure(fmt::format("--keep: {} cannot be written", path));
    }
  }
}

void write(const std::string& path, const cuda::Nvrtc& nvrtc,
           const std::vector<cuda::KernelText>& texts, std::vector<Result>& results) {
  std::vector<cuda::PackedKernel> kernels(texts.size());
  std::vector<std::string> binaries(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    cuda::PackedKernel& kernel = kernels[i];
    kernel.key = cuda::kernel_key(texts[i]);
    kernel.arch = texts[i].arch;
    kernel.registers = results[i].report.registers;
    kernel.local_bytes = results[i].report.stack_bytes;
    kernel.shared_bytes = shared_bytes(texts[i], results[i]);
    std::strncpy(kernel.name, texts[i].name.c_str(), sizeof kernel.name - 1);
    binaries[i] = std::move(results[i].compiled.cubin);
  }
  if (!cuda::write_pack(path, nvrtc.version, std::move(kernels), binaries).ok())
    throw Failure(error_text());
}

void print(const cuda::Nvrtc& nvrtc, const std::vector<cuda::KernelText>& texts,
           const std::vector<Result>& results) {
  Table table({{"kernel", Table::Align::kLeft},
               {"registers"},
               {"local"},
               {"spills"},
               {"shared"},
               {"binary"},
               {"seconds"}});
  double slowest = 0, sum = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Result& result = results[i];
    table.add({texts[i].name, std::to_string(result.report.registers),
               std::to_string(result.report.stack_bytes),
               std::to_string(result.report.spill_stores + result.report.spill_loads),
               std::to_string(shared_bytes(texts[i], result)),
               bytes_text(double(result.compiled.cubin.size())),
               fmt::format("{:.2f}", result.compiled.seconds)});
    slowest = std::max(slowest, result.compiled.seconds);
    sum += result.compiled.seconds;
  }
  fmt::print("{}\n{} kernels by NVRTC {} ({}): {:.1f} s in all, the slowest {:.2f} s\n",
             table.text(), texts.size(), cuda_version_text(nvrtc.version), nvrtc.path, sum,
             slowest);
}

Json document(const cuda::Nvrtc& nvrtc, const std::vector<cuda::KernelText>& texts,
              const std::vector<Result>& results) {
  Json json;
  json["nvrtc"] = {{"path", nvrtc.path}, {"version", cuda_version_text(nvrtc.version)}};
  json["kernels"] = Json::array();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Result& result = results[i];
    json["kernels"].push_back({{"name", texts[i].name},
                               {"file", file_name(texts[i].name)},
                               {"wgmma", texts[i].uses_wgmma},
                               {"registers", result.report.registers},
                               {"local_bytes", result.report.stack_bytes},
                               {"spill_stores", result.report.spill_stores},
                               {"spill_loads", result.report.spill_loads},
                               {"shared_bytes", shared_bytes(texts[i], result)},
                               {"binary_bytes", result.compiled.cubin.size()},
                               {"seconds", result.compiled.seconds}});
  }
  return json;
}

void pack(Session& session, const Options& options) {
  std::vector<std::string> tables = options.tables;
  if (tables.empty()) tables.push_back(cases::default_folder() + "/table");
  std::vector<cuda::KernelText> texts = packed_kernels(tables);
  std::erase_if(texts, [&](const cuda::KernelText& text) {
    return text.name.find(options.only) == std::string::npos;
  });
  if (options.list) {
    if (session.json) {
      Json names = Json::array();
      for (const cuda::KernelText& text : texts) names.push_back(text.name);
      return print_json({{"kernels", names}});
    }
    for (const cuda::KernelText& text : texts) fmt::print("{}\n", text.name);
    return;
  }
  if (texts.empty()) throw Failure("no kernel to compile");
  const cuda::Nvrtc* nvrtc = nullptr;
  const Status found =
      options.nvrtc.empty() ? cuda::find_nvrtc(nvrtc) : cuda::open_nvrtc(options.nvrtc, nvrtc);
  if (!found.ok()) throw Failure(error_text());
  const int cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<Result> results =
      compile_all(*nvrtc, texts, options.threads > 0 ? options.threads : cpus);
  if (!options.keep.empty()) keep_files(options.keep, texts, results);
  std::size_t failed = 0;
  std::string first;
  for (const Result& result : results) {
    if (result.failure.empty()) continue;
    if (failed++ == 0) first = result.failure;
  }
  if (failed > 0) {
    throw Failure(
        fmt::format("{} of {} kernels do not compile, the first: {}", failed, texts.size(), first));
  }
  if (session.json) {
    print_json(document(*nvrtc, texts, results));
  } else if (options.time || options.output.empty()) {
    print(*nvrtc, texts, results);
  }
  if (!options.output.empty()) {
    write(options.output, *nvrtc, texts, results);
    if (!session.json) {
      fmt::print("{}: {} kernels, for drivers of CUDA {} and newer\n", options.output, texts.size(),
                 cuda_version_text(cuda::least_driver_of(nvrtc->version)));
    }
  }
}

}  // namespace

void add_pack(CLI::App& program, Session& session) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = add_command(
      program, session, "pack",
      "Compile the CUDA kernels of the case table ahead of time into one file, which the\n"
      "library finds as *.tegpack beside itself, in ../share/tegula, or by TEGULA_PACK.");
  command->add_option("-o,--output", o.output, "The file to write");
  command->add_option("--nvrtc", o.nvrtc,
                      "The compiler: libnvrtc.so or its folder (default: as the library finds it)");
  command->add_option("--table", o.tables,
                      "Case tables, files or folders (default: the committed one)");
  command->add_option("--only", o.only, "Kernels whose name holds this text");
  command->add_flag("--list", o.list, "Print the kernels' names and compile nothing");
  command->add_flag("--time", o.time, "Print compile times, registers and memory of each kernel");
  command->add_option("--keep", o.keep, "Write cubins, logs and sources into this folder");
  command->add_option("--threads", o.threads, "Compilers at once (default: one a CPU)")
      ->check(CLI::Range(0, 1024));
  command->callback([&session, options] { pack(session, *options); });
}

}  // namespace tegula::program
