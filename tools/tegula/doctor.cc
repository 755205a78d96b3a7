// SPDX-License-Identifier: Apache-2.0
// tegula doctor: what the library found on this machine, and what it makes of it.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/cpu/executor/topology.hpp"
#include "tools/tegula/command.hpp"
#include "tools/tegula/doctor_cuda.hpp"
#include "tools/tegula/library.hpp"
#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

namespace fs = std::filesystem;

struct IsaState {
  std::string name;
  bool built = false, runs = false;
  std::string why_not;  // when it does not run
};

std::string first_line(const fs::path& path) {
  std::ifstream stream(path);
  std::string line;
  std::getline(stream, line);
  return line;
}

// "MemAvailable:   123 kB" -> bytes; 0 if the field is absent.
std::int64_t meminfo(const std::string& field) {
  std::ifstream stream("/proc/meminfo");
  std::string line;
  while (std::getline(stream, line)) {
    if (line.rfind(field + ":", 0) != 0) continue;
    std::istringstream words(line.substr(field.size() + 1));
    std::int64_t value = 0;
    std::string unit;
    words >> value >> unit;
    return unit == "kB" ? value * 1024 : value;
  }
  return 0;
}

// "always [madvise] never" -> "madvise"; "unknown" if the system does not say.
std::string transparent_huge_pages() {
  const std::string line = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::size_t begin = line.find('['), end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "unknown";
  return line.substr(begin + 1, end - begin - 1);
}

std::string missing_features(tegula_isa isa, const cpu::CpuInfo& info) {
#if defined(__x86_64__)
  const cpu::X86Features& x = info.x86;
  std::vector<const char*> missing;
  const auto need = [&](bool has, const char* name) {
    if (!has) missing.push_back(name);
  };
  need(x.avx2, "avx2");
  need(x.fma, "fma");
  need(x.f16c, "f16c");
  need(x.os_avx, "the system's support for avx");
  if (isa >= TEGULA_ISA_AVX512) {
    need(x.avx512f, "avx512f");
    need(x.avx512bw, "avx512bw");
    need(x.avx512dq, "avx512dq");
    need(x.avx512vl, "avx512vl");
    need(x.os_avx512, "the system's support for avx512");
  }
  if (isa >= TEGULA_ISA_AVX512BF16) {
    need(x.avx512_bf16, "avx512_bf16");
    need(x.avx512_vbmi, "avx512_vbmi");
    need(x.avx512_vnni, "avx512_vnni");
  }
  if (isa >= TEGULA_ISA_AMX) {
    need(x.amx_tile, "amx_tile");
    need(x.amx_bf16, "amx_bf16");
    need(x.os_amx, "the system's support for amx");
    if (missing.empty()) return "the system refuses the state of AMX tiles to this process";
  }
  if (!missing.empty()) return fmt::format("the CPU lacks {}", fmt::join(missing, ", "));
#else
  (void)isa;
  (void)info;
#endif
  return "not on this kind of CPU";
}

std::vector<IsaState> isa_states(const cpu::CpuInfo& info) {
  std::vector<IsaState> states;
  for (int isa = TEGULA_ISA_SCALAR; isa <= TEGULA_ISA_AMX_MODEL; ++isa) {
    IsaState state;
    state.name = tegula_isa_name(isa);
    const std::int64_t bits = capability("isa." + state.name);
    state.built = (bits & 1) != 0;
    state.runs = bits == 3;
    if (!state.built) {
      state.why_not = "not in this build";
    } else if (!state.runs) {
      state.why_not = missing_features(static_cast<tegula_isa>(isa), info);
    }
    states.push_back(state);
  }
  return states;
}

struct Choice {
  std::string types, implementation, isa;
};

// What a usual problem of each type is given to: planned, not guessed.
std::vector<Choice> choices() {
  struct Types {
    const char* text;
    Dtype q, kv;
  };
  constexpr Types kTypes[] = {{"fp32", Dtype::kF32, Dtype::kF32},
                              {"fp16", Dtype::kF16, Dtype::kF16},
                              {"bf16", Dtype::kBf16, Dtype::kBf16},
                              {"bf16 on an e4m3 cache", Dtype::kBf16, Dtype::kE4m3}};
  std::vector<Choice> chosen;
  for (const Types& types : kTypes) {
    Problem described;
    tegula_problem& problem = described.c();
    problem.q_dtype = static_cast<std::int32_t>(types.q);
    problem.kv_dtype = static_cast<std::int32_t>(types.kv);
    problem.batch = 1;
    problem.seqlen_q = problem.seqlen_k = 1024;
    problem.num_heads_q = 8;
    problem.num_heads_kv = 2;
    problem.head_dim = problem.head_dim_v = 128;
    problem.causal = 1;
    const Plan plan(described);
    const tegula_plan_info info = plan.info();
    chosen.push_back({types.text, info.implementation, tegula_isa_name(info.isa)});
  }
  return chosen;
}

struct Gpu {
  std::vector<std::string> names;
  std::string driver;
};

// Only what the driver shows in /proc: nothing is loaded.
Gpu find_gpus() {
  Gpu gpu;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    std::ifstream stream(entry.path() / "information");
    std::string line, name = entry.path().filename().string();
    while (std::getline(stream, line)) {
      if (line.rfind("Model:", 0) == 0) name = line.substr(line.find_first_not_of(" \t", 6));
    }
    gpu.names.push_back(name);
  }
  gpu.driver = first_line("/proc/driver/nvidia/version");
  return gpu;
}

std::string gpu_text(const Gpu& gpu) {
  const std::string build = capability("cuda") != 0 ? "the CUDA back end is in this build"
                                                    : "the CUDA back end is not in this build";
  if (gpu.names.empty()) return fmt::format("none found (no NVIDIA driver loaded); {}", build);
  return fmt::format("{}; {}", fmt::join(gpu.names, ", "), build);
}

