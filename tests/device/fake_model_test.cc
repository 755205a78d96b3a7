// SPDX-License-Identifier: Apache-2.0
// The host's half of the forward without a GPU: what a launch is given (addresses, strides, tensor
// maps, lengths, scales, masks) must be enough for plain arithmetic to pass the case table.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "device/abi/forward.hpp"
#include "tests/cases/verify.hpp"
#include "tests/device/fake/fake_gpu.hpp"

namespace tegula::cases {
namespace {

using device::ForwardParams;
using device::Rows;

// What the generated source says of the kernel.
struct Variant {
  oracle::Format q, o;
  bool tma, softcap, alibi;

  explicit Variant(const std::string& source) {
    const auto format = [&](const char* field) {
      if (source.find(std::string(field) + " = Dtype::kF32") != std::string::npos)
        return oracle::Format::kFp32;
      return source.find(std::string(field) + " = Dtype::kF16") != std::string::npos
                 ? oracle::Format::kFp16
                 : oracle::Format::kBf16;
    };
    q = format(" .dtype");
    o = format(".o_dtype");
    tma = source.find("Load::kTma") != std::string::npos;
    softcap = source.find(".softcap = true") != std::string::npos;
    alibi = source.find(".alibi = true") != std::string::npos;
  }
};

struct Lengths {
  int q_batch, q_row, seqlen_q, k_batch, k_row, seqlen_k, leftpad;
};

int entry(const device::Ints& ints, int i) {
  return ints.data[i * ints.stride];
}

Lengths lengths_of(const device::Lengths& given, int b) {
  Lengths s{b, 0, given.seqlen_q, b, 0, given.seqlen_k, 0};
  if (given.cu_seqlens_q.data != nullptr) {
    s.q_batch = 0;
    s.q_row = entry(given.cu_seqlens_q, b);
    s.seqlen_q = entry(given.cu_seqlens_q, b + 1) - s.q_row;
  }
  if (given.cu_seqlens_k.data != nullptr) {
    s.k_batch = 0;
    s.k_row = entry(given.cu_seqlens_k, b);
    s.seqlen_k = entry(given.cu_seqlens_k, b + 1) - s.k_row;
  }
  if (given.seqused_q.data != nullptr) s.seqlen_q = entry(given.seqused_q, b);
  if (given.seqused_k.data != nullptr) {
    s.seqlen_k = entry(given.seqused_k, b) + given.seqlen_new;
    if (given.cu_seqlens_new.data != nullptr)
      s.seqlen_k += entry(given.cu_seqlens_new, b + 1) - entry(given.cu_seqlens_new, b);
  }
  if (given.leftpad_k.data != nullptr) s.leftpad = entry(given.leftpad_k, b);
  return s;
}

std::byte* address(const Rows& rows, int element_size, int batch, int row, int head, int d) {
  return static_cast<std::byte*>(rows.data) +
         (batch * rows.batch_stride + row * rows.row_stride + head * rows.head_stride + d) *
             element_size;
}

// A tensor map reads what the strides say. (Those of dimensions of size 1 are free.)
void expect_map(const char* name, const device::TensorMap& map, const Rows& rows, int columns) {
  const fake::Control::TensorMap made = fake::control().tensor_map(&map);
  EXPECT_EQ(static_cast<const void*>(made.data), rows.data) << name;
  EXPECT_EQ(made.rank, 4) << name;
  EXPECT_EQ(made.sizes[0], static_cast<uint64_t>(columns)) << name;
  const long long strides[] = {rows.row_stride, rows.head_stride, rows.batch_stride};
  for (int i = 1; i < 4; ++i) {
    if (made.sizes[i] <= 1) continue;
    EXPECT_EQ(made.strides[i], static_cast<uint64_t>(2 * strides[i - 1])) << name << " " << i;
  }
}

void attend_row(const ForwardParams& p, const Variant& variant, const Lengths& s, int b, int h,
                int i) {
  const device::Mask<device::MaskKind::kInterval> mask{p.mask, s.seqlen_q, s.seqlen_k, s.leftpad};
  const device::KeyRange range = mask.keys(i);
  const int head_kv = h / p.qheads_per_kvhead;
  std::vector<double> o(static_cast<std::size_t>(p.head_dim_v), 0.0);
  double row_max = -std::numeric_limits<double>::infinity(), row_sum = 0;
  for (int j = std::max(range.begin, 0); j < range.end; ++j) {
    double score = 0;
    for (int d = 0; d < p.head_dim; ++d) {
      score += oracle::load(variant.q, address(p.q, 2, s.q_batch, s.q_row + i, h, d)) *
               oracle::load(variant.q, address(p.k, 2, s.k_batch, s.k_row + j, head_kv, d));
    }
    const double capped = std::tanh(double{p.inner_scale} * score);
    if (variant.alibi) {
      const double slope =
          p.alibi_slopes.data[b * p.alibi_slopes.batch_stride + h * p.alibi_slopes.head_stride];
      score = variant.softcap ? double{p.softcap} * capped : double{p.inner_scale} * score;
      score -= slope * std::abs(i + s.seqlen_k - s.seqlen_q - j);
    } else if (variant.softcap) {
      score = capped;
    }
    score *= double{p.score_scale};  // a power of 2
    const double old = row_max;
    if (!(score <= row_max)) row_max = score;
    const double kept = std::isinf(old) ? 0.0 : std::exp2(old - row_max);
    const double weight = std::exp2(score - row_max);
    row_sum = row_sum * kept + weight;
    for (int d = 0; d < p.head_dim_v; ++d) {
      double& sum = o[static_cast<std::size_t>(d)];
      sum = sum * kept +
            weight * oracle::load(variant.q, address(p.v, 2, s.k_batch, s.k_row + j, head_kv, d));
    }
  }
  const double ln2 = std::log(2.0);
  double lse = row_sum == 0 ? row_max : row_max * ln2 + std::log(row_sum);
  double scale = row_sum == 0 ? 0.0 : 1.0 / row_sum;
  if (p.sink.data != nullptr) {
    const double sink = p.sink.data[h * p.sink.head_stride];
    const double larger = std::max(lse, sink);
    if (!std::isinf(larger)) {
      const double both = larger + std::log(std::exp(lse - larger) + std::exp(sink - larger));
      scale *= std::exp(lse - both);
      lse = both;
    }
  }
  const int size = variant.o == oracle::Format::kFp32 ? 4 : 2;
  for (int d = 0; d < p.head_dim_v; ++d) {
    oracle::store(variant.o, address(p.o, size, s.q_batch, s.q_row + i, h, d),
                  scale * o[static_cast<std::size_t>(d)], false);
  }
  if (p.lse.data != nullptr) {
    p.lse.data[s.q_batch * p.lse.batch_stride + h * p.lse.head_stride +
               (s.q_row + i) * p.lse.row_stride] = static_cast<float>(lse);
  }
}

void stand_in(void*, const fake::Launch& launch) {
  if (std::string(launch.function) != "tegula_forward") return;
  const auto& p = *static_cast<const ForwardParams*>(launch.parameters[0]);
  const Variant variant(launch.image);
  EXPECT_LE(launch.config->gridDimX, 132u);
  if (variant.tma && p.lengths.seqlen_k + p.lengths.total_k > 0) {
    expect_map("q", p.q_map, p.q, p.head_dim);
    expect_map("k", p.k_map, p.k, p.head_dim);
    expect_map("v", p.v_map, p.v, p.head_dim_v);
  }
  for (int b = 0; b < p.batch; ++b) {
    const Lengths s = lengths_of(p.lengths, b);
    for (int h = 0; h < p.num_heads_q; ++h) {
      for (int i = 0; i < s.seqlen_q; ++i) attend_row(p, variant, s, b, h, i);
    }
  }
}

VerifyOptions options_of(Gpu& gpu) {
  VerifyOptions options;
  options.device = gpu.device();
  options.gpu = &gpu;
  options.device_class = oracle::DeviceClass::kCuda;
  return options;
}

TEST(FakeModel, PassesTheFastCases) {
  fake::control().set_kernel(stand_in, nullptr);
  Gpu gpu(0);
  VerifyOptions options = options_of(gpu);
  options.gpu_cases = true;
  options.tags = {"fast"};
  options.select = [](const Case& item) { return item.has_tag("gpu") || item.op != Op::kForward; };
  options.repeats = 2;
  int shown = 0;
  const Totals totals =
      verify_all(options, [&shown](const CaseResult& result, std::int64_t, std::int64_t) {
        if (result.outcome == Outcome::kFailed && ++shown <= 20) {
          ADD_FAILURE() << result.id << ": " << result.text;
        }
      });
  EXPECT_EQ(totals.failed, 0) << "of " << totals.total();
  EXPECT_GE(totals.passed, 70);
  EXPECT_GE(totals.refused, 150) << "append_kv and combine";
  fake::control().set_kernel(nullptr, nullptr);
}

// A kernel that does nothing is found out.
TEST(FakeModel, AKernelThatWritesNothingFails) {
  fake::control().set_kernel(nullptr, nullptr);
  Gpu gpu(0);
  const VerifyOptions options = options_of(gpu);
  Case item;
  item.id = "nothing";
  item.q_dtype = item.kv_dtype = item.o_dtype = TEGULA_BF16;
  item.seqlens_q = item.seqlens_k = {5};
  EXPECT_EQ(verify_case(item, options, {}).outcome, Outcome::kFailed);
}

}  // namespace
}  // namespace tegula::cases
