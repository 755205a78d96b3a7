// SPDX-License-Identifier: Apache-2.0
// What a forward may take beside its operands (contract, "Plans, workspace, threads").
#include <gtest/gtest.h>
#include <tegula/tegula.hpp>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/allocation_util.hpp"

namespace {

using tegula_test::num_allocations;

constexpr int64_t kMiB = int64_t{1} << 20;

struct Problem {
  int64_t seqlen_q, seqlen_k, heads, head_dim;
};

class Memory : public ::testing::Test {
 protected:
  void make(const Problem& p) {
    // bf16 1.0 everywhere: only sizes matter.
    q_.assign(static_cast<size_t>(p.seqlen_q * p.heads * p.head_dim), 0x3f80);
    k_.assign(static_cast<size_t>(p.seqlen_k * p.heads * p.head_dim), 0x3f80);
    o_.assign(q_.size(), 0);
    using tegula::Dtype;
    args_ = {.q = {q_, Dtype::kBf16, {1, p.seqlen_q, p.heads, p.head_dim}},
             .k = {k_, Dtype::kBf16, {1, p.seqlen_k, p.heads, p.head_dim}},
             .v = {k_, Dtype::kBf16, {1, p.seqlen_k, p.heads, p.head_dim}},
             .o = {o_, Dtype::kBf16, {1, p.seqlen_q, p.heads, p.head_dim}}};
  }

  std::vector<uint16_t> q_, k_, o_;
  tegula::ForwardArgs args_;
};

// kB of a line of /proc/self/status, in bytes; -1 without it.
int64_t process_status(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == name + ":" && status >> kilobytes) return kilobytes * 1024;
  }
  return -1;
}

// Sets VmHWM, the peak of resident memory, to what is resident now.
bool reset_peak() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << 5 << std::flush;
  return clear.good();
}

TEST_F(Memory, ScratchOfLongSequencesIsTilesAndPartialsOnly) {
  for (const int64_t seqlen_q : {int64_t{1}, int64_t{512}, int64_t{32768}}) {
    make({seqlen_q, 32768, 4, 128});
    for (const int32_t workers : {1, 2, 64}) {
      const tegula::Plan plan(tegula::Problem(args_), tegula::Device().set_num_workers(workers));
      EXPECT_LE(static_cast<int64_t>(plan.workspace_size()), 2 * workers * kMiB + 64 * kMiB)
          << seqlen_q << " queries, " << workers << " workers";
    }
  }
}

TEST_F(Memory, PeakOfA32kForwardIsItsScratch) {
  if (!TEGULA_COUNT_ALLOCATIONS) GTEST_SKIP() << "sanitizers keep memory of their own";
  struct Run {
    Problem problem;
    tegula::Options options;
  };
  for (const Run& run : {Run{{32768, 32768, 1, 16}, {.causal = true, .window_left = 2047}},
                         Run{{1024, 32768, 1, 32}, {.causal = true}},
                         Run{{1, 32768, 2, 64}, {}}}) {
    make(run.problem);
    const tegula::Plan plan(tegula::Problem(args_, run.options),
                            tegula::Device().set_num_workers(2));
    tegula::trim_memory();
    if (!reset_peak()) GTEST_SKIP() << "/proc/self/clear_refs is not writable";
    const int64_t before = process_status("VmRSS");
    plan.forward(args_);
    const int64_t extra = process_status("VmHWM") - before;
    // Threads, their stacks and the rounding to huge pages come on top. The scores alone would be
    // 4 GiB in the first run and 128 MiB in the second.
    EXPECT_LE(extra, static_cast<int64_t>(plan.workspace_size()) + 8 * kMiB)
        << run.problem.seqlen_q << " queries";
    EXPECT_GE(extra, 0);
  }
}

TEST_F(Memory, WithWorkspaceACallAllocatesNothingAfterTheFirst) {
  if (!TEGULA_COUNT_ALLOCATIONS) GTEST_SKIP() << "operator new belongs to the sanitizer";
  tegula::trim_memory();
  for (const Problem& problem : {Problem{1, 9000, 2, 64}, Problem{300, 300, 3, 32}}) {
    make(problem);
    const tegula::Plan plan{tegula::Problem(args_)};
    std::vector<std::byte> workspace(plan.workspace_size());
    const tegula::Execution execution{.workspace = workspace};
    plan.forward(args_, execution);
    const int64_t before = num_allocations();
    EXPECT_GT(before, 0);
    for (int round = 0; round < 10; ++round) plan.forward(args_, execution);
    EXPECT_EQ(num_allocations(), before);
  }
  EXPECT_EQ(tegula::trim_memory(), 0u) << "the pool of scratch blocks was used";
}

}  // namespace