std::string cache_text(const cpu::CacheSizes& caches) {
  std::string text = fmt::format("L1d {}, L2 {}", bytes_text(static_cast<double>(caches.l1d_bytes)),
                                 bytes_text(static_cast<double>(caches.l2_bytes)));
  if (caches.l3_bytes > 0) {
    text += fmt::format(", L3 {}", bytes_text(static_cast<double>(caches.l3_bytes)));
    if (caches.l3_cpus > 0) text += fmt::format(" for {} CPUs", caches.l3_cpus);
  }
  if (caches.source == cpu::CacheSource::kDefault) text += " (assumed: the system does not tell)";
  return text;
}

std::string cpus_text(const cpu::CpuInfo& info) {
  std::string text = fmt::format("{} usable of {} online", info.usable_cpus, info.online_cpus);
  text += fmt::format(" ({} cores; affinity {}", info.usable_cores,
                      info.affinity.count > 0 ? std::to_string(info.affinity.count) : "unknown");
  text += info.quota_cpus > 0 ? fmt::format(", quota {})", info.quota_cpus) : ", no quota)";
  return text;
}

void doctor(Session& session) {
  const cpu::CpuInfo& info = cpu::cpu_info();
  const std::vector<IsaState> isas = isa_states(info);
  const std::vector<Choice> chosen = choices();
  const Gpu gpu = find_gpus();
  const CudaFindings cuda = find_cuda();
  const auto total = static_cast<double>(meminfo("MemTotal"));
  const auto available = static_cast<double>(meminfo("MemAvailable"));
  const std::int64_t huge_pages = meminfo("HugePages_Total");
  std::vector<std::string> not_run;
  for (const IsaState& isa : isas) {
    if (!isa.runs) not_run.push_back(isa.name);
  }
  if (session.json) {
    Json json;
    json["version"] = version_text();
    json["abi"] = tegula_abi_version();
    json["cpu"] = {{"brand", info.brand},           {"vendor", info.vendor},
                   {"family", info.family},         {"model", info.model},
                   {"stepping", info.stepping},     {"online_cpus", info.online_cpus},
                   {"usable_cpus", info.usable_cpus}, {"usable_cores", info.usable_cores},
                   {"affinity_cpus", info.affinity.count}, {"quota_cpus", info.quota_cpus}};
    json["threads"] = capability("num_workers");
    json["caches"] = {{"l1d", info.caches.l1d_bytes}, {"l2", info.caches.l2_bytes},
                      {"l3", info.caches.l3_bytes}, {"l3_cpus", info.caches.l3_cpus}};
    for (const IsaState& isa : isas) {
      json["isa"].push_back({{"name", isa.name}, {"built", isa.built}, {"runs", isa.runs}});
      if (!isa.why_not.empty()) json["isa"].back()["why_not"] = isa.why_not;
    }
    for (const Choice& choice : chosen) {
      json["chosen"].push_back(
          {{"types", choice.types}, {"implementation", choice.implementation}, {"isa", choice.isa}});
    }
    json["not_verified_here"] = not_run;
    json["memory"] = {{"total", total}, {"available", available}};
    json["huge_pages"] = {{"transparent", transparent_huge_pages()}, {"reserved", huge_pages}};
    json["gpu"] = {{"found", gpu.names}, {"driver", gpu.driver}, {"cuda_back_end", capability("cuda") != 0}};
    json["cuda"] = cuda.json;
    print_json(json);
    return;
  }
  Table facts({{"", Table::Align::kLeft}, {"", Table::Align::kLeft}});
  facts.add({"tegula", fmt::format("{} (ABI {})", version_text(), tegula_abi_version())});
  facts.add({"CPU", fmt::format("{} ({} family {}, model {}, stepping {})", info.brand, info.vendor, info.family,
                                info.model, info.stepping)});
  facts.add({"CPUs", cpus_text(info)});
  facts.add({"threads", fmt::format("{} in the library's pool", capability("num_workers"))});
  facts.add({"caches", cache_text(info.caches)});
  facts.add({"memory", fmt::format("{}, {} available", bytes_text(total), bytes_text(available))});
  facts.add({"huge pages", fmt::format("transparent: {}, reserved: {}", transparent_huge_pages(), huge_pages)});
  facts.add({"GPU", gpu_text(gpu)});
  for (const auto& [what, state] : cuda.lines) facts.add({what, state});
  fmt::print("{}\n", facts.text());

  Table table({{"instruction set", Table::Align::kLeft}, {"built", Table::Align::kLeft},
               {"runs here", Table::Align::kLeft}, {"", Table::Align::kLeft}});
  for (const IsaState& isa : isas) {
    table.add({isa.name, isa.built ? "yes" : "no", isa.runs ? "yes" : "no", isa.why_not});
  }
  fmt::print("{}\n", table.text());

  Table plans({{"types", Table::Align::kLeft}, {"chosen", Table::Align::kLeft},
               {"instruction set", Table::Align::kLeft}});
  for (const Choice& choice : chosen) plans.add({choice.types, choice.implementation, choice.isa});
  fmt::print("{}\n", plans.text());
  if (not_run.empty()) {
    fmt::print("tegula verify can run every path of this build here.\n");
  } else {
    fmt::print("tegula verify cannot run here: {}.\n", fmt::join(not_run, ", "));
  }
}

}  // namespace

void add_doctor(CLI::App& program, Session& session) {
  CLI::App* command = add_command(program, session, "doctor",
                                  "Show what was found: CPU, instruction sets, caches, memory, GPU.");
  command->callback([&session] { doctor(session); });
}

}  // namespace tegula::program
