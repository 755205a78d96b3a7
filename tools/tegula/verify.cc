// SPDX-License-Identifier: Apache-2.0
// tegula verify: the case table on a device, judged against the fp64 reference.
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/cases/verify.hpp"
#include "tools/tegula/command.hpp"
#include "tools/tegula/gpu_option.hpp"
#include "tools/tegula/library.hpp"
#include "tools/tegula/progress.hpp"
#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string device = "cpu";
  std::string isa = "auto";
  std::string executor = "pool";
  std::vector<std::string> tags, ids, operations;
  std::string table;
  int threads = 0;
  int jobs = 1;
  int repeats = 20;
  bool list = false, verbose = false, stop = false, no_naive = false;
};

// What one instruction set, or one GPU, did.
struct Run {
  std::string isa;
  cases::Totals totals;
  std::vector<cases::CaseResult> results;  // in order of completion
};

const char* name_of(cases::Op op) {
  switch (op) {
    case cases::Op::kForward: return "forward";
    case cases::Op::kAppendKv: return "append_kv";
    case cases::Op::kCombine: return "combine";
  }
  return "?";
}

// Cases of the GPU's tiles run on the CPU where they are asked for.
bool wants_gpu_cases(const Options& options) {
  return options.device != "cpu" || !options.table.empty() || !options.ids.empty() ||
         std::count(options.tags.begin(), options.tags.end(), "gpu") > 0;
}

// An id given without wildcards matches as it is.
bool selected(const Options& options, const cases::Case& item) {
  if (item.has_tag("gpu") && !wants_gpu_cases(options)) return false;
  const auto any = [](const std::vector<std::string>& wanted, const auto& matches) {
    return wanted.empty() || std::any_of(wanted.begin(), wanted.end(), matches);
  };
  return std::all_of(options.tags.begin(), options.tags.end(),
                     [&](const std::string& tag) { return item.has_tag(tag); }) &&
         any(options.operations, [&](const std::string& op) { return op == name_of(item.op); }) &&
         any(options.ids, [&](const std::string& glob) { return fnmatch(glob.c_str(), item.id.c_str(), 0) == 0; });
}

// What was installed with the program, or the source tree that it was built from.
fs::path cases_folder() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed = program.parent_path().parent_path() / "share" / "tegula" / "cases";
  const fs::path source = cases::default_folder();
  for (const fs::path& folder : {installed, source}) {
    if (fs::exists(folder / "table", ignored)) return folder;
  }
  throw Failure(fmt::format("no case table at {} nor at {}; name one with --table", installed.string(),
                            source.string()));
}

std::vector<std::string> isas_of(const Options& options) {
  if (options.isa != "all") return {options.isa};
  std::vector<std::string> names;
  for (int isa = TEGULA_ISA_SCALAR; isa <= TEGULA_ISA_AMX_MODEL; ++isa) {
    const std::string name = tegula_isa_name(isa);
    if (capability("isa." + name) == 3) names.push_back(name);
  }
  return names;
}

cases::VerifyOptions options_of(const Options& options) {
  cases::VerifyOptions verify;
  if (options.table.empty()) {
    const fs::path folder = cases_folder();
    verify.table = (folder / "table").string();
    verify.refusals = (folder / "refusals" / (options.device == "cpu" ? "cpu.txt" : "cuda.txt")).string();
  } else {
    verify.table = options.table;
    verify.refusals = "/dev/null";  // a table of the user's own: nothing is expected to be refused
  }
  verify.repeats = options.repeats;
  verify.jobs = options.jobs;
  verify.naive = !options.no_naive;
  verify.stop_at_first_failure = options.stop;
  verify.gpu_cases = true;
  verify.select = [&options](const cases::Case& item) { return selected(options, item); };
  return verify;
}

