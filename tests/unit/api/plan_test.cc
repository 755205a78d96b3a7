// SPDX-License-Identifier: Apache-2.0
// Plans: pure, explained, independent of what happens to the caller's structures.
#include <thread>

#include "tests/unit/allocation_util.hpp"
#include "tests/unit/api/call_fixture.hpp"

namespace {

using namespace tegula_test;

tegula_plan_info info_of(const tegula_plan* plan) {
  tegula_plan_info info;
  EXPECT_EQ(tegula_plan_info_init(&info), TEGULA_OK);
  EXPECT_EQ(tegula_plan_get_info(plan, &info), TEGULA_OK) << tegula_last_error();
  return info;
}

std::string explain(const tegula_plan* plan) {
  size_t needed = 0;
  EXPECT_EQ(tegula_explain(plan, nullptr, 0, &needed), TEGULA_OK) << tegula_last_error();
  std::string text(needed, 'x');
  EXPECT_EQ(tegula_explain(plan, text.data(), needed, nullptr), TEGULA_OK);
  EXPECT_EQ(text.back(), '\0');
  text.pop_back();
  return text;
}

TEST(Plan, IsPure) {
  ForwardFixture f(Layout::kDense, TEGULA_BF16);
  ASSERT_EQ(f.describe(), TEGULA_OK);
  const tegula_problem before = f.problem;
  const PlanHandle first = make_plan(f.problem);
  EXPECT_EQ(std::memcmp(&before, &f.problem, sizeof before), 0) << "the problem is only read";
  // Other plans and calls in between, and a caller who changes its structure, are of no account.
  ForwardFixture other(Layout::kPaged);
  ASSERT_EQ(other.describe(), TEGULA_OK);
  other.problem.num_splits = 7;
  const PlanHandle between = make_plan(other.problem);
  ASSERT_EQ(tegula_forward(between.get(), &other.args, nullptr), TEGULA_OK);
  const PlanHandle second = make_plan(f.problem);
  f.problem.softcap = 30;
  f.problem.num_heads_q = 64;
  EXPECT_EQ(explain(first.get()), explain(second.get()));
  const tegula_plan_info a = info_of(first.get()), b = info_of(second.get());
  EXPECT_EQ(std::memcmp(&a, &b, sizeof a), 0);
  EXPECT_EQ(tegula_forward(first.get(), &f.args, nullptr), TEGULA_OK) << tegula_last_error();
}

TEST(Plan, InfoIsConsistent) {
  ForwardFixture f(Layout::kDense);
  ASSERT_EQ(f.describe(), TEGULA_OK);
  tegula_device device;
  ASSERT_EQ(tegula_device_init(&device), TEGULA_OK);
  EXPECT_EQ(device.kind, TEGULA_CPU);
  EXPECT_GE(device.num_workers, 1);
  device.num_workers = 3;
  device.isa = TEGULA_ISA_SCALAR;
  const PlanHandle plan = make_plan(f.problem, &device);
  const tegula_plan_info info = info_of(plan.get());
  EXPECT_EQ(info.struct_size, sizeof info);
  EXPECT_STREQ(info.implementation, "cpu_scalar");
  EXPECT_EQ(info.device_kind, TEGULA_CPU);
  EXPECT_EQ(info.isa, TEGULA_ISA_SCALAR);
  EXPECT_EQ(info.num_workers, 3);
  EXPECT_GE(info.tile_m, 1);
  EXPECT_GE(info.tile_n, 1);
  EXPECT_GE(info.num_splits, 1);
  EXPECT_GT(info.scratch_bytes, 0u);
  EXPECT_EQ(info.state_bytes, 0u);
  EXPECT_EQ(tegula_prepare(plan.get()), TEGULA_OK);
}

TEST(Plan, ForcedSplitsAreToldInTheScratch) {
  ForwardFixture f(Layout::kDense);
  ASSERT_EQ(f.describe(), TEGULA_OK);
  f.problem.num_splits = 1;
  const tegula_plan_info one = info_of(make_plan(f.problem).get());
  f.problem.num_splits = 5;
  const PlanHandle plan = make_plan(f.problem);
  const tegula_plan_info five = info_of(plan.get());
  EXPECT_EQ(five.num_splits, 5);
  // contract.md, 7: splits x rows x (head_dim_v + 1) x 4 bytes.
  EXPECT_GE(five.scratch_bytes - one.scratch_bytes, 5u * 24 * 17 * 4);
  EXPECT_LT(five.scratch_bytes - one.scratch_bytes, 5u * 24 * 17 * 4 + 4096);
}

// Sizes whose products leave 64 bits: partials of automatic splits stay within contract.md, 7's 64 MiB.
TEST(Plan, AutomaticSplitsStayAffordable) {
  ForwardFixture f(Layout::kDense);
  ASSERT_EQ(f.describe(), TEGULA_OK);
  f.problem.batch = 1;
  f.problem.seqlen_q = int64_t{1} << 36;
  f.problem.num_heads_q = 8;
  f.problem.num_heads_kv = 1;
  f.problem.seqlen_k = 1;
  const size_t tiles = info_of(make_plan(f.problem).get()).scratch_bytes;
  f.problem.seqlen_k = int64_t{1} << 40;
  const size_t split = info_of(make_plan(f.problem).get()).scratch_bytes;
  EXPECT_GT(split, tiles);
  EXPECT_LE(split, tiles + (size_t{64} << 20));
  f.problem.batch = 0;
  f.problem.num_heads_q = int64_t{1} << 40;
  EXPECT_LE(info_of(make_plan(f.problem).get()).scratch_bytes, tiles + (size_t{64} << 20));
}

TEST(Explain, TwoCalls) {
  ForwardFixture f(Layout::kDense);
  ASSERT_EQ(f.describe(), TEGULA_OK);
  const PlanHandle plan = make_plan(f.problem);
  const std::string text = explain(plan.get());
  EXPECT_NE(text.find(info_of(plan.get()).implementation), std::string::npos) << text;
  EXPECT_NE(text.find("cuda"), std::string::npos) << "the refused candidates are named\n" << text;
  EXPECT_EQ(text.find('\0'), std::string::npos);

  // A short buffer gets what fits, ended by 0, and nothing behind it is written.
  for (const size_t size : {size_t{1}, size_t{2}, size_t{10}, text.size(), text.size() + 1}) {
    std::string buffer(text.size() + 8, '#');
    size_t needed = 0;
    ASSERT_EQ(tegula_explain(plan.get(), buffer.data(), size, &needed), TEGULA_OK);
    EXPECT_EQ(needed, text.size() + 1);
    EXPECT_EQ(buffer.substr(0, size - 1), text.substr(0, size - 1));
    EXPECT_EQ(buffer[size - 1], '\0');
    EXPECT_EQ(buffer.find_first_not_of('#', size), std::string::npos);
  }
  EXPECT_EQ(tegula_explain(plan.get(), nullptr, 0, nullptr), TEGULA_OK);
  EXPECT_EQ(tegula_explain(plan.get(), nullptr, 5, nullptr), TEGULA_INVALID_ARGUMENT);
  EXPECT_STREQ(tegula_last_error(), "text: is NULL, but size is 5");
  EXPECT_EQ(tegula_explain(nullptr, nullptr, 0, nullptr), TEGULA_INVALID_ARGUMENT);
}

// contract.md, 7: with workspace given, a call allocates nothing after the first on its thread; and
// refusals never do.
TEST(Plan, CallsAllocateNothing) {
  if (!TEGULA_COUNT_ALLOCATIONS) GTEST_SKIP() << "operator new belongs to the sanitizer";
  ForwardFixture f(Layout::kPaged);
  ASSERT_EQ(f.describe(), TEGULA_OK);
  tegula_device device;
  ASSERT_EQ(tegula_device_init(&device), TEGULA_OK);
  device.num_workers = 1;
  const PlanHandle plan = make_plan(f.problem, &device);
  std::vector<unsigned char> workspace(info_of(plan.get()).scratch_bytes);
  tegula_execution execution;
  ASSERT_EQ(tegula_execution_init(&execution), TEGULA_OK);
  execution.workspace = workspace.data();
  execution.workspace_size = workspace.size();
  AppendFixture a(Layout::kPaged);
  CombineFixture c(Layout::kDense);
  tegula_status status[6];
  const auto call_all = [&] {
    status[0] = tegula_forward(plan.get(), &f.args, &execution);
    status[1] = tegula_append_kv(&a.args, &execution);
    status[2] = tegula_combine(&c.args, &execution);
    f.page_table.buffer->i32()[0] = -1;
    status[3] = tegula_forward(plan.get(), &f.args, &execution);
    f.page_table.buffer->i32()[0] = 3;
    f.problem.num_splits = 5000;
    tegula_plan* none = nullptr;
    status[4] = tegula_plan_create(&f.problem, &device, &none);
    f.problem.num_splits = 0;
    status[5] = tegula_describe_forward(&f.args, &f.problem);
  };
  call_all();
  const int64_t before = num_allocations();
  call_all();
  EXPECT_EQ(num_allocations(), before);
  EXPECT_EQ(status[0], TEGULA_OK);
  EXPECT_EQ(status[1], TEGULA_OK);
  EXPECT_EQ(status[2], TEGULA_OK);
  EXPECT_EQ(status[3], TEGULA_INVALID_ARGUMENT);
  EXPECT_EQ(status[4], TEGULA_INVALID_ARGUMENT);
  EXPECT_EQ(status[5], TEGULA_OK);
}

TEST(Plan, MayBeSharedBetweenThreads) {
  std::vector<std::unique_ptr<ForwardFixture>> fixtures;
  for (int i = 0; i < 4; ++i) {
    fixtures.push_back(std::make_unique<ForwardFixture>(Layout::kPaged));
    ASSERT_EQ(fixtures.back()->describe(), TEGULA_OK);
  }
  const PlanHandle plan = make_plan(fixtures[0]->problem);
  std::vector<std::thread> threads;
  std::vector<int> failures(4, 0);
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 50; ++n) {
        if (tegula_forward(plan.get(), &fixtures[i]->args, nullptr) != TEGULA_OK) ++failures[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(failures[i], 0);
    EXPECT_EQ(
        std::memcmp(fixtures[i]->o.buffer->data(), fixtures[0]->o.buffer->data(), Buffer::kSize),
        0);
  }
}

}  // namespace
