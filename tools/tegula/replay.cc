// SPDX-License-Identifier: Apache-2.0
// tegula replay: what a real model asked of attention, played through a paged KV cache, checked and timed.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tools/tegula/command.hpp"
#include "tools/tegula/library.hpp"
#include "tools/tegula/options.hpp"
#include "tools/tegula/progress.hpp"
#include "tools/tegula/replay_check.hpp"
#include "tools/tegula/replay_engine.hpp"
#include "tools/tegula/replay_standard.hpp"
#include "tools/tegula/table.hpp"
#include "tools/tegula/trace.hpp"

namespace tegula::program {
namespace {

struct Options {
  std::string file;
  std::int64_t page_size = 16;
  std::string dtype, cache_dtype;  // empty: the trace's
  std::vector<int> layers, prompts;
  std::int64_t steps = std::int64_t{1} << 30;
  std::uint64_t seed = 1;
  int repeat = 5;
  MachineOptions machine;
};

// Medians over the timed rounds, in seconds for all requests.
struct PhaseTimes {
  std::int64_t tokens = 0, calls = 0;
  double append = 0.0, attention = 0.0, standard = 0.0;

  double tokens_per_second() const { return static_cast<double>(tokens) / (append + attention); }
  double speedup() const { return standard / attention; }
};

struct Report {
  PhaseTimes phases[2];
  ReplayErrors errors;
  bool same_bits = true;  // every round, whatever the pages
  std::int64_t pages_peak = 0, pages_reused = 0;
  double paged_bytes = 0, contiguous_bytes = 0;
  double scratch_bytes = 0, scores_bytes = 0;

  bool passed() const { return errors.passed() && same_bits; }
};

constexpr const char* kPhaseNames[] = {"prefill", "decode"};

// Chosen numbers -> indices; all if none were chosen.
std::vector<std::size_t> choose(const char* option, const std::vector<int>& wanted,
                                const std::vector<int>& known) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), known[i]) != wanted.end()) chosen.push_back(i);
  }
  for (const int number : wanted) {
    if (std::find(known.begin(), known.end(), number) == known.end()) {
      throw Failure(fmt::format("{}: {} is not in the trace, which has {}", option, number,
                                fmt::join(known, ", ")));
    }
  }
  return chosen;
}

ReplaySetup setup_of(const Options& options, const Trace& trace) {
  ReplaySetup setup;
  setup.dtype = options.dtype.empty() ? trace.dtype() : parse_dtype("--dtype", options.dtype);
  if (is_8bit(setup.dtype)) throw Failure(fmt::format("--dtype: {} is none of fp32, fp16, bf16", options.dtype));
  setup.cache_dtype =
      options.cache_dtype.empty() ? setup.dtype : parse_dtype("--cache-dtype", options.cache_dtype);
  setup.page_size = options.page_size;
  setup.steps = options.steps;
  setup.seed = options.seed;
  std::vector<int> layers, prompts;
  for (const TraceLayer& layer : trace.layers()) layers.push_back(layer.number);
  for (std::size_t p = 0; p < trace.prompts().size(); ++p) prompts.push_back(static_cast<int>(p));
  setup.layers = choose("--layers", options.layers, layers);
  setup.prompts = choose("--prompts", options.prompts, prompts);
  return setup;
}

