// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/bench_run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr int kStageProbes = 5;
// Where every other round is dropped, one cell in a thousand keeps less than five of these.
constexpr int kMostRounds = 24;
constexpr double kCopyProbe = 0.012;

double time_calls(Call& call, int calls) {
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < calls; ++i) call.run();
  return seconds_since(begin) / calls;
}

// As many as fill `seconds`; the first calls, which meet new memory, are not counted.
int calls_for(Call& call, double seconds) {
  call.run();
  const double one = time_calls(call, 1);
  return one >= seconds
             ? 1
             : static_cast<int>(std::ceil(
                   seconds / time_calls(call, 1 + static_cast<int>(0.1 * seconds / one))));
}

}  // namespace

struct Runner::Entry {
  Cell cell;
  std::unique_ptr<Call> call;
  int calls = 1;
  std::unique_ptr<Call> copy;  // LimitKind::kRowCopy: its probe
  int copies = 1;
  Limits::Bound bound = {Probe::kFma, 1.0};
  std::vector<Round> rounds;
};

Runner::Runner(std::vector<int> cpus, std::int64_t l3_bytes, const Pace& pace)
    : cpus_(cpus), pace_(pace), limits_(std::move(cpus), l3_bytes) {}

double Runner::probe(Entry& entry) {
  if (entry.copy) return entry.cell.kv_bytes() / time_calls(*entry.copy, entry.copies);
  const double rate = limits_.probe(entry.bound.probe, entry.cell.threads);
  double& best = drifts_[{entry.bound.probe, entry.cell.threads}].best;
  best = std::max(best, rate);
  return rate * entry.bound.factor;
}

// A burst of several calls begins with one that is not counted: the probe and the other cells have
// used the caches.
double Runner::burst(Entry& entry) const {
  if (entry.calls > 1) entry.call->run();
  return time_calls(*entry.call, entry.calls);
}

double Runner::best_of_some(Probe probe, int threads) {
  double best = 0.0;
  for (int i = 0; i < kStageProbes; ++i) best = std::max(best, limits_.probe(probe, threads));
  return best;
}

void Runner::begin_stage(const std::vector<Cell>& cells) {
  drifts_.clear();
  for (const Cell& cell : cells) {
    if (cell.limit == LimitKind::kNone || cell.limit == LimitKind::kRowCopy) continue;
    const Limits::Bound bound = limits_.bound(cell.limit, cell.threads);
    if (drifts_.count({bound.probe, cell.threads}) != 0) continue;
    const double before = best_of_some(bound.probe, cell.threads);
    drifts_[{bound.probe, cell.threads}] = {before, before, 0.0};
  }
}

Runner::Drifts Runner::end_stage() {
  store_.clear();
  for (auto& [key, drift] : drifts_) {
    drift.after = best_of_some(key.first, key.second);
    drift.best = std::max(drift.best, drift.after);
  }
  return std::move(drifts_);
}

std::vector<CellResult> Runner::measure(const std::vector<Cell>& set) {
  std::vector<Entry> entries;
  for (const Cell& cell : set) {
    Device device;
    device.set_num_workers(cell.threads);
    Entry entry;
    entry.cell = cell;
    entry.call = make_call(cell, device, store_);
    entry.calls = calls_for(*entry.call, pace_.burst);
    if (cell.limit == LimitKind::kRowCopy) {
      std::unique_ptr<Workers>& copiers = copiers_[cell.threads];
      if (!copiers) copiers = std::make_unique<Workers>(cell.threads, cpus_);
      entry.copy = make_row_copy(cell, *copiers, store_);
      entry.copies = calls_for(*entry.copy, kCopyProbe);
    } else {
      entry.bound = limits_.bound(cell.limit, cell.threads);
    }
    entries.push_back(std::move(entry));
  }
  const auto kept_of = [this](const Entry& entry) {
    // Bandwidth drifts with the neighbours from minute to minute: there only the set's own seconds
    // tell what is slow.
    if (entry.copy || is_read(entry.bound.probe))
      return keep_rounds(entry.rounds, best_probe(entry.rounds, true));
    const double stage =
        drifts_.at({entry.bound.probe, entry.cell.threads}).best * entry.bound.factor;
    return keep_rounds(entry.rounds, std::max(stage, best_probe(entry.rounds, false)));
  };
  const auto fewest_kept = [&] {
    int fewest = pace_.wanted_rounds;
    for (const Entry& entry : entries) fewest = std::min(fewest, kept_of(entry).kept());
    return fewest;
  };
  const Clock::time_point begin = Clock::now();
  for (int round = 0;; ++round) {
    // Forwards and backwards in turn: no cell always follows the same one.
    for (std::size_t i = 0; i < entries.size(); ++i) {
      Entry& entry = entries[round % 2 == 0 ? i : entries.size() - 1 - i];
      Round now;
      now.before = probe(entry);
      now.seconds = burst(entry);
      now.after = probe(entry);
      entry.rounds.push_back(now);
    }
    const int fewest = fewest_kept();
    const double spent = seconds_since(begin);
    if (fewest >= pace_.wanted_rounds) break;
    if (spent > pace_.patience && (fewest >= kFewestRounds || round + 1 >= kMostRounds)) break;
  }
  std::vector<CellResult> results;
  for (const Entry& entry : entries) {
    const KeptRounds kept = kept_of(entry);
    CellResult result;
    result.cell = entry.cell;
    result.implementation = entry.call->implementation();
    result.kept = kept.kept();
    result.dropped = kept.dropped;
    result.limit = kept.limit;
    if (result.steady()) result.seconds = median(kept.seconds);
    results.push_back(result);
  }
  return results;
}

}  // namespace tegula::program