Run run_table(const Options& options, const std::string& label, const cases::VerifyOptions& verify,
              const std::vector<cases::Case>& table) {
  Run run;
  run.isa = label;
  const auto chosen = std::count_if(table.begin(), table.end(),
                                    [&](const cases::Case& item) { return selected(options, item); });
  Progress progress(fmt::format("verify {}", run.isa), chosen);
  run.totals = cases::verify_all(verify, [&](const cases::CaseResult& result, std::int64_t, std::int64_t) {
    run.results.push_back(result);
    progress.advance();
  });
  return run;
}

Run run_gpu(const Options& options, const std::vector<cases::Case>& table) {
  const std::unique_ptr<cases::Gpu> gpu = open_gpu(options.device);
  cases::VerifyOptions verify = options_of(options);
  verify.device = gpu->device();
  verify.gpu = gpu.get();
  verify.device_class = oracle::DeviceClass::kCuda;
  return run_table(options, fmt::format("cuda:{} ({})", gpu->index(), gpu->name()), verify, table);
}

Run run_isa(const Options& options, const std::string& isa, const std::vector<cases::Case>& table) {
  cases::VerifyOptions verify = options_of(options);
  // One worker runs everything on the calling thread: `inline`.
  MachineOptions machine_options{options.executor == "inline" ? 1 : options.threads, isa};
  Machine machine(machine_options);
  verify.device = machine.device().c();
  verify.executor = machine.execution().c().executor;
  if (options.executor != "pool") verify.executor = machine.workers().c();
  if (options.jobs > 1 && verify.executor != nullptr) {
    throw Failure("--jobs: more than 1 needs the library's own pool (--executor pool, without --threads)");
  }
  return run_table(options, isa, verify, table);
}

void print_run(const Options& options, const Run& run) {
  Table failures({{run.isa, Table::Align::kLeft}, {"outcome", Table::Align::kLeft}, {"error"}, {"naive"},
                  {"", Table::Align::kLeft}});
  double worst = 0.0, naive = 0.0;
  std::string worst_id = "-";
  for (const cases::CaseResult& result : run.results) {
    const bool passed = result.outcome == cases::Outcome::kPassed;
    if (passed && result.worst > worst) {
      worst = result.worst;
      worst_id = result.id;
    }
    if (passed) naive = std::max(naive, result.naive);
    if (passed && !options.verbose) continue;
    if (result.outcome == cases::Outcome::kRefused && !options.verbose) continue;
    failures.add({result.id, cases::name_of(result.outcome), passed ? fmt::format("{:.3f}", result.worst) : "-",
                  result.naive >= 0 ? fmt::format("{:.3f}", result.naive) : "-", result.text});
  }
  if (!failures.empty()) fmt::print("{}\n", failures.text());
  fmt::print("{}: {} passed, {} failed, {} refused, {} skipped; worst error / tolerance {:.3f} ({})", run.isa,
             run.totals.passed, run.totals.failed, run.totals.refused, run.totals.skipped, worst, worst_id);
  if (!options.no_naive) fmt::print(", of a naive fp32 kernel {:.3f}", naive);
  fmt::print("\n");
}

Json json_of(const Run& run) {
  Json json;
  json["isa"] = run.isa;
  json["passed"] = run.totals.passed;
  json["failed"] = run.totals.failed;
  json["refused"] = run.totals.refused;
  json["skipped"] = run.totals.skipped;
  json["cases"] = Json::array();
  for (const cases::CaseResult& result : run.results) {
    Json item;
    item["id"] = result.id;
    item["outcome"] = cases::name_of(result.outcome);
    item["error"] = result.worst;
    if (result.naive >= 0) item["naive_error"] = result.naive;
    if (!result.text.empty()) item["text"] = result.text;
    json["cases"].push_back(std::move(item));
  }
  return json;
}

void list_cases(const Options& options, const std::vector<cases::Case>& table, Session& session) {
  Table list({{"id", Table::Align::kLeft}, {"operation", Table::Align::kLeft}, {"tags", Table::Align::kLeft}});
  Json json = Json::array();
  for (const cases::Case& item : table) {
    if (!selected(options, item)) continue;
    list.add({item.id, name_of(item.op), fmt::format("{}", fmt::join(item.tags, ", "))});
    json.push_back({{"id", item.id}, {"operation", name_of(item.op)}, {"tags", item.tags}});
  }
  if (session.json) {
    print_json(json);
  } else {
    fmt::print("{}", list.text());
  }
}