Report measure(const Options& options, const Trace& trace, ReplayEngine& engine, Machine& machine) {
  Report report;
  const int rounds = options.repeat + 1;  // the first is checked and not timed: it makes the plans
  std::vector<double> append[2], attention[2], standard_times[2];
  std::unique_ptr<StandardReplay> standard;
  Round first;
  Progress progress("playing", rounds);
  for (int r = 0; r < rounds; ++r) {
    Round round = engine.play(r);
    if (r == 0) {
      first = std::move(round);
      standard = std::make_unique<StandardReplay>(engine, first, machine.workers());
    } else {
      const Seconds* seconds[] = {&round.prefill, &round.decode};
      for (int phase = 0; phase < 2; ++phase) {
        append[phase].push_back(seconds[phase]->append);
        attention[phase].push_back(seconds[phase]->attention);
      }
      report.same_bits = report.same_bits && round.results == first.results;
    }
    const StandardReplay::Times times = standard->play(first.schedule);
    if (r > 0) {
      standard_times[kPrefill].push_back(times.prefill);
      standard_times[kDecode].push_back(times.decode);
    }
    progress.advance();
  }
  std::int64_t longest = 0;
  for (std::size_t p = 0; p < engine.setup().prompts.size(); ++p) longest = std::max(longest, engine.tokens(p));
  for (const ScheduledStep& step : first.schedule) {
    PhaseTimes& phase = report.phases[step.prefill ? kPrefill : kDecode];
    phase.calls += static_cast<std::int64_t>(engine.setup().layers.size());
    for (const ScheduledRows& rows : step.sequences) phase.tokens += rows.rows;
  }
  for (int phase = 0; phase < 2; ++phase) {
    report.phases[phase].append = median(append[phase]);
    report.phases[phase].attention = median(attention[phase]);
    report.phases[phase].standard = median(standard_times[phase]);
  }
  report.errors = check_replay(trace, engine, first, standard.get(), machine.workers());
  report.pages_peak = first.pages_peak;
  report.pages_reused = first.pages_reused;
  const auto token_bytes = static_cast<double>(engine.cache_bytes_per_token());
  report.paged_bytes =
      static_cast<double>(first.pages_peak * engine.setup().page_size) * token_bytes +
      static_cast<double>(first.pages_peak) * sizeof(std::int32_t);
  report.contiguous_bytes =
      static_cast<double>(longest * engine.setup().slots()) * token_bytes;
  report.scratch_bytes = static_cast<double>(engine.scratch_bytes());
  report.scores_bytes = static_cast<double>(standard->scores_bytes());
  return report;
}

std::string list_of(const std::vector<std::string>& items) {
  if (items.size() < 2) return items.empty() ? "none" : items.front();
  return fmt::format("{} and {}", fmt::join(items.begin(), items.end() - 1, ", "), items.back());
}

void print_heading(const Trace& trace, const ReplayEngine& engine, const Machine& machine,
                   const Report& report) {
  const ReplaySetup& setup = engine.setup();
  std::vector<std::string> layers, prompts;
  for (std::size_t l = 0; l < setup.layers.size(); ++l) layers.push_back(std::to_string(engine.layer(l).number));
  std::int64_t steps = 0;
  for (std::size_t p = 0; p < setup.prompts.size(); ++p) {
    prompts.push_back(std::to_string(engine.prompt_tokens(p)));
    steps = std::max(steps, engine.steps(p));
  }
  const TraceLayer& layer = engine.layer(0);
  Table table({{"", Table::Align::kLeft}, {"", Table::Align::kLeft}});
  table.add({"model", fmt::format("{}, layer{} {} of {}", trace.model(), layers.size() > 1 ? "s" : "",
                                  list_of(layers), trace.model_layers())});
  table.add({"attention", fmt::format("{} query heads on {} kv heads, head_dim {}, {} on a {} cache",
                                      layer.num_heads_q, layer.num_heads_kv, layer.head_dim,
                                      tegula::name(setup.dtype), tegula::name(setup.cache_dtype))});
  table.add({"requests", fmt::format("{}, {} at a time: prompt{} of {} tokens, up to {} decode steps; the first ones "
                                     "stop early",
                                     setup.waves() * static_cast<int>(prompts.size()), setup.slots(),
                                     prompts.size() > 1 ? "s" : "", list_of(prompts), steps)});
  table.add({"page pool", fmt::format("{} pages of {} tokens in shuffled order, {} in use at most; {} times a page "
                                      "went to another request",
                                      engine.num_pages(), setup.page_size, report.pages_peak,
                                      report.pages_reused)});
  table.add({"runs on", fmt::format("{}, {} thread{}", engine.implementation(), machine.threads(),
                                    machine.threads() > 1 ? "s" : "")});
  fmt::print("{}\n", table.text());
}

