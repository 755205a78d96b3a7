// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3 -ffp-contract=fast (tools/CMakeLists.txt). The bodies are written once over vector types
// and inlined into one function per instruction set.
#include "tools/tegula/standard_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tools/tegula/vector_type.hpp"

namespace tegula::program {
namespace {

constexpr std::int64_t kColumns = 32;    // columns are padded to it: two vectors of the widest kind
constexpr std::int64_t kRowBlock = 48;   // query rows of a task
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t padded(std::int64_t n) { return (n + kColumns - 1) / kColumns * kColumns; }

// C = factor * A B for `rows` rows and `columns` columns (B readable up to whole tiles of 2 * kLanes).
struct Product {
  const float* a;
  std::int64_t lda;
  const float* b;
  std::int64_t ldb;
  float* c;
  std::int64_t ldc;
  std::int64_t rows, columns, depth;
  float factor;
};

template <int kLanes, int kRows>
TEGULA_INLINE void tile(const Product& p, std::int64_t row, std::int64_t column) {
  using Vector = typename VectorType<kLanes>::type;
  const float* a[kRows];
  Vector acc[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    a[r] = p.a + std::min(row + r, p.rows - 1) * p.lda;
    acc[r][0] = acc[r][1] = Vector{};
  }
  const float* b = p.b + column;
  for (std::int64_t k = 0; k < p.depth; ++k, b += p.ldb) {
    Vector b0, b1;
    std::memcpy(&b0, b, sizeof b0);
    std::memcpy(&b1, b + kLanes, sizeof b1);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] += a[r][k] * b0;
      acc[r][1] += a[r][k] * b1;
    }
  }
  const std::int64_t width = std::min<std::int64_t>(2 * kLanes, p.columns - column);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if (row + r >= p.rows) break;
    float* c = p.c + (row + r) * p.ldc + column;
    acc[r][0] *= p.factor;
    acc[r][1] *= p.factor;
    if (width == 2 * kLanes) {
      std::memcpy(c, &acc[r][0], 2 * sizeof(Vector));
    } else {
      std::memcpy(c, &acc[r][0], static_cast<std::size_t>(width) * sizeof(float));
    }
  }
}

template <int kLanes, int kRows>
TEGULA_INLINE void product_body(const Product& p) {
  for (std::int64_t column = 0; column < p.columns; column += 2 * kLanes) {
    std::int64_t row = 0;
    for (; row + 1 < p.rows; row += kRows) tile<kLanes, kRows>(p, row, column);
    if (row < p.rows) tile<kLanes, 1>(p, row, column);
  }
}

// exp(x) for x <= 0: 2^n times a polynomial on [-0.5, 0.5], relative error 1e-7; below -87: 0.
template <int kLanes>
TEGULA_INLINE void exponential(typename VectorType<kLanes>::type& x) {
  using Vector = typename VectorType<kLanes>::type;
  using Integer = typename VectorType<kLanes>::integer;
  const Integer keep = x > -87.0F;
  const Vector t = x * 1.44269504F;
  const Vector n = (t + 12582912.0F) - 12582912.0F;  // 1.5 * 2^23: rounds to an integer
  // ln 2 in two parts keeps the remainder exact to fp32.
  const Vector f = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  Vector p = f * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * f + 8.3334519073e-3F;
  p = p * f + 4.1665795894e-2F;
  p = p * f + 1.6666665459e-1F;
  p = p * f + 5.0000001201e-1F;
  p = p * f * f + f + 1.0F;
  Integer bits = __builtin_convertvector(n, Integer) << 23;
  Integer mantissa;
  std::memcpy(&mantissa, &p, sizeof p);
  bits = (bits + mantissa) & keep;
  std::memcpy(&x, &bits, sizeof x);
}

// Rows of scores -> probabilities in place; `width` is a multiple of kLanes, keys outside [first, last) are
// hidden.
struct Row {
  float* scores;
  std::int64_t width, first, last;
  float softcap;
  bool has_sink;
  float sink;
};