void verify(const Options& options, Session& session) {
  const bool gpu = gpu_index(options.device) >= 0;
  if (gpu && options.isa != "auto") {
    throw Failure(fmt::format("--isa: {} beside --device {}; instruction sets are the CPU's", options.isa,
                              options.device));
  }
  const std::vector<cases::Case> table = cases::load_table(options_of(options).table);
  if (options.list) return list_cases(options, table, session);
  if (std::none_of(table.begin(), table.end(),
                   [&](const cases::Case& item) { return selected(options, item); })) {
    throw Failure(fmt::format("no case of the table's {} matches the filters", table.size()));
  }
  cases::Totals totals;
  Json runs = Json::array();
  for (const std::string& isa : isas_of(options)) {
    const Run run = gpu ? run_gpu(options, table) : run_isa(options, isa, table);
    if (session.json) {
      runs.push_back(json_of(run));
    } else {
      print_run(options, run);
      std::fflush(stdout);
    }
    totals.passed += run.totals.passed;
    totals.failed += run.totals.failed;
    totals.refused += run.totals.refused;
    totals.skipped += run.totals.skipped;
    if (options.stop && totals.failed > 0) break;
  }
  if (session.json) {
    print_json({{"passed", totals.passed},
                {"failed", totals.failed},
                {"refused", totals.refused},
                {"skipped", totals.skipped},
                {"runs", runs}});
  } else {
    fmt::print("{} passed, {} failed, {} refused, {} skipped\n", totals.passed, totals.failed, totals.refused,
               totals.skipped);
  }
  if (totals.failed > 0) session.status = kFailed;
}

}  // namespace

void add_verify(CLI::App& program, Session& session) {
  CLI::App* command =
      add_command(program, session, "verify",
                  "Run the case table on a device: every value is judged against a float64 reference, every\n"
                  "run must give the same bits. Shows failures, and the error of a naive kernel for comparison.");
  auto options = std::make_shared<Options>();
  Options& o = *options;
  command->add_option("--device", o.device, "Where: cpu, cuda, cuda:N")->capture_default_str();
  command->add_option("--isa", o.isa, "auto, all (each that this machine runs), scalar, avx2, avx512, avx512bf16, amx, amx_model")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--tag", o.tags, "Cases with this tag (with all, if given more than once)")->type_name("TAG");
  command->add_option("--id", o.ids, "Cases whose id matches, * and ? as in a shell (any, if given more than once)")
      ->type_name("GLOB");
  command->add_option("--op", o.operations, "Cases of this operation")
      ->check(CLI::IsMember({"forward", "append_kv", "combine"}))
      ->type_name("NAME");
  command->add_option("--table", o.table, "File or folder of JSON lines (default: the committed table)")
      ->type_name("PATH");
  command->add_option("--executor", o.executor, "pool (the library's), threads (std::thread), inline (none)")
      ->check(CLI::IsMember({"pool", "threads", "inline"}))
      ->capture_default_str();
  command->add_option("--threads", o.threads, "Threads of a call (default: all usable CPUs)")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  command->add_option("--jobs", o.jobs, "Cases at once")->check(CLI::Range(1, 256))->capture_default_str();
  command->add_option("--repeats", o.repeats, "Runs of each case, all equal in their bits")
      ->check(CLI::Range(2, 10000))
      ->capture_default_str();
  command->add_flag("--no-naive", o.no_naive, "Without the naive kernel's error: quicker");
  command->add_flag("--list", o.list, "List the chosen cases and run none");
  command->add_flag("--verbose,-v", o.verbose, "Show every case, passed and refused ones too");
  command->add_flag("--stop", o.stop, "Stop at the first failure");
  command->callback([options, &session] { verify(*options, session); });
}

}  // namespace tegula::program
