// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>

#include "tools/tegula/bench_report.hpp"

namespace tegula::program {
namespace {

const char* long_name(Probe probe) {
  switch (probe) {
    case Probe::kFma: return "fp32 FMA";
    case Probe::kDot: return "bf16 dot";
    case Probe::kAmx: return "AMX bf16";
    case Probe::kDram: return "DRAM read";
    default: return "L3 read";
  }
}

}  // namespace

void add_run_fields(Json& line, const RunFields& fields) {
  if (!fields.commit.empty()) line["commit"] = fields.commit;
  if (!fields.clocks.empty()) line["clocks"] = fields.clocks;
}

std::string clocks_text() {
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(':');
    if (line.rfind("cpu MHz", 0) != 0 || colon == std::string::npos) continue;
    const double mhz = std::strtod(line.c_str() + colon + 1, nullptr);
    if (mhz > 0) return fmt::format("{:.0f} MHz", mhz);
  }
  return "";
}

std::string machine_text(const std::string& brand, const std::string& machine_class, int threads,
                         const LimitReport& limits) {
  std::string text = fmt::format("{}; class {}, {} CPUs", brand, machine_class, threads);
  const char* separator = "; ";
  for (const LimitReading& reading : limits.readings) {
    if (reading.threads != threads) continue;
    text += fmt::format("{}{} {:.1f} {}", separator, long_name(reading.probe), reading.rate / 1e9,
                        is_read(reading.probe) ? "GB/s" : "GFLOP/s");
    separator = ", ";
  }
  return text;
}

Json start_line(const std::string& suite, const std::string& device, const Cell& cell,
                const std::string& implementation, const RunFields& fields) {
  Json line;
  line["suite"] = suite;
  line["cell"] = cell.name;
  line["op"] = op_name(cell.op);
  line["device"] = device;
  line["machine"] = fields.machine;
  line["impl"] = implementation;
  line["dtype"] = tegula::name(cell.kv_dtype);
  line["head_dim"] = cell.head_dim;
  line["head_dim_v"] = cell.value_dim();
  line["heads_q"] = cell.heads_q;
  line["heads_kv"] = cell.heads_kv;
  line["batch"] = cell.batch;
  line["seqlen_q"] = cell.seqlen_q;
  line["seqlen_k"] = cell.seqlen_k;
  line["mask"] = cell.mask_name();
  line["layout"] = cell.layout();
  line["features"] = cell.features();
  return line;
}

Json line_of(const CellResult& result, const RunFields& fields) {
  const Cell& cell = result.cell;
  Json line = start_line("cpu", "cpu", cell, result.implementation, fields);
  line["threads"] = cell.threads;
  if (!cell.residence.empty()) line["residence"] = cell.residence;
  line["rounds"] = result.kept;
  line["rounds_dropped"] = result.dropped;
  line["ms"] = result.seconds * 1e3;
  if (cell.op != Op::kAppend) line["tflops"] = cell.flops() / result.seconds / 1e12;
  if (cell.op != Op::kForward) line["gbps"] = cell.kv_bytes() / result.seconds / 1e9;
  if (result.limit > 0) {
    line["limit"] = result.limit / (cell.op == Op::kForward ? 1e12 : 1e9);
    line["of_limit"] = result.of_limit();
  }
  add_run_fields(line, fields);
  return line;
}

std::vector<Json> lines_of(const LimitReport& limits, const RunFields& fields) {
  std::vector<Json> lines;
  const auto start = [&](const std::string& what, int threads) {
    Json line;
    line["suite"] = "cpu";
    line["cell"] = fmt::format("limit-{}-t{}", what, threads);
    line["op"] = "limit";
    line["device"] = "cpu";
    line["machine"] = fields.machine;
    line["impl"] = what;
    line["threads"] = threads;
    return line;
  };
  for (const LimitReading& reading : limits.readings) {
    Json line = start(probe_name(reading.probe), reading.threads);
    if (is_read(reading.probe)) line["residence"] = probe_name(reading.probe);
    line[is_read(reading.probe) ? "gbps" : "tflops"] =
        reading.rate / (is_read(reading.probe) ? 1e9 : 1e12);
    add_run_fields(line, fields);
    lines.push_back(line);
  }
  for (const auto& [threads, times] : limits.launches) {
    for (const auto& [name, seconds] :
         {std::pair{"launch-hot", times.hot}, std::pair{"launch-cold", times.cold}}) {
      Json line = start(name, threads);
      line["ms"] = seconds * 1e3;
      add_run_fields(line, fields);
      lines.push_back(line);
    }
  }
  return lines;
}

}  // namespace tegula::program
