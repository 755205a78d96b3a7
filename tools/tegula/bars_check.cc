// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "tools/tegula/bars.hpp"
#include "tools/tegula/bench_rounds.hpp"
#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

bool has_pytorch(const Json& line) {
  return line.value("peer", "").rfind("pytorch", 0) == 0;
}
// A peer's own line is about the peer.
bool is_ours(const Json& line) {
  return line.value("impl", "").rfind("cpu_", 0) == 0;
}

// The newest line of each cell: of those that stand beside PyTorch, and of those that stand alone.
struct Newest {
  std::map<std::string, const Json*> own, peer;
};

double number(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : 0.0;
}

std::optional<double> value_of(const Bar& bar, const std::string& cell, const Newest& newest) {
  const auto line_of = [](const std::map<std::string, const Json*>& lines,
                          const std::string& name) {
    const auto found = lines.find(name);
    return found == lines.end() ? nullptr : found->second;
  };
  const auto positive = [](double value) {
    return value > 0 ? std::optional(value) : std::nullopt;
  };
  if (bar.measure == Measure::kPeer) {
    const Json* line = line_of(newest.peer, cell);
    return line == nullptr ? std::nullopt : positive(number(*line, "ratio"));
  }
  const Json* line = line_of(newest.own, cell);
  if (line == nullptr) return std::nullopt;
  if (bar.measure == Measure::kOfLimit) return positive(number(*line, "of_limit"));
  if (bar.measure == Measure::kTimeOverLimit) {
    const double share = number(*line, "of_limit");
    return share > 0 ? std::optional(1.0 / share) : std::nullopt;
  }
  std::string other = cell;
  const std::size_t at = other.find(bar.replaced);
  if (at == std::string::npos) return std::nullopt;
  const Json* base = line_of(newest.own, other.replace(at, bar.replaced.size(), bar.by));
  if (base == nullptr) return std::nullopt;
  // Both cells have the same heads, so operations count visible keys.
  const double ours = number(*line, "tflops"), theirs = number(*base, "tflops");
  if (ours <= 0 || theirs <= 0) return std::nullopt;
  return bar.measure == Measure::kSpeed ? ours / theirs : theirs / ours;
}

void find_faults(CheckReport& report, const Json& line, const std::string& cell) {
  const double share = number(line, "of_limit");
  if (share > 1.0 && line.value("op", "") != "append") {
    report.faults.push_back(fmt::format("{}: {:.1f} % of its limit: the probe of the limit is weak",
                                        cell, 100 * share));
  }
  if (number(line, "rounds") < kFewestRounds) {
    report.faults.push_back(fmt::format("{}: {:.0f} rounds are fewer than {}", cell,
                                        number(line, "rounds"), kFewestRounds));
  }
}

}  // namespace

CheckReport check_lines(const BarTable& table, const std::vector<Json>& lines,
                        const std::vector<Cell>& suite, const CheckOptions& options) {
  CheckReport report;
  Newest newest;
  std::map<std::string, int> threads_of;
  for (const Cell& cell : suite) threads_of[cell.name] = cell.threads;
  for (const Json& line : lines) {
    const std::string name = line.value("cell", "");
    const auto known = threads_of.find(name);
    if (line.value("suite", "") != "cpu" || known == threads_of.end() || !is_ours(line)) continue;
    if (line.value("threads", 0) != known->second) continue;
    if (!line.contains("peer")) newest.own[name] = &line;
    if (has_pytorch(line)) newest.peer[name] = &line;
  }
  for (const Cell& cell : suite) {
    const auto found = newest.own.find(cell.name);
    if (found != newest.own.end() && matches(options.filter, cell.name))
      find_faults(report, *found->second, cell.name);
  }
  for (const Bar& bar : table.bars) {
    if (bar.measure == Measure::kPeer && !options.judges_peers) {
      ++report.peer_bars_left;
      continue;
    }
    for (const Cell& cell : suite) {
      if (!matches(options.filter, cell.name)) continue;
      const bool wanted = bar.wants(cell.name);
      const bool welcome = !bar.if_run.empty() && matches(bar.if_run, cell.name);
      if (!wanted && !welcome) continue;
      const std::optional<double> value = value_of(bar, cell.name, newest);
      if (!value && !wanted) continue;
      report.judgements.push_back({&bar, cell.name,
                                   !value              ? Verdict::kNotRun
                                   : bar.meets(*value) ? Verdict::kMet
                                                       : Verdict::kBelow,
                                   value.value_or(0.0)});
    }
  }
  return report;
}

int CheckReport::count(Verdict verdict) const {
  return static_cast<int>(std::count_if(judgements.begin(), judgements.end(),
                                        [&](const Judgement& j) { return j.verdict == verdict; }));
}

bool CheckReport::passed(bool full) const {
  return count(Verdict::kBelow) == 0 && faults.empty() && (!full || count(Verdict::kNotRun) == 0);
}

}  // namespace tegula::program
