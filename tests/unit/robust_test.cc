// SPDX-License-Identifier: Apache-2.0
// All operations at once, over the case table: from many threads, ten thousand times, and through
// threads that come and go. Results keep their bits, errors their thread, and memory its size.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>
#include <tegula/tegula.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/cases/append_case.hpp"
#include "tests/cases/combine_case.hpp"
#include "tests/cases/forward_case.hpp"
#include "tests/unit/executor_util.hpp"

namespace tegula::cases {
namespace {

using tegula::testing::InlineExecutor;
using tegula::testing::ThreadExecutor;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kPlainHeap = false;  // the sanitizer's own allocator and shadow grow
#else
constexpr bool kPlainHeap = true;
#endif

constexpr int32_t kMaxWorkers = 3;

struct DestroyPlan {
  void operator()(tegula_plan* plan) const { tegula_plan_destroy(plan); }
};
using PlanPointer = std::unique_ptr<tegula_plan, DestroyPlan>;

// A case with memory of its own, to be called again and again.
class Call {
 public:
  explicit Call(const Case& item) : item_(&item) {
    switch (item.op) {
      case Op::kForward:
        forward_ = std::make_unique<ForwardData>(item, Placement::kAligned, kPoison);
        break;
      case Op::kAppendKv:
        append_ = std::make_unique<AppendData>(item, Placement::kAligned, kPoison);
        break;
      case Op::kCombine:
        combine_ = std::make_unique<CombineData>(item, Placement::kAligned, kPoison);
        break;
    }
  }

  const Case& item() const { return *item_; }
  bool is_forward() const { return forward_ != nullptr; }

  // describe and plan, from nothing. NULL if it is refused.
  PlanPointer plan(int32_t num_workers) const {
    tegula_problem problem{};
    tegula_device device{};
    tegula_plan* plan = nullptr;
    if (forward_->problem(&problem) != TEGULA_OK) return nullptr;
    if (tegula_device_init(&device) != TEGULA_OK) return nullptr;
    device.num_workers = num_workers;
    if (tegula_plan_create(&problem, &device, &plan) != TEGULA_OK) return nullptr;
    return PlanPointer(plan);
  }

  // A plan is needed for forwards only.
  tegula_status run(const tegula_plan* plan, const tegula_executor* executor = nullptr) {
    tegula_execution execution{};
    tegula_execution_init(&execution);
    execution.executor = executor;
    if (forward_) {
      forward_->refill_outputs(kPoison);
      return tegula_forward(plan, &forward_->args(), &execution);
    }
    if (append_) return tegula_append_kv(&append_->args(), &execution);
    return tegula_combine(&combine_->args(), &execution);
  }

  // A call of the same operation whose first tensor has `rank` dimensions, more than there can be.
  tegula_status run_wrong(int32_t rank) const {
    if (append_) {
      tegula_append_kv_args args = append_->args();
      tegula_tensor wrong = *args.k_new;
      wrong.ndim = rank;
      args.k_new = &wrong;
      return tegula_append_kv(&args, nullptr);
    }
    if (combine_) {
      tegula_combine_args args = combine_->args();
      tegula_tensor wrong = *args.o_partial;
      wrong.ndim = rank;
      args.o_partial = &wrong;
      return tegula_combine(&args, nullptr);
    }
    tegula_forward_args args = forward_->args();
    tegula_problem problem{};
    tegula_problem_init(&problem);
    tegula_tensor wrong = *args.q;
    wrong.ndim = rank;
    args.q = &wrong;
    return tegula_describe_forward(&args, &problem);
  }

  std::vector<std::byte> bits() const {
    if (forward_) return forward_->used_bits();
    if (combine_) return combine_->used_bits();
    std::vector<std::byte> bits = append_->k_cache.memory.copy();
    for (const Operand* operand : {&append_->v_cache, &append_->q_out}) {
      const std::vector<std::byte> more = operand->memory.copy();
      bits.insert(bits.end(), more.begin(), more.end());
    }
    return bits;
  }