template <int kLanes>
TEGULA_INLINE void softmax_body(const Row& row) {
  using Vector = typename VectorType<kLanes>::type;
  float* s = row.scores;
  if (row.softcap > 0) {
    const float inverse = 1 / row.softcap;
    for (std::int64_t j = row.first; j < row.last; ++j) s[j] = row.softcap * std::tanh(s[j] * inverse);
  }
  for (std::int64_t j = 0; j < std::min(row.first, row.width); ++j) s[j] = -kInfinity;
  for (std::int64_t j = std::max<std::int64_t>(row.last, 0); j < row.width; ++j) s[j] = -kInfinity;
  Vector highest = Vector{} - kInfinity;
  for (std::int64_t j = 0; j < row.width; j += kLanes) {
    Vector x;
    std::memcpy(&x, s + j, sizeof x);
    highest = x > highest ? x : highest;
  }
  float top = row.has_sink ? row.sink : -kInfinity;
  for (int l = 0; l < kLanes; ++l) top = std::max(top, highest[l]);
  if (row.first >= row.last) {
    std::fill_n(s, row.width, 0.0F);
    return;
  }
  Vector sums = Vector{};
  for (std::int64_t j = 0; j < row.width; j += kLanes) {
    Vector x;
    std::memcpy(&x, s + j, sizeof x);
    x -= top;
    exponential<kLanes>(x);
    sums += x;
    std::memcpy(s + j, &x, sizeof x);
  }
  float sum = row.has_sink ? std::exp(row.sink - top) : 0.0F;
  for (int l = 0; l < kLanes; ++l) sum += sums[l];
  const float inverse = 1 / sum;
  for (std::int64_t j = 0; j < row.width; ++j) s[j] *= inverse;
}

// Scores of a few query rows against every key, K as it lies: dot products.
struct Dots {
  const float* q;
  std::int64_t ldq;
  const float* k;
  std::int64_t ldk;
  float* scores;
  std::int64_t lds;
  std::int64_t rows, keys, depth;
  float factor;
};

template <int kLanes>
TEGULA_INLINE float sum_of(const typename VectorType<kLanes>::type& x) {
  if constexpr (kLanes == 1) {
    return x[0];
  } else {
    typename VectorType<kLanes / 2>::type low, high;
    std::memcpy(&low, &x, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&x) + sizeof low, sizeof high);
    const typename VectorType<kLanes / 2>::type half = low + high;
    return sum_of<kLanes / 2>(half);
  }
}

template <int kLanes>
TEGULA_INLINE void dots_body(const Dots& d) {
  using Vector = typename VectorType<kLanes>::type;
  const std::int64_t whole = d.depth / kLanes * kLanes;
  for (std::int64_t j = 0; j < d.keys; ++j) {
    const float* k = d.k + j * d.ldk;
    for (std::int64_t r = 0; r < d.rows; ++r) {
      const float* q = d.q + r * d.ldq;
      Vector acc = Vector{};
      for (std::int64_t i = 0; i < whole; i += kLanes) {
        Vector x, y;
        std::memcpy(&x, q + i, sizeof x);
        std::memcpy(&y, k + i, sizeof y);
        acc += x * y;
      }
      float sum = sum_of<kLanes>(acc);
      for (std::int64_t i = whole; i < d.depth; ++i) sum += q[i] * k[i];
      d.scores[r * d.lds + j] = sum * d.factor;
    }
  }
}

struct Kernels {
  void (*product)(const Product&);        // many rows
  void (*short_product)(const Product&);  // up to four rows
  void (*softmax)(const Row&);
  void (*dots)(const Dots&);
};

// 16 accumulators of 32 registers (AVX-512), 12 of 16 (AVX2, SSE).
#define TEGULA_STANDARD_KERNELS(name, attribute, lanes, rows)                          \
  attribute void product_##name(const Product& p) { product_body<lanes, rows>(p); }    \
  attribute void short_product_##name(const Product& p) { product_body<lanes, 4>(p); } \
  attribute void softmax_##name(const Row& row) { softmax_body<lanes>(row); }          \
  attribute void dots_##name(const Dots& d) { dots_body<lanes>(d); }                   \
  constexpr Kernels k_##name = {product_##name, short_product_##name, softmax_##name, dots_##name};

