// SPDX-License-Identifier: Apache-2.0
// tegula bench --suite h200-forward. bench/peers_gpu.py measures the same cells beside the peers.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tools/tegula/bench_gpu.hpp"
#include "tools/tegula/bench_options.hpp"
#include "tools/tegula/bench_report.hpp"
#include "tools/tegula/bench_suite.hpp"
#include "tools/tegula/gpu_option.hpp"
#include "tools/tegula/progress.hpp"
#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

Json line_of_gpu(const GpuResult& result, const RunFields& fields) {
  const Cell& cell = result.cell;
  const double seconds = result.median_seconds();
  Json line = start_line("h200-forward", "cuda", cell, result.implementation, fields);
  line["residence"] = cell.residence;
  line["rounds"] = result.seconds.size();
  line["ms"] = seconds * 1e3;
  line["tflops"] = cell.flops() / seconds / 1e12;
  RunFields own = fields;
  if (result.mhz.front() > 0)
    own.clocks = fmt::format("{:.0f} MHz, {:.0f} W", median(result.mhz), median(result.watts));
  add_run_fields(line, own);
  return line;
}

void print_results(const std::vector<GpuResult>& results) {
  Table table({{"cell", Table::Align::kLeft},
               {"ms"},
               {"TFLOP/s"},
               {"spread"},
               {"SM MHz"},
               {"W"},
               {"", Table::Align::kLeft}});
  for (const GpuResult& result : results) {
    if (!result.measured()) {
      table.add({result.cell.name, "-", "-", "-", "-", "-", result.refusal});
      continue;
    }
    const auto [least, most] = std::minmax_element(result.seconds.begin(), result.seconds.end());
    const double seconds = result.median_seconds();
    table.add({result.cell.name, fmt::format("{:.4f}", seconds * 1e3),
               fmt::format("{:.0f}", result.cell.flops() / seconds / 1e12),
               fmt::format("{:.1f} %", 100 * (*most - *least) / seconds),
               fmt::format("{:.0f}", median(result.mhz)),
               fmt::format("{:.0f}", median(result.watts)), ""});
  }
  fmt::print("{}", table.text());
}

// What the CPU's suite has and this one has not.
void check_options(const BenchOptions& options) {
  const std::pair<bool, const char*> others[] = {{options.limits, "--limits"},
                                                 {options.check, "--check"},
                                                 {options.threads != 0, "--threads"},
                                                 {!options.cpus.empty(), "--cpus"}};
  for (const auto& [given, name] : others) {
    if (given) throw Failure(fmt::format("{}: goes with --suite cpu", name));
  }
}

}  // namespace

void bench_h200(const BenchOptions& options, Session& session) {
  check_options(options);
  const std::vector<Cell> cells = chosen(suite_h200_forward(), options.filter);
  if (options.list) {
    Json shapes = Json::array();
    for (const Cell& cell : cells) shapes.push_back(shape_of(cell));
    if (session.json) return print_json(shapes);
    for (const Json& shape : shapes) fmt::print("{}\n", shape["cell"].get<std::string>());
    return;
  }
  const std::unique_ptr<cases::Gpu> gpu = open_gpu(options.device);
  const Nvml nvml(pci_bus_id(*gpu));
  LineFile file(options.out);
  const GpuPace& pace = options.quick ? kQuickGpuPace : kFullGpuPace;
  const tegula_device& device = gpu->device();
  const RunFields fields = {
      fmt::format("{}; sm_{}, {} SMs", gpu->name(), device.compute_capability, device.num_sms),
      options.commit, ""};
  if (!session.json) {
    fmt::print("{}{}\n", fields.machine,
               nvml.available() ? "" : fmt::format("; no clocks: {}", nvml.why_not()));
  }
  Progress progress("bench", static_cast<std::int64_t>(cells.size()) * pace.rounds);
  const std::vector<GpuResult> results =
      measure_on_gpu(*gpu, nvml, cells, pace, [&progress] { progress.advance(); });
  for (const GpuResult& result : results) {
    if (result.measured()) file.add(line_of_gpu(result, fields));
  }
  if (session.json) {
    print_json({{"machine", fields.machine}, {"lines", file.lines()}});
  } else {
    print_results(results);
  }
}

}  // namespace tegula::program