std::string ratio_text(double ratio) { return fmt::format("{:.3f}", ratio); }

void print_tables(const Report& report) {
  Table times({{"phase", Table::Align::kLeft}, {"tokens"}, {"calls"}, {"append"}, {"attention"}, {"tokens/s"},
               {"standard"}, {"speedup"}});
  for (int phase = 0; phase < 2; ++phase) {
    const PhaseTimes& t = report.phases[phase];
    if (t.tokens == 0) continue;
    times.add({kPhaseNames[phase], count_text(t.tokens), count_text(t.calls), time_text(t.append),
               time_text(t.attention), rate_text(t.tokens_per_second()), time_text(t.standard),
               fmt::format("{:.1f}x", t.speedup())});
  }
  fmt::print("{}\n", times.text());

  Table errors({{"error / tolerance", Table::Align::kLeft}, {"values"}, {"o"}, {"lse"}, {"o - recorded"},
                {"standard's o"}});
  const ReplayErrors& e = report.errors;
  for (int phase = 0; phase < 2; ++phase) {
    const PhaseErrors& p = e.phases[static_cast<std::size_t>(phase)];
    if (p.elements == 0) continue;
    errors.add({kPhaseNames[phase], count_text(p.elements), ratio_text(p.o), ratio_text(p.lse),
                e.has_recorded ? ratio_text(p.recorded) : "-", ratio_text(p.standard)});
  }
  errors.add({"limit", "", "1", "1", e.has_recorded ? "2" : "-", "1"});
  fmt::print("{}\n", errors.text());

  Table memory({{"memory", Table::Align::kLeft}, {"tegula"}, {"standard"}, {"of it"}});
  const auto share = [](double ours, double other) { return fmt::format("{:.1f} %", 100 * ours / other); };
  memory.add({"KV cache (pages, reserved rows)", bytes_text(report.paged_bytes),
              bytes_text(report.contiguous_bytes), share(report.paged_bytes, report.contiguous_bytes)});
  memory.add({"extra at most (scratch, scores)", bytes_text(report.scratch_bytes), bytes_text(report.scores_bytes),
              share(report.scratch_bytes, report.scores_bytes)});
  fmt::print("{}\n", memory.text());
}

void print_explanation(const ReplayEngine& engine, const Report& report) {
  const ReplaySetup& setup = engine.setup();
  const char* const layers = setup.layers.size() > 1 ? "these layers" : "this layer";
  fmt::print(
      "append writes the new K and V rows into the pages, attention reads them there; tokens/s counts both, for {}\n"
      "alone. standard computes and stores every score (fp32, vector code, contiguous K and V, as many threads) and is\n"
      "timed without its append. Times are medians of rounds that alternate between the two.\n"
      "Each value is held against a float64 reference on what lay in the cache; 1 is the most that rounding of {}\n"
      "explains. {}\n"
      "The contiguous cache reserves the longest sequence's rows for each sequence.\n\n",
      layers, tegula::name(setup.dtype),
      report.errors.has_recorded
          ? "o - recorded is the difference from what the trace holds, itself rounded: up to 2."
          : "The recorded o was computed in other types and is not compared.");
  if (!report.same_bits) {
    fmt::print("FAILED: another order of pages changed the result's bits\n");
  } else if (!report.errors.passed()) {
    fmt::print("FAILED: {}\n", report.errors.first_failure);
  } else {
    fmt::print("passed: {} values within tolerance, {} cache rows bit for bit, the same bits in every round\n",
               count_text(report.errors.phases[0].elements + report.errors.phases[1].elements),
               count_text(report.errors.cache_rows));
  }
}