TEGULA_STANDARD_KERNELS(base, , 4, 6)
#if defined(__x86_64__)
TEGULA_STANDARD_KERNELS(avx2, __attribute__((target("avx2,fma"))), 8, 6)
TEGULA_STANDARD_KERNELS(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), 16, 8)
#endif

const Kernels& kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return k_avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return k_avx2;
#endif
  return k_base;
}

// Where a sequence's scores and packed copies begin, in elements.
struct Placed {
  std::int64_t scores, keys, values;  // keys: [kv head][dim][padded key], values: [kv head][key][padded dim]
};

struct Task {
  std::size_t sequence;
  std::int64_t head, row, rows;
};

Row row_of(const StandardShape& shape, const StandardSequence& s, float* scores, std::int64_t head,
           std::int64_t i) {
  const std::int64_t p = i + s.seqlen_k - s.seqlen_q;
  const std::int64_t last = shape.causal ? std::clamp<std::int64_t>(p + 1, 0, s.seqlen_k) : s.seqlen_k;
  const std::int64_t first = shape.window_left < 0 ? 0 : std::max<std::int64_t>(p - shape.window_left, 0);
  return {scores, padded(s.seqlen_k), first, last, shape.softcap, shape.sink != nullptr,
          shape.sink != nullptr ? shape.sink[head] : 0.0F};
}

// Query rows so few that a packed copy of K would cost more than it saves.
bool is_short(const StandardSequence& s) { return s.seqlen_q < 8; }

}  // namespace

