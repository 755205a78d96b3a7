// SPDX-License-Identifier: Apache-2.0
// Replays of made traces with what the committed one lacks, and the judge's own test: it has to see every wrong value.
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/program/trace_util.hpp"
#include "tools/tegula/replay_check.hpp"
#include "tools/tegula/replay_engine.hpp"
#include "tools/tegula/replay_standard.hpp"

namespace tegula::program {
namespace {

struct Played {
  Folder folder;
  Trace trace;
  Machine machine;
  ReplayEngine engine;
  Round round;

  Played(const MadeTrace& made, ReplaySetup setup, int threads = 1)
      : trace(open(folder, made)), machine({threads, "auto"}), engine(trace, with_all(std::move(setup), trace), machine),
        round(engine.play(0)) {}

  ReplayErrors judge() {
    StandardReplay standard(engine, round, machine.workers());
    standard.play(round.schedule);
    return check_replay(trace, engine, round, &standard, machine.workers());
  }

 private:
  static Trace open(const Folder& folder, const MadeTrace& made) {
    made.write(folder / "trace");
    return Trace::open(folder / "trace");
  }
  static ReplaySetup with_all(ReplaySetup setup, const Trace& trace) {
    for (std::size_t l = 0; l < trace.layers().size(); ++l) setup.layers.push_back(l);
    for (std::size_t p = 0; p < trace.prompts().size(); ++p) setup.prompts.push_back(p);
    setup.steps = 1000;
    return setup;
  }
};

MadeTrace rich(oracle::Format format) {
  return MadeTrace::make(format,
                         {{.number = 0, .window_left = 4},
                          {.number = 7, .num_heads_q = 6, .num_heads_kv = 2, .head_dim = 24, .head_dim_v = 40,
                           .scale = 0.5, .softcap = 3.0, .sink = true},
                          {.number = 11, .num_heads_q = 3, .num_heads_kv = 3, .head_dim = 5, .head_dim_v = 3,
                           .window_left = 0, .sink = true}},
                         {{33, 9}, {1, 12}, {17, 0}});
}

TEST(Replay, PassesWithWindowsSoftcapSinksAndUnequalLayers) {
  for (const auto& [format, dtype] : {std::pair{oracle::Format::kFp32, Dtype::kF32},
                                     std::pair{oracle::Format::kFp16, Dtype::kF16},
                                     std::pair{oracle::Format::kBf16, Dtype::kBf16}}) {
    SCOPED_TRACE(tegula::name(dtype));
    Played played(rich(format), {.dtype = dtype, .cache_dtype = dtype, .page_size = 4}, 2);
    const ReplayErrors errors = played.judge();
    EXPECT_TRUE(errors.passed()) << errors.first_failure;
    EXPECT_TRUE(errors.has_recorded);
    EXPECT_EQ(errors.wrong_cache_rows, 0);
    EXPECT_GT(errors.phases[kDecode].elements, 0);
    // 33 + 9, 1 + 12 and 17 tokens in pages of 4.
    EXPECT_EQ(played.engine.num_pages(), 11 + 4 + 5);
    EXPECT_LE(played.round.pages_peak, played.engine.num_pages());
    EXPECT_GT(played.round.pages_reused, 0);
    EXPECT_EQ(played.engine.play(1).results, played.round.results) << "other pages, other bits";
  }
}

TEST(Replay, OnePromptKeepsItselfCompany) {
  Played played(MadeTrace::make(oracle::Format::kBf16, {{}}, {{10, 6}}), {.page_size = 3});
  EXPECT_TRUE(played.judge().passed());
  std::size_t most = 0;
  bool different = false;
  for (const ScheduledStep& step : played.round.schedule) {
    most = std::max(most, step.sequences.size());
    different = different || (step.sequences.size() > 1 && step.sequences[0].first != step.sequences[1].first);
  }
  EXPECT_EQ(most, 2U);
  EXPECT_TRUE(different) << "the sequences of a batch always had the same length";
}

TEST(Replay, EightBitCachesUseTheirScales) {
  for (const Dtype cache : {Dtype::kE4m3, Dtype::kE5m2}) {
    Played played(rich(oracle::Format::kBf16), {.dtype = Dtype::kBf16, .cache_dtype = cache, .page_size = 8});
    const ReplayErrors errors = played.judge();
    EXPECT_TRUE(errors.passed()) << errors.first_failure;
    EXPECT_FALSE(errors.has_recorded);
    EXPECT_EQ(played.engine.descale_k(1).size(), 2U);
    EXPECT_NE(played.engine.descale_k(1)[0], 1.0F);
  }
}

TEST(Replay, ASequenceWithoutDecodeSteps) {
  Played played(MadeTrace::make(oracle::Format::kFp32, {{}}, {{9, 0}, {4, 0}}),
                {.dtype = Dtype::kF32, .cache_dtype = Dtype::kF32, .page_size = 2});
  const ReplayErrors errors = played.judge();
  EXPECT_TRUE(errors.passed()) << errors.first_failure;
  EXPECT_EQ(errors.phases[kDecode].elements, 0);
}

TEST(ReplayCheck, SeesEveryKindOfWrongValue) {
  const MadeTrace made = rich(oracle::Format::kBf16);
  const ReplaySetup setup = {.page_size = 4};
  struct Mistake {
    std::function<void(Round&)> change;
    const char* text;
  };
  const std::vector<Mistake> mistakes = {
      // The top bit of a bf16 number's exponent.
      {[](Round& r) { r.results[1][0][1].o[2 * 777 + 1] ^= std::byte{0x40}; }, "o "},
      {[](Round& r) { r.results[0][1][0].o[1] ^= std::byte{0x40}; }, "o "},
      {[](Round& r) { r.results[1][0][2].o.back() = std::byte{0xff}; r.results[1][0][2].o.end()[-2] = std::byte{0xff}; },
       "o "},
      {[](Round& r) { r.results[1][1][0].lse[20] += 0.01F; }, "lse "},
      {[](Round& r) { r.results[0][2][1].lse[0] = -INFINITY; }, "lse "},
      {[](Round& r) { r.results[0][0][0].k_rows[5] ^= std::byte{1}; }, "k row 0 in the cache"},
      {[](Round& r) { r.results[0][0][1].v_rows.back() ^= std::byte{1}; }, "in the cache"}};
  for (const Mistake& mistake : mistakes) {
    Played played(made, setup);
    mistake.change(played.round);
    const ReplayErrors errors = played.judge();
    EXPECT_FALSE(errors.passed());
    EXPECT_NE(errors.first_failure.find(mistake.text), std::string::npos)
        << errors.first_failure << "\n  does not hold: " << mistake.text;
  }
}

}  // namespace
}  // namespace tegula::program
