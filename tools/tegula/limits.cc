// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3 -ffp-contract=fast (tools/CMakeLists.txt): x = x * a + b is one multiply-add.
#include "tools/tegula/limits.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "tools/tegula/vector_type.hpp"

namespace tegula::program {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr int kChains = 12;  // enough for a latency of 4 to 5 cycles on two pipes
constexpr std::int64_t kSteps = 200000;

template <int kLanes>
TEGULA_INLINE float chains_body(float a, float b) {
  using Vector = typename VectorType<kLanes>::type;
  Vector acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = Vector{} + static_cast<float>(i);
  for (std::int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = acc[i] * a + b;
  }
  float sum = 0.0F;
  for (int i = 0; i < kChains; ++i) sum += acc[i][0];
  return sum;
}

// Adds up `count` vectors of each of `streams` consecutive parts.
template <int kLanes>
TEGULA_INLINE float read_body(const float* data, std::int64_t elements, int streams) {
  using Vector = typename VectorType<kLanes>::type;
  const std::int64_t part = elements / streams / (4 * kLanes) * (4 * kLanes);
  Vector acc[4] = {};
  for (std::int64_t i = 0; i < part; i += 4 * kLanes) {
    for (int s = 0; s < streams; ++s) {
      for (int j = 0; j < 4; ++j) {
        Vector x;
        std::memcpy(&x, data + s * part + i + j * kLanes, sizeof x);
        acc[j] += x;
      }
    }
  }
  const Vector sum = acc[0] + acc[1] + acc[2] + acc[3];
  return sum[0] + sum[1];
}

struct Kernels {
  float (*chains)(float, float);
  float (*read)(const float*, std::int64_t, int);
  int lanes;
};

#define TEGULA_LIMIT_KERNELS(name, attribute, lanes)                                       \
  attribute float chains_##name(float a, float b) { return chains_body<lanes>(a, b); }     \
  attribute float read_##name(const float* data, std::int64_t elements, int streams) {     \
    return read_body<lanes>(data, elements, streams);                                      \
  }                                                                                        \
  constexpr Kernels k_##name = {chains_##name, read_##name, lanes};

TEGULA_LIMIT_KERNELS(base, , 4)
#if defined(__x86_64__)
TEGULA_LIMIT_KERNELS(avx2, __attribute__((target("avx2,fma"))), 8)
TEGULA_LIMIT_KERNELS(avx512, __attribute__((target("avx512f,avx2,fma"))), 16)
#endif

const Kernels& kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return k_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return k_avx2;
#endif
  return k_base;
}

// Read only so that the loops above have to run.
std::atomic<float> unused_result{0.0F};

class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return;
    madvise(data, bytes, MADV_HUGEPAGE);  // where refused, small pages serve
    data_ = static_cast<float*>(data);
  }
  ~Pages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  float* data() const { return data_; }

 private:
  float* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace

double measure_fma(Workers& workers) {
  const Kernels& kernel = kernels();
  double best = 0.0;
  for (int round = 0; round < 5; ++round) {
    const Clock::time_point begin = Clock::now();
    workers.run(workers.num_workers(), [&](std::int64_t, int) {
      unused_result = kernel.chains(0.999F, 0.001F);
    });
    const double operations = 2.0 * kChains * kSteps * kernel.lanes * workers.num_workers();
    best = std::max(best, operations / seconds_since(begin));
  }
  return best;
}

double measure_read(Workers& workers) {
  constexpr std::size_t kBytes = std::size_t{768} << 20;
  const Pages pages(kBytes);
  if (pages.data() == nullptr) return 0.0;
  const Kernels& kernel = kernels();
  const auto elements = static_cast<std::int64_t>(kBytes / sizeof(float));
  const std::int64_t share = elements / workers.num_workers();
  workers.run(workers.num_workers(), [&](std::int64_t task, int) {
    std::fill_n(pages.data() + task * share, share, 1.0F);
  });
  double best = 0.0;
  for (int round = 0; round < 3; ++round) {
    for (const int streams : {1, 2, 4}) {
      const Clock::time_point begin = Clock::now();
      workers.run(workers.num_workers(), [&](std::int64_t task, int) {
        unused_result = kernel.read(pages.data() + task * share, share, streams);
      });
      best = std::max(best, static_cast<double>(kBytes) / seconds_since(begin));
    }
  }
  return best;
}

}  // namespace tegula::program