Json json_of(const Trace& trace, const ReplayEngine& engine, const Machine& machine, const Report& report) {
  const ReplaySetup& setup = engine.setup();
  Json json;
  json["passed"] = report.passed();
  json["model"] = trace.model();
  json["implementation"] = engine.implementation();
  json["threads"] = machine.threads();
  json["dtype"] = tegula::name(setup.dtype);
  json["cache_dtype"] = tegula::name(setup.cache_dtype);
  json["page_size"] = setup.page_size;
  json["slots"] = setup.slots();
  json["waves"] = setup.waves();
  for (std::size_t l = 0; l < setup.layers.size(); ++l) json["layers"].push_back(engine.layer(l).number);
  for (std::size_t p = 0; p < setup.prompts.size(); ++p) {
    json["prompts"].push_back({{"prompt_tokens", engine.prompt_tokens(p)}, {"steps", engine.steps(p)}});
  }
  for (std::size_t phase = 0; phase < 2; ++phase) {
    const PhaseTimes& t = report.phases[phase];
    if (t.tokens == 0) continue;
    const PhaseErrors& e = report.errors.phases[phase];
    Json& out = json[kPhaseNames[phase]];
    out = {{"tokens", t.tokens},
           {"calls", t.calls},
           {"append_s", t.append},
           {"attention_s", t.attention},
           {"tokens_per_s", t.tokens_per_second()},
           {"standard_s", t.standard},
           {"speedup", t.speedup()},
           {"values", e.elements},
           {"o_error", e.o},
           {"lse_error", e.lse},
           {"standard_error", e.standard}};
    if (report.errors.has_recorded) {
      out["recorded_error"] = e.recorded;
      out["recorded_difference"] = e.recorded_difference;
    }
  }
  json["pages"] = {{"pool", engine.num_pages()}, {"peak", report.pages_peak}, {"reused", report.pages_reused}};
  json["cache_rows"] = report.errors.cache_rows;
  json["wrong_cache_rows"] = report.errors.wrong_cache_rows;
  json["same_bits"] = report.same_bits;
  json["paged_bytes"] = report.paged_bytes;
  json["contiguous_bytes"] = report.contiguous_bytes;
  json["scratch_bytes"] = report.scratch_bytes;
  json["scores_bytes"] = report.scores_bytes;
  if (!report.errors.passed()) json["failure"] = report.errors.first_failure;
  return json;
}

void replay(const Options& options, Session& session) {
  const Trace trace = Trace::open(options.file);
  Machine machine(options.machine);
  ReplayEngine engine(trace, setup_of(options, trace), machine);
  const Report report = measure(options, trace, engine, machine);
  if (session.json) {
    print_json(json_of(trace, engine, machine, report));
  } else {
    print_heading(trace, engine, machine, report);
    print_tables(report);
    print_explanation(engine, report);
  }
  if (!report.passed()) session.status = kFailed;
}

}  // namespace

void add_replay(CLI::App& program, Session& session) {
  CLI::App* command = add_command(
      program, session, "replay",
      "Play a trace of a real model through a paged KV cache as a serving engine would: prompts in one\n"
      "batched call, then append + decode token by token, on pages that are shuffled, returned and used\n"
      "again. Checks every value against a float64 reference and times it beside standard attention.");
  auto options = std::make_shared<Options>();
  command->add_option("file", options->file, "Trace (python -m tegula.capture makes them)")->required();
  command->add_option("--page-size", options->page_size, "Tokens of a page")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  add_dtype(*command, "--dtype", options->dtype,
            "Type of q, o and of new K and V rows: fp32, fp16, bf16 (default: the trace's)");
  add_dtype(*command, "--cache-dtype", options->cache_dtype,
            "Type of the cache, also e4m3 and e5m2 with a scale for each kv head (default: --dtype)");
  command->add_option("--layers", options->layers, "Layers of the model, of those in the trace (default: all)")
      ->delimiter(',')
      ->type_name("N,...");
  command->add_option("--prompts", options->prompts, "Prompts, from 0 (default: all)")
      ->delimiter(',')
      ->type_name("N,...");
  command->add_option("--steps", options->steps, "Decode steps at most (default: all)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
      ->type_name("N");
  command->add_option("--seed", options->seed, "Seed of the pages' order")->capture_default_str();
  command->add_option("--repeat", options->repeat, "Timed rounds")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_machine(*command, options->machine);
  command->callback([options, &session] { replay(*options, session); });
}

}  // namespace tegula::program
