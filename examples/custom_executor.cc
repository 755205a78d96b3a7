// SPDX-License-Identifier: Apache-2.0
// Attention on the caller's own threads and in the caller's own memory. The number of threads
// changes no bit of the result.
#include <tegula/tegula.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

// Starts threads for each loop: the shortest complete executor, not the fastest.
class ThreadExecutor : public tegula::Executor {
 public:
  using Executor::Executor;

  void parallel_for(int64_t count, tegula::Task task) noexcept override {
    std::atomic<int64_t> next{0};
    const auto work = [&](int32_t worker) {
      for (int64_t t; (t = next.fetch_add(1)) < count;) {
        task(t, worker);
        tasks_run.fetch_add(1);
      }
    };
    std::vector<std::thread> threads;
    for (int32_t worker = 1; worker < num_workers(); ++worker) threads.emplace_back(work, worker);
    work(0);
    for (std::thread& thread : threads) thread.join();
  }

  std::atomic<int64_t> tasks_run{0};
};

constexpr int64_t kSeqlen = 200, kHeads = 4, kDim = 32;

std::vector<float> random_values(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / (1 << 23) - 1.0f;
  }
  return values;
}

double largest_error(const std::vector<float>& q, const std::vector<float>& k,
                     const std::vector<float>& v, const std::vector<float>& o) {
  double worst = 0;
  for (int64_t row = 0; row < kSeqlen * kHeads; ++row) {
    const int64_t i = row / kHeads, h = row % kHeads;
    std::vector<double> out(kDim);
    double sum = 0;
    for (int64_t j = 0; j <= i; ++j) {
      const int64_t key = (j * kHeads + h) * kDim;
      double score = 0;
      for (int64_t d = 0; d < kDim; ++d) score += double{q[row * kDim + d]} * k[key + d];
      const double p = std::exp(score / std::sqrt(double{kDim}));
      sum += p;
      for (int64_t d = 0; d < kDim; ++d) out[d] += p * v[key + d];
    }
    for (int64_t d = 0; d < kDim; ++d) {
      worst = std::max(worst, std::abs(o[row * kDim + d] - out[d] / sum));
    }
  }
  return worst;
}

}  // namespace

int main() try {
  const tegula::Extents shape{1, kSeqlen, kHeads, kDim};
  const size_t count = kSeqlen * kHeads * kDim;
  const std::vector<float> q = random_values(count, 1), k = random_values(count, 2),
                           v = random_values(count, 3);
  std::vector<float> o(count), o_single(count);

  // The plan's device says how many tasks may run at once; scratch is sized by it.
  tegula::Device device;
  device.set_num_workers(3);
  const tegula::ForwardArgs args{
      .q = {q, shape}, .k = {k, shape}, .v = {v, shape}, .o = {o, shape}};
  const tegula::Plan plan(tegula::Problem(args, {.causal = true}), device);
  std::vector<std::byte> workspace(plan.workspace_size());

  ThreadExecutor three(3), one(1);
  plan.forward(args, {.executor = &three, .workspace = workspace});
  tegula::ForwardArgs single = args;
  single.o = {o_single, shape};
  plan.forward(single, {.executor = &one, .workspace = workspace});

  const double error = largest_error(q, k, v, o);
  std::printf("%lld tasks on 3 threads, largest error %.2e, %s with 1 thread\n",
              static_cast<long long>(three.tasks_run.load()), error,
              o == o_single ? "same bits" : "OTHER BITS");
  return error < 1e-5 && o == o_single && three.tasks_run > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const tegula::Error& error) {
  std::fprintf(stderr, "custom_executor: %s\n", error.what());
  return EXIT_FAILURE;
}
