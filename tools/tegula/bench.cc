// SPDX-License-Identifier: Apache-2.0
// tegula bench: a suite of cells, each beside what the machine can do in the same seconds, and the
// bars they are held against. docs/measuring.md tells the method and the lines' fields.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tools/tegula/bars.hpp"
#include "tools/tegula/bench_machine.hpp"
#include "tools/tegula/bench_options.hpp"
#include "tools/tegula/bench_report.hpp"
#include "tools/tegula/bench_run.hpp"
#include "tools/tegula/bench_suite.hpp"
#include "tools/tegula/command.hpp"
#include "tools/tegula/progress.hpp"

namespace tegula::program {
namespace {

// Consecutive cells with the same value of `part`.
template <typename Part>
std::vector<std::vector<Cell>> split(const std::vector<Cell>& cells, Part part) {
  std::vector<std::vector<Cell>> parts;
  for (const Cell& cell : cells) {
    if (parts.empty() || part(parts.back().front()) != part(cell)) parts.emplace_back();
    parts.back().push_back(cell);
  }
  return parts;
}

// All that the cells need, each at the thread counts where they need it or at all that occur.
LimitReport measure_limits(Limits& limits, const std::vector<Cell>& cells, bool at_all_counts,
                           std::int64_t l3_bytes, double turn) {
  std::map<Probe, std::set<int>> wanted;
  std::set<int> threads;
  for (const Cell& cell : cells) {
    threads.insert(cell.threads);
    if (cell.limit == LimitKind::kDram) wanted[Probe::kDram].insert(cell.threads);
    if (cell.limit == LimitKind::kL3) wanted[Probe::kL3].insert(cell.threads);
    if (is_compute(cell.limit)) wanted[Probe::kFma].insert(cell.threads);
    if (cell.limit != LimitKind::kBf16 && cell.limit != LimitKind::kFp16) continue;
    for (const Probe probe : {Probe::kDot, Probe::kAmx}) {
      if (limits.has(probe)) wanted[probe].insert(cell.threads);
    }
  }
  if (at_all_counts) {
    for (auto& [probe, counts] : wanted) counts = threads;
  }
  std::int64_t steps = 0;
  for (const auto& [probe, counts] : wanted) steps += static_cast<std::int64_t>(counts.size());
  Progress progress("the machine's limits", steps);
  LimitReport report;
  report.l3_bytes = l3_bytes;
  for (const auto& [probe, counts] : wanted) {
    for (const int count : counts) {
      const double rate = limits.measure(probe, count, turn);
      report.readings.push_back({probe, count, rate, limits.variant(probe, count)});
      progress.advance();
    }
  }
  for (const int count : threads) {
    if (count > 1) report.launches.emplace_back(count, limits.launch(count));
  }
  return report;
}

// The library's threads exist from its first parallel call; each gets a CPU of its own, and so does
// this one.
void bind_threads(const std::vector<int>& cpus) {
  const std::vector<int> known = thread_ids();
  const auto sequences = static_cast<std::int64_t>(4 * cpus.size());
  std::vector<float> numbers(static_cast<std::size_t>(sequences * 64 * 16), 0.5F),
      results(numbers.size());
  ForwardArgs args;
  args.q = args.k = args.v = Tensor(numbers, {sequences, 64, 1, 16});
  args.o = Tensor(results, {sequences, 64, 1, 16});
  Plan(args).forward(args);
  const std::size_t started = pin_new_threads(known, cpus);
  if (started + 1 != cpus.size()) {
    throw Failure(fmt::format("the library started {} threads beside this one, not {}", started,
                              cpus.size() - 1));
  }
  pin_thread(0, cpus[0]);
}

struct Suite {
  std::vector<int> cpus;
  MachineClass machine;
  std::vector<Cell> cells;
};

// From here on the process has these CPUs only, and the library's pool as many threads.
Suite prepare(const BenchOptions& options) {
  Suite suite;
  suite.cpus = options.cpus.empty() ? choose_cpus(options.threads) : parse_cpus(options.cpus);
  confine(suite.cpus);
  suite.machine = class_of(cpu::cpu_info());
  suite.cells = suite_cpu(suite.machine, static_cast<int>(suite.cpus.size()));
  return suite;
}

void list(const BenchOptions& options, const Session& session) {
  Json shapes = Json::array();
  for (const Cell& cell : chosen(prepare(options).cells, options.filter))
    shapes.push_back(shape_of(cell));
  if (session.json) return print_json(shapes);
  for (const Json& shape : shapes) fmt::print("{}\n", shape["cell"].get<std::string>());
}

void report_check(const CheckReport& report, bool full, Session& session, Json* document) {
  if (document != nullptr) {
    (*document)["check"] = report_json(report, full);
  } else {
    fmt::print("\n{}", report_text(report, full));
  }
  if (!report.passed(full)) session.status = kFailed;
}

// Stored lines, nothing is run.
void check_stored(const BenchOptions& options, Session& session) {
  const std::vector<Json> lines = read_lines(options.lines);
  const std::string machine_class = class_of_lines(lines);
  const BarTable table = bars_of(machine_class);
  const std::vector<Cell> suite = suite_cpu(class_named(machine_class), table.threads);
  const CheckReport report = check_lines(table, lines, suite, {options.filter, true});
  Json document;
  report_check(report, options.filter.empty(), session, session.json ? &document : nullptr);
  if (session.json) print_json(document);
}

struct Stage {
  std::vector<CellResult> results;  // in the order of the cells
  Runner::Drifts drifts;
};

// Sets with a cell that had too few rounds in a steady state get a second try when the others are
// done.
Stage measure_stage(Runner& runner, const std::vector<Cell>& cells, const std::string& label) {
  Progress progress(label, static_cast<std::int64_t>(cells.size()));
  std::vector<std::vector<CellResult>> results;
  const std::vector<std::vector<Cell>> sets =
      split(cells, [](const Cell& cell) { return cell.set; });
  runner.begin_stage(cells);
  for (const std::vector<Cell>& set : sets) {
    results.push_back(runner.measure(set));
    progress.advance(static_cast<std::int64_t>(set.size()));
  }
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const auto steady = [](const CellResult& result) { return result.steady(); };
    if (!std::all_of(results[i].begin(), results[i].end(), steady))
      results[i] = runner.measure(sets[i]);
  }
  Stage stage;
  stage.drifts = runner.end_stage();
  for (std::vector<CellResult>& set : results)
    std::move(set.begin(), set.end(), std::back_inserter(stage.results));
  return stage;
}

std::string fault_of(const CellResult& result) {
  if (!result.steady()) {
    return fmt::format(
        "{}: {} rounds kept and {} dropped, {} are needed: the machine was never steady",
        result.cell.name, result.kept, result.dropped, kFewestRounds);
  }
  if (result.above_limit()) {
    return fmt::format("{}: {:.1f} % of its limit: the probe is weak", result.cell.name,
                       100 * result.of_limit());
  }
  return "";
}

// Before anything is measured, so that a mistake costs no minutes.
BarTable bars_for(const Suite& suite) {
  const BarTable table = bars_of(class_name(suite.machine));
  if (table.threads != static_cast<int>(suite.cpus.size())) {
    throw Failure(fmt::format("--check: the bars are for {} threads, not {}; give --threads {}",
                              table.threads, suite.cpus.size(), table.threads));
  }
  return table;
}

void bench(const BenchOptions& options, Session& session) {
  if (options.suite != "cpu") return bench_h200(options, session);
  if (!options.lines.empty() && !options.check) throw Failure("--lines: goes with --check alone");
  if (options.list) return list(options, session);
  if (!options.lines.empty()) return check_stored(options, session);
  const Suite suite = prepare(options);
  BarTable table;
  if (options.check) table = bars_for(suite);
  const std::vector<Cell> cells = chosen(suite.cells, options.filter);
  LineFile file(options.out);
  bind_threads(suite.cpus);

  const Pace& pace = options.quick ? kQuickPace : kFullPace;
  const std::int64_t l3_bytes = l3_cache_bytes(suite.machine);
  Runner runner(suite.cpus, l3_bytes, pace);
  const LimitReport limits =
      measure_limits(runner.limits(), cells, options.filter.empty(), l3_bytes, pace.limit_turn);
  const cpu::CpuInfo& info = cpu::cpu_info();
  const RunFields fields = {machine_text(info.brand, class_name(suite.machine),
                                         static_cast<int>(suite.cpus.size()), limits),
                            options.commit, clocks_text()};
  for (const Json& line : lines_of(limits, fields)) file.add(line);
  const bool text = !session.json;
  if (text)
    fmt::print("{}, class {}; threads on CPUs {}\n\n{}", info.brand, class_name(suite.machine),
               fmt::join(suite.cpus, ", "), limits_text(limits));
  const auto finish = [&](Json& document) {
    document["machine"] = fields.machine;
    document["lines"] = file.lines();
    if (session.json) print_json(document);
  };
  Json document;
  if (options.limits) return finish(document);

  std::vector<std::string> faults;
  const std::vector<std::vector<Cell>> stages =
      split(cells, [](const Cell& cell) { return cell.stage; });
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::string label =
        fmt::format("{} ({} of {})", stages[i].front().stage, i + 1, stages.size());
    const Stage stage = measure_stage(runner, stages[i], label);
    for (const CellResult& result : stage.results) {
      if (result.steady()) file.add(line_of(result, fields));
      if (const std::string fault = fault_of(result); !fault.empty()) faults.push_back(fault);
    }
    if (text) fmt::print("\n{}", stage_text(stage.results, stage.drifts));
    std::fflush(stdout);
  }
  document["faults"] = faults;
  if (text && !faults.empty()) fmt::print("\nFAILED:\n  {}\n", fmt::join(faults, "\n  "));
  if (!faults.empty()) session.status = kFailed;
  if (options.check) {
    const CheckReport report =
        check_lines(table, file.lines(), suite.cells, {options.filter, false});
    report_check(report, options.filter.empty(), session, text ? nullptr : &document);
  }
  finish(document);
}

}  // namespace