 private:
  const Case* item_;
  std::unique_ptr<ForwardData> forward_;
  std::unique_ptr<AppendData> append_;
  std::unique_ptr<CombineData> combine_;
};

int64_t work_of(const Case& item) {
  const auto sum = [](const std::vector<int64_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  };
  return std::max<int64_t>(sum(item.seqlens_q), 1) * std::max<int64_t>(sum(item.seqlens_k), 1) *
         item.num_heads_q * std::max(item.head_dim, item.head_dim_v);
}

// Every `step`-th small case of each operation. Rotation in place is no call to repeat.
std::vector<Case> small_cases(std::size_t step) {
  constexpr int64_t kMostWork = 4 << 20;
  std::vector<Case> chosen;
  std::size_t seen[3] = {};
  for (const Case& item : load_table(default_folder() + "/table")) {
    if (!item.has_tag("fast") || item.rotate_q == "in_place") continue;
    if (item.op == Op::kForward && work_of(item) > kMostWork) continue;
    if (seen[static_cast<int>(item.op)]++ % step == 0) chosen.push_back(item);
  }
  return chosen;
}

TEST(Robust, MixedCallersKeepTheirBits) {
  constexpr int kCallers = 6;
  const std::vector<Case> items = small_cases(6);
  std::vector<PlanPointer> plans;  // shared by all callers
  std::vector<std::vector<std::byte>> expected;
  int refused = 0;
  for (const Case& item : items) {
    Call call(item);
    plans.push_back(call.is_forward() ? call.plan(kMaxWorkers) : nullptr);
    const bool legal = (plans.back() != nullptr || !call.is_forward()) &&
                       call.run(plans.back().get()) == TEGULA_OK;
    expected.push_back(legal ? call.bits() : std::vector<std::byte>{});
    refused += !legal;
  }
  ASSERT_GT(items.size(), 50u);
  ASSERT_LT(refused, static_cast<int>(items.size()) / 4);

  std::atomic<int> wrong_bits{0}, wrong_status{0}, wrong_text{0};
  const auto caller = [&](int id) {
    std::vector<std::unique_ptr<Call>> calls;
    for (const Case& item : items) calls.push_back(std::make_unique<Call>(item));
    std::vector<std::size_t> order(items.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937 random(static_cast<unsigned>(id));
    ThreadExecutor threads(2);
    InlineExecutor inline_executor;
    const tegula_executor* executors[] = {nullptr, threads.c(), inline_executor.c()};
    for (int round = 0; round < 3; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t n : order) {
        Call& call = *calls[n];
        const int32_t rank = 1000 * (id + 1) + 7;
        if (random() % 4 == 0) {
          // What this thread did wrong must not reach another thread's text, nor the other way.
          if (call.run_wrong(rank) == TEGULA_OK) ++wrong_status;
          std::this_thread::yield();
          if (std::string(tegula_last_error()).find(std::to_string(rank)) == std::string::npos)
            ++wrong_text;
        }
        if (expected[n].empty()) continue;
        const PlanPointer own = call.is_forward() && random() % 2 == 0 ? call.plan(2) : nullptr;
        const tegula_plan* plan = own ? own.get() : plans[n].get();
        if (call.run(plan, executors[random() % 3]) != TEGULA_OK) ++wrong_status;
        if (call.bits() != expected[n]) ++wrong_bits;
      }
    }
  };
  std::atomic<bool> stop{false};
  std::thread bystander([&] {
    while (!stop) {
      tegula::trim_memory();
      tegula::capability("num_workers");
      tegula::Device device;
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> callers;
  for (int id = 0; id < kCallers; ++id) callers.emplace_back(caller, id);
  for (std::thread& thread : callers) thread.join();
  stop = true;
  bystander.join();
  EXPECT_EQ(wrong_bits, 0);
  EXPECT_EQ(wrong_status, 0);
  EXPECT_EQ(wrong_text, 0);
}

// What a process holds that calls could leak.
struct Holdings {
  int64_t heap, resident, descriptors, threads;
};

Holdings holdings() {
  const auto entries = [](const char* folder) {
    return static_cast<int64_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
  };
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  const struct mallinfo2 info = mallinfo2();
  return {static_cast<int64_t>(info.uordblks + info.hblkhd), resident * sysconf(_SC_PAGESIZE),
          entries("/proc/self/fd"), entries("/proc/self/task")};
}

void expect_no_growth(const Holdings& before, const Holdings& after) {
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_LE(after.threads, before.threads);
  if (!kPlainHeap) return;
  EXPECT_LE(after.heap, before.heap + (int64_t{64} << 10));
  EXPECT_LE(after.resident, before.resident + (int64_t{4} << 20));
}

// Under LeakSanitizer also a test that nothing leaks.
TEST(Robust, TenThousandVariedCallsLeaveNothingBehind) {
  const std::vector<Case> items = small_cases(1);
  std::vector<std::unique_ptr<Call>> calls;
  for (const Case& item : items) calls.push_back(std::make_unique<Call>(item));
  std::mt19937 random(3);
  ThreadExecutor threads(2);
  InlineExecutor inline_executor;
  int64_t finished = 0, refused = 0;
  std::string text;
  text.reserve(8192);

  const auto step = [&](Call& call, int32_t num_workers, const tegula_executor* executor) {
    if (random() % 8 == 0) {
      EXPECT_NE(call.run_wrong(77), TEGULA_OK);
      ++refused;
      return;
    }
    tegula_status status = TEGULA_UNSUPPORTED;
    if (!call.is_forward()) {
      status = call.run(nullptr, executor);
    } else if (const PlanPointer plan = call.plan(num_workers)) {
      std::size_t needed = 0;
      text.resize(8192);
      EXPECT_EQ(tegula_explain(plan.get(), text.data(), text.size(), &needed), TEGULA_OK);
      status = call.run(plan.get(), executor);
    }
    ++(status == TEGULA_OK ? finished : refused);
  };
  // Once each, with as many workers as there will be: what the library keeps, it has then.
  for (const auto& call : calls) step(*call, kMaxWorkers, nullptr);
  for (const auto& call : calls) step(*call, kMaxWorkers, inline_executor.c());
  finished = refused = 0;
  Holdings settled = holdings();
  for (int n = 0; n < 10'000; ++n) {
    const auto num_workers = static_cast<int32_t>(2 + random() % (kMaxWorkers - 1));
    const tegula_executor* executors[] = {nullptr, nullptr, inline_executor.c(), threads.c()};
    // Starting threads is dear: one call in sixteen.
    step(*calls[random() % calls.size()], num_workers, executors[random() % (n % 4 == 0 ? 4 : 3)]);
    if (n == 999) settled = holdings();
  }
  EXPECT_GT(finished, 7'000);
  EXPECT_GT(refused, 500);
  expect_no_growth(settled, holdings());
}

TEST(Robust, CallersThatComeAndGoLeaveNothingBehind) {
  const std::vector<Case> items = small_cases(12);
  std::vector<std::unique_ptr<Call>> calls;
  for (const Case& item : items) calls.push_back(std::make_unique<Call>(item));
  const auto round = [&](Call& call) {
    std::thread([&] {
      const PlanPointer plan = call.is_forward() ? call.plan(kMaxWorkers) : nullptr;
      if (plan != nullptr || !call.is_forward()) call.run(plan.get());
      call.run_wrong(77);
    }).join();
  };
  for (const auto& call : calls) round(*call);
  const Holdings settled = holdings();
  for (std::size_t n = 0; n < 600; ++n) round(*calls[n % calls.size()]);
  expect_no_growth(settled, holdings());
}

}  // namespace
}  // namespace tegula::cases
