// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "tools/tegula/bars.hpp"
#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

bool is_share(const Bar& bar) {
  return bar.measure == Measure::kOfLimit;
}

std::string value_text(const Bar& bar, double value) {
  return is_share(bar) ? fmt::format("{:.1f} %", 100 * value) : fmt::format("{:.2f}x", value);
}

std::string bound_text(const Bar& bar) {
  if (bar.reported_only) return fmt::format("(aim {})", value_text(bar, bar.aim));
  return fmt::format(
      "{} {}", bar.at_least ? ">=" : "<=",
      is_share(bar) ? fmt::format("{:.0f} %", 100 * bar.bound) : fmt::format("{:.2f}x", bar.bound));
}

// Of each bar: how many cells met it, and the one that is furthest from it.
struct BarSummary {
  const Bar* bar = nullptr;
  int met = 0, below = 0, not_run = 0;
  const Judgement* worst = nullptr;
};

std::vector<BarSummary> summaries(const CheckReport& report) {
  std::vector<BarSummary> all;
  for (const Judgement& judgement : report.judgements) {
    if (all.empty() || all.back().bar != judgement.bar) all.push_back({judgement.bar});
    BarSummary& summary = all.back();
    if (judgement.verdict == Verdict::kNotRun) {
      ++summary.not_run;
      continue;
    }
    ++(judgement.verdict == Verdict::kMet ? summary.met : summary.below);
    const bool worse = summary.worst == nullptr ||
                       (judgement.bar->at_least ? judgement.value < summary.worst->value
                                                : judgement.value > summary.worst->value);
    if (worse) summary.worst = &judgement;
  }
  return all;
}

const char* verdict_name(Verdict verdict) {
  return verdict == Verdict::kMet ? "met" : verdict == Verdict::kBelow ? "below" : "not run";
}

}  // namespace

std::string report_text(const CheckReport& report, bool full) {
  Table bars({{"bar", Table::Align::kLeft}, {"bound"}, {"worst"}, {"met"}, {"below"}, {"not run"}});
  for (const BarSummary& summary : summaries(report)) {
    bars.add({summary.bar->text, bound_text(*summary.bar),
              summary.worst == nullptr ? "-" : value_text(*summary.bar, summary.worst->value),
              std::to_string(summary.met), std::to_string(summary.below),
              std::to_string(summary.not_run)});
  }
  std::string text = bars.text();
  const auto list = [&](Verdict verdict, const char* title) {
    const Bar* bar = nullptr;
    for (const Judgement& j : report.judgements) {
      if (j.verdict != verdict) continue;
      if (bar == nullptr) text += fmt::format("\n{}:\n", title);
      if (bar != j.bar) text += fmt::format("  {} ({})\n", j.bar->text, bound_text(*j.bar));
      bar = j.bar;
      text += fmt::format("    {:<46}{}\n", j.cell,
                          verdict == Verdict::kNotRun ? "" : value_text(*j.bar, j.value));
    }
  };
  list(Verdict::kBelow, "below the bar");
  list(Verdict::kNotRun, full ? "not run (an error)" : "not run");
  for (const std::string& fault : report.faults) text += fmt::format("\nFAULT: {}", fault);
  if (!report.faults.empty()) text += "\n";
  text += fmt::format("\ncheck: {} met, {} below, {} not run, {} faults: {}\n",
                      report.count(Verdict::kMet), report.count(Verdict::kBelow),
                      report.count(Verdict::kNotRun), report.faults.size(),
                      report.passed(full) ? "passed" : "FAILED");
  if (report.peer_bars_left > 0) {
    text += fmt::format(
        "{} bars beside PyTorch are not judged here: bench/peers_cpu.py writes their lines, and\n"
        "`tegula bench --check --lines FILE,FILE` judges all.\n",
        report.peer_bars_left);
  }
  return text;
}

Json report_json(const CheckReport& report, bool full) {
  Json json;
  json["passed"] = report.passed(full);
  json["met"] = report.count(Verdict::kMet);
  json["below"] = report.count(Verdict::kBelow);
  json["not_run"] = report.count(Verdict::kNotRun);
  json["peer_bars_not_judged"] = report.peer_bars_left;
  json["faults"] = report.faults;
  Json& judgements = json["judgements"] = Json::array();
  for (const Judgement& j : report.judgements) {
    Json entry = {{"bar", j.bar->text}, {"cell", j.cell}, {"verdict", verdict_name(j.verdict)}};
    if (j.verdict != Verdict::kNotRun) entry["value"] = j.value;
    if (!j.bar->reported_only) entry[j.bar->at_least ? "at_least" : "at_most"] = j.bar->bound;
    if (j.bar->aim > 0) entry["aim"] = j.bar->aim;
    judgements.push_back(entry);
  }
  return json;
}

}  // namespace tegula::program
