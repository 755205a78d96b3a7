// SPDX-License-Identifier: Apache-2.0
// How the narrow kernel reads rows of k and v, straight from the cache: in registers they become
// floats for FMA, or bf16 pairs. Values come in the order that costs least, so q is packed in that
// order and o put right at the end.
#pragma once

#include "src/cpu/kernels/score.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

// Products in fp32.
template <tegula_dtype kType>
struct FloatOperand {
  static constexpr bool kDotPairs = false;
  static constexpr bool kAsItLies = kType == TEGULA_F32;  // k needs no conversion
  static constexpr int kVectors = kRunVectors<kType>;
  static constexpr int kValues = kVectors * kLanes;        // of a run
  static constexpr int kBytes = kValues * size_of(kType);  // of a run
  static constexpr int kKeys = 1;                          // keys that a product of P V takes
  static constexpr int kOutVectors = kVectors;             // of a run of v
  static constexpr float kScale = kRunScale<kType>;

  static TEGULA_INLINE void load_k(const char* p, vf (&to)[kVectors]) { vwiden_run<kType>(p, to); }
  static TEGULA_INLINE void load_v(const char* const* rows, int64_t offset, vf (&to)[kOutVectors]) {
    vwiden_run<kType>(rows[0] + offset, to);
  }
  // A single vector, in order: where a row ends with half a run.
  static TEGULA_INLINE vf load_last(const char* p) {
    return vmul(vwiden<kType>(p), vset(1.0f / kScale));
  }
  static constexpr int k_value(int i) { return run_value<kType>(i); }
  static constexpr int v_value(int i) { return run_value<kType>(i); }
  // Widths that it takes.
  static TEGULA_INLINE bool fits(int64_t head_dim) { return head_dim % kLanes == 0; }
};

#ifdef TEGULA_PAIRS
// Products of bf16 pairs: (d, d + 1) for the scores, (n, n + 1) for P V.
template <tegula_dtype kType>
struct PairOperand {
  static constexpr bool kDotPairs = true;
  static constexpr bool kAsItLies = kType == TEGULA_BF16;
  static constexpr int kVectors = kPairVectors<kType>;
  static constexpr int kValues = kVectors * 2 * kLanes;
  static constexpr int kBytes = kValues * size_of(kType);
  static constexpr int kKeys = 2;
  static constexpr int kOutVectors = 2 * kVectors;
  static constexpr float kScale = 1.0f;

  static TEGULA_INLINE void load_k(const char* p, vf (&to)[kVectors]) { vload_pairs<kType>(p, to); }
  static TEGULA_INLINE void load_v(const char* const* rows, int64_t offset, vf (&to)[kOutVectors]) {
    vzip_pairs<kType>(rows[0] + offset, rows[1] + offset, to);
  }
  static TEGULA_INLINE vf load_last(const char*) { return vzero(); }
  static constexpr int k_value(int i) { return pair_value<kType>(i); }
  static constexpr int v_value(int i) { return zip_value<kType>(i); }
  static TEGULA_INLINE bool fits(int64_t head_dim) { return head_dim % kValues == 0; }
};
#endif

// Calls f.template operator()<Operand>() for the caches of a call with (kPairs) or without pairs.
template <bool kPairs, class F>
TEGULA_INLINE void with_operand(tegula_dtype type, F&& f) {
#ifdef TEGULA_PAIRS
  if constexpr (kPairs) {
    switch (type) {
      case TEGULA_BF16: return f.template operator()<PairOperand<TEGULA_BF16>>();
      case TEGULA_E4M3: return f.template operator()<PairOperand<TEGULA_E4M3>>();
      default: return f.template operator()<PairOperand<TEGULA_E5M2>>();
    }
  }
#endif
  with_type(type, [&]<tegula_dtype kType>() { f.template operator()<FloatOperand<kType>>(); });
}

// The cache lines of the next block, in the order of memory. Beside each line that it reads the
// kernel fetches one of them to the L2, and again a little later: fetches seem to be dropped when
// the core's buffers are full. Ratio 1 from DRAM, two Zen 4 cores, pages in order and permuted:
// 30.3 and 26.1 GB/s with one fetch a line, 32.4 and 28.4 with fetch_beside's to the L1, 32.6 and
// 29.8 with all three (one series; the read limit moved between 36 and 38).
struct Ahead {
  static constexpr int64_t kFirst = 1024;  // bytes between a line's first and second fetch
  const char* at;
  const char* stop;  // of the row
  const char* const* row;
  const char* const* end;
  int64_t bytes;  // of a row

  TEGULA_INLINE Ahead(const char* const* begin, const char* const* end_, int64_t bytes_)
      : at(reinterpret_cast<const char*>(begin)), stop(at), row(begin), end(end_), bytes(bytes_) {
    if (row < end) enter();  // else any readable address will do
  }
  TEGULA_INLINE void enter() {
    at = *row;
    stop = at + bytes;
  }
  // At the end the last line again and again: cheaper than asking.
  TEGULA_INLINE void fetch() {
    __builtin_prefetch(at + kFirst, 0, 2);
    __builtin_prefetch(at, 0, 2);
    if (at + 64 < stop) {
      at += 64;
    } else if (row + 1 < end) {
      ++row;
      enter();
    }
  }
  // All of it at once, for a first block.
  TEGULA_INLINE void fetch_all() const {
    for (const char* const* r = row; r < end; ++r) {
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(*r + i, 0, 2);
    }
  }
};

// Beside the run at `at` of rows[0]: a line of the next block, and this run's line kNear rows on to
// the L1. Lists of rows go on for kNear entries.
inline constexpr int kNear = 8;
static_assert(kNear <= cpu::kRowPad);
template <class Operand>
TEGULA_INLINE void fetch_beside(Ahead& ahead, const char* const* rows, int64_t offset, int64_t at) {
  if (Operand::kBytes % 64 != 0 && at % 64 != 0) return;
  ahead.fetch();
  __builtin_prefetch(rows[kNear] + offset + at, 0, 3);
}

}  // namespace tegula::TEGULA_ISA_NAMESPACE
