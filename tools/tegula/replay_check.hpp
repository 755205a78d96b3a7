// SPDX-License-Identifier: Apache-2.0
// Judges what a replay computed: every element of o and lse against the fp64 reference on the values that lay
// in the cache, the cache's bits against what append_kv has to store, and o against the recorded one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/tegula/replay_engine.hpp"
#include "tools/tegula/replay_standard.hpp"

namespace tegula::program {

enum Phase : std::size_t { kPrefill = 0, kDecode = 1 };

// Ratios of error to tolerance; up to 1 is right, for the recorded o (itself rounded) up to 2.
struct PhaseErrors {
  std::int64_t elements = 0;  // of o and lse, all waves
  double o = 0.0;
  double lse = 0.0;
  double recorded = 0.0;
  double recorded_difference = 0.0;  // the largest |o - recorded|
  double standard = 0.0;             // standard attention's o, by the same rule
};

struct ReplayErrors {
  std::array<PhaseErrors, 2> phases;
  std::int64_t cache_rows = 0;        // K and V rows compared, all waves
  std::int64_t wrong_cache_rows = 0;  // not the bits that append_kv has to store
  bool has_recorded = false;
  bool has_standard = false;
  std::string first_failure;  // where, and both values; empty when all passed

  bool passed() const { return first_failure.empty(); }
};

inline constexpr double kRecordedLimit = 2.0;

// `standard` may be null: not judged then.
ReplayErrors check_replay(const Trace& trace, const ReplayEngine& engine, const Round& round,
                          const StandardReplay* standard, Workers& workers);

}  // namespace tegula::program
