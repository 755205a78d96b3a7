// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/limits.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

namespace tegula::program {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds of a probe. Compute rates are the same within 1 % from 3 ms on; bandwidth is shared with
// neighbours, and readings of 3 ms differ by 10 %, of 12 ms by 5 %.
constexpr double kShort = 0.003, kShortRead = 0.012;
constexpr int kTurns = 3;
constexpr std::size_t kDramBytes = std::size_t{1} << 30;  // four times the largest L3 that was seen
constexpr std::size_t kReadBlock = std::size_t{64} << 10;
constexpr std::size_t kPiece = 256;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

const char* probe_name(Probe probe) {
  switch (probe) {
    case Probe::kFma: return "fma";
    case Probe::kDot: return "dot";
    case Probe::kAmx: return "amx";
    case Probe::kDram: return "dram";
    default: return "l3";
  }
}

double rate_of(Workers& team, double seconds, const std::function<double(int)>& block) {
  const int threads = team.num_workers();
  std::vector<double> rates(static_cast<std::size_t>(threads));
  std::atomic<int> missing{threads};
  team.run(threads, [&](std::int64_t, int worker) {
    --missing;
    for (int spins = 0; missing.load() > 0; ++spins)
      spins < 10000 ? pause_briefly() : std::this_thread::yield();
    const Clock::time_point begin = Clock::now();
    double units = 0.0, elapsed = 0.0;
    do {
      units += block(worker);
      elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    } while (elapsed < seconds);
    rates[static_cast<std::size_t>(worker)] = units / elapsed;
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

Limits::Limits(std::vector<int> cpus, std::int64_t l3_bytes)
    : cpus_(std::move(cpus)), l3_bytes_(l3_bytes) {}

bool Limits::has(Probe probe) const {
  if (probe == Probe::kDot) return has_dot();
  if (probe == Probe::kAmx) return has_amx();
  return true;
}

Workers& Limits::team(int threads) {
  std::unique_ptr<Workers>& team = teams_[threads];
  if (!team) team = std::make_unique<Workers>(threads, cpus_);
  return *team;
}

// Filled by the threads that read it.
Limits::Region& Limits::region(Probe probe, int threads) {
  Region& region = regions_[probe];
  if (!region.pages) {
    region.pages = std::make_unique<HugePages>(
        probe == Probe::kDram ? kDramBytes : static_cast<std::size_t>(l3_bytes_));
    const std::size_t words = region.pages->size() / sizeof(std::uint64_t);
    auto* data = reinterpret_cast<std::uint64_t*>(region.pages->data());
    const auto parts = static_cast<std::size_t>(threads);
    team(threads).run(threads, [&](std::int64_t part, int) {
      const auto index = static_cast<std::size_t>(part);
      std::uint64_t value = 0x9e3779b97f4a7c15U * (index + 1);
      for (std::size_t i = words * index / parts; i < words * (index + 1) / parts; ++i) {
        data[i] = value = value * 6364136223846793005U + 1442695040888963407U;
      }
    });
  }
  region.position.resize(std::max(region.position.size(), static_cast<std::size_t>(threads)));
  return region;
}

// Each thread goes round its own part, which it divides among its streams.
double Limits::read_rate(Region& region, int threads, ReadVariant variant, double seconds) {
  const auto streams = static_cast<std::size_t>(variant.streams);
  const std::size_t part = region.pages->size() / static_cast<std::size_t>(threads);
  const std::size_t stride = part / streams / kPiece * kPiece;
  const std::size_t block = std::min(kReadBlock / streams, stride) / kPiece * kPiece;
  return rate_of(team(threads), seconds, [&](int worker) {
    const auto index = static_cast<std::size_t>(worker);
    std::size_t& position = region.position[index];
    if (position + block > stride) position = 0;
    read_block(region.pages->data() + index * part / kPiece * kPiece + position, stride, block,
               variant);
    position += block;
    return static_cast<double>(block * streams);
  });
}

double Limits::run(Probe probe, int threads, ReadVariant variant, double seconds) {
  if (is_read(probe)) return read_rate(region(probe, threads), threads, variant, seconds);
  const ComputeBlock block = probe == Probe::kFma   ? fma_block
                             : probe == Probe::kDot ? dot_block
                                                    : amx_block;
  return rate_of(team(threads), seconds, [block](int) { return block(); });
}

double Limits::measure(Probe probe, int threads, double seconds) {
  Measured& best = measured_[{probe, threads}];
  const std::size_t variants = is_read(probe) ? std::size(kReadVariants) : 1;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (std::size_t v = 0; v < variants; ++v) {
      const double rate = run(probe, threads, kReadVariants[v], seconds);
      if (rate > best.rate) best = {rate, kReadVariants[v]};
    }
  }
  return best.rate;
}

double Limits::measured(Probe probe, int threads) const {
  const auto found = measured_.find({probe, threads});
  return found == measured_.end() ? 0.0 : found->second.rate;
}

ReadVariant Limits::variant(Probe probe, int threads) const {
  return measured_.at({probe, threads}).variant;
}

double Limits::probe(Probe probe, int threads) {
  return run(probe, threads, measured_[{probe, threads}].variant,
             is_read(probe) ? kShortRead : kShort);
}

Limits::Bound Limits::bound(LimitKind kind, int threads) {
  if (kind == LimitKind::kDram) return {Probe::kDram, 1.0};
  if (kind == LimitKind::kL3) return {Probe::kL3, 1.0};
  Bound best = {Probe::kFma, 1.0};
  if (kind == LimitKind::kBf16 || kind == LimitKind::kFp16) {
    const double factor = kind == LimitKind::kBf16 ? 1.0 : 1.0 / 3;
    for (const Probe probe : {Probe::kDot, Probe::kAmx}) {
      if (!has(probe)) continue;
      if (factor * measured(probe, threads) > best.factor * measured(best.probe, threads))
        best = {probe, factor};
    }
  }
  return best;
}

}  // namespace tegula::program