void add_bench(CLI::App& program, Session& session) {
  CLI::App* command = add_command(program, session, "bench",
                                  "Measure a suite of calls, each beside what the machine can do "
                                  "in the same seconds. Cells are named\n"
                                  "OP-DTYPE-...; --list shows them. --out appends one JSON line a "
                                  "result; --check fails below the bars\n"
                                  "of this machine's class.");
  auto options = std::make_shared<BenchOptions>();
  BenchOptions& o = *options;
  command->add_option("--suite", o.suite, "Which cells: cpu; h200-forward, on a GPU")
      ->check(CLI::IsMember({"cpu", "h200-forward"}))
      ->capture_default_str();
  command->add_option("--filter", o.filter, "Only cells whose names match (* and ?)")
      ->type_name("PATTERN,...");
  command->add_option("--device", o.device, "GPU of h200-forward: cuda or cuda:N")
      ->type_name("NAME");
  command->add_flag("--list", o.list, "Print the cells; with --json their shapes");
  command->add_flag("--limits", o.limits, "Measure the machine's limits alone");
  command->add_flag("--quick", o.quick, "Short rounds: a look, no result to keep");
  CLI::Option* threads =
      command
          ->add_option("--threads", o.threads, "Threads, each bound to a CPU (default: all CPUs)")
          ->check(CLI::Range(1, 4096))
          ->type_name("N");
  command->add_option("--cpus", o.cpus, "The CPUs, one thread on each")
      ->type_name("0,2-5")
      ->excludes(threads);
  command->add_flag("--check", o.check,
                    "Fail below the bars of the machine's class (bench/bars.json)");
  command->add_option("--lines", o.lines, "With --check: judge these files' lines, measure nothing")
      ->delimiter(',')
      ->type_name("FILE,...");
  command->add_option("--out", o.out, "Append result lines to this file")->type_name("FILE");
  command->add_option("--commit", o.commit, "Commit to write into the lines")->type_name("HASH");
  command->callback([options, &session] { bench(*options, session); });
}

}  // namespace tegula::program