void StandardAttention::forward(const StandardShape& shape, const std::vector<StandardSequence>& batch) {
  const std::int64_t d = shape.head_dim;
  const std::int64_t dv = shape.head_dim_v;
  const std::int64_t dv_padded = padded(dv);
  const std::int64_t heads = shape.num_heads_q;
  const std::int64_t kv_heads = shape.num_heads_kv;
  const std::int64_t group = heads / kv_heads;
  const Kernels& kernel = kernels();

  std::vector<Placed> placed;
  std::vector<Task> pack_tasks, tasks;
  std::int64_t scores = 0, packed = 0;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    const StandardSequence& s = batch[b];
    const std::int64_t width = padded(s.seqlen_k);
    placed.push_back({scores, packed, packed + kv_heads * d * width});
    scores += heads * s.seqlen_q * width;
    packed += kv_heads * (is_short(s) ? 0 : d * width);
    packed += kv_heads * (is_short(s) && dv == dv_padded ? 0 : s.seqlen_k * dv_padded);
    if (is_short(s)) placed.back().values = placed.back().keys;
    for (std::int64_t head = 0; head < kv_heads; ++head) {
      if (!is_short(s) || dv != dv_padded) pack_tasks.push_back({b, head, 0, 0});
      if (is_short(s)) {
        tasks.push_back({b, head, 0, s.seqlen_q});
        continue;
      }
      for (std::int64_t g = 0; g < group; ++g) {
        for (std::int64_t row = 0; row < s.seqlen_q; row += kRowBlock) {
          tasks.push_back({b, head * group + g, row, std::min(kRowBlock, s.seqlen_q - row)});
        }
      }
    }
  }
  const auto grow = [](std::vector<float>& memory, std::int64_t size) {
    if (static_cast<std::int64_t>(memory.size()) < size) memory.resize(static_cast<std::size_t>(size));
  };
  grow(scores_, scores);
  grow(packed_, packed);
  scores_bytes_ = scores_.size() * sizeof(float);
  extra_bytes_ = (scores_.size() + packed_.size()) * sizeof(float);

  const auto run = [&](const std::vector<Task>& list, const auto& body) {
    workers_.run(static_cast<std::int64_t>(list.size()), [&](std::int64_t i, int) {
      body(list[static_cast<std::size_t>(i)]);
    });
  };
  run(pack_tasks, [&](const Task& task) {
    const StandardSequence& s = batch[task.sequence];
    const Placed& at = placed[task.sequence];
    const std::int64_t width = padded(s.seqlen_k);
    if (!is_short(s)) {
      float* keys = packed_.data() + at.keys + task.head * d * width;
      for (std::int64_t j0 = 0; j0 < width; j0 += 16) {
        for (std::int64_t i = 0; i < d; ++i) {
          for (std::int64_t j = j0; j < j0 + 16; ++j) {
            keys[i * width + j] = j < s.seqlen_k ? s.k[(task.head * s.capacity + j) * d + i] : 0.0F;
          }
        }
      }
    }
    float* values = packed_.data() + at.values + task.head * s.seqlen_k * dv_padded;
    for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
      const float* row = s.v + (task.head * s.capacity + j) * dv;
      std::copy_n(row, dv, values + j * dv_padded);
      std::fill(values + j * dv_padded + dv, values + (j + 1) * dv_padded, 0.0F);
    }
  });

  // Few rows: one task does the three passes of a kv head, all its query heads together.
  const auto run_short = [&](const Task& task) {
    const StandardSequence& s = batch[task.sequence];
    const Placed& at = placed[task.sequence];
    const std::int64_t width = padded(s.seqlen_k);
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      float* rows = scores_.data() + at.scores + (i * heads + task.head * group) * width;
      const float* q = s.q + (i * heads + task.head * group) * d;
      kernel.dots({q, d, s.k + task.head * s.capacity * d, d, rows, width, group, s.seqlen_k, d,
                   shape.softmax_scale});
      for (std::int64_t g = 0; g < group; ++g) {
        kernel.softmax(row_of(shape, s, rows + g * width, task.head * group + g, i));
      }
      const bool in_place = dv == dv_padded;
      const float* values = in_place ? s.v + task.head * s.capacity * dv
                                     : packed_.data() + at.values + task.head * s.seqlen_k * dv_padded;
      kernel.short_product({rows, width, values, dv_padded, s.o + (i * heads + task.head * group) * dv, dv, group, dv, s.seqlen_k, 1.0F});
    }
  };
  const auto rows_of = [&](const Task& task) {
    const StandardSequence& s = batch[task.sequence];
    return scores_.data() + placed[task.sequence].scores +
           (task.head * s.seqlen_q + task.row) * padded(s.seqlen_k);
  };
  run(tasks, [&](const Task& task) {
    const StandardSequence& s = batch[task.sequence];
    if (is_short(s)) return run_short(task);
    const std::int64_t width = padded(s.seqlen_k);
    const float* keys = packed_.data() + placed[task.sequence].keys + task.head / group * d * width;
    kernel.product({s.q + (task.row * heads + task.head) * d, heads * d, keys, width, rows_of(task), width,
                    task.rows, width, d, shape.softmax_scale});
  });
  std::erase_if(tasks, [&](const Task& task) { return is_short(batch[task.sequence]); });
  if (tasks.empty()) return;
  run(tasks, [&](const Task& task) {
    const StandardSequence& s = batch[task.sequence];
    for (std::int64_t i = 0; i < task.rows; ++i) {
      kernel.softmax(row_of(shape, s, rows_of(task) + i * padded(s.seqlen_k), task.head, task.row + i));
    }
  });
  run(tasks, [&](const Task& task) {
    const StandardSequence& s = batch[task.sequence];
    const float* values =
        packed_.data() + placed[task.sequence].values + task.head / group * s.seqlen_k * dv_padded;
    kernel.product({rows_of(task), padded(s.seqlen_k), values, dv_padded,
                    s.o + (task.row * heads + task.head) * dv, heads * dv, task.rows, dv, s.seqlen_k, 1.0F});
  });
}

}  // namespace tegula::program
