// SPDX-License-Identifier: Apache-2.0
// What the forward kernel takes and which variant it gets: no GPU is asked.
#include <map>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "src/cuda/ops/forward.hpp"

namespace tegula::cuda {
namespace {

using device::Load;
using device::MaskKind;
using device::Schedule;

DeviceInfo hopper() {
  DeviceInfo info;
  info.compute_capability = 90;
  info.num_sms = 132;
  return info;
}

tegula_problem problem(int64_t head_dim = 128, int64_t head_dim_v = 128) {
  tegula_problem p{};
  p.struct_size = sizeof p;
  p.q_dtype = p.kv_dtype = p.o_dtype = TEGULA_BF16;
  p.batch = 3;
  p.seqlen_q = p.seqlen_k = p.max_seqlen_q = p.max_seqlen_k = 1000;
  p.num_heads_q = 8;
  p.num_heads_kv = 2;
  p.head_dim = head_dim;
  p.head_dim_v = head_dim_v;
  p.window_left = p.window_right = -1;
  p.softmax_scale = 0.1;
  return p;
}

std::string refusal(const tegula_problem& p, const DeviceInfo& device = hopper()) {
  Refusal why;
  refuse_forward(p, device, why);
  return why.text;
}

TEST(CudaForwardSpec, RefusalsNameWhatAndHowMuch) {
  EXPECT_EQ(refusal(problem()), "");
  DeviceInfo ampere = hopper();
  ampere.compute_capability = 80;
  EXPECT_EQ(refusal(problem(), ampere), "compute capability 8.0: the kernels are for 9.0");
  EXPECT_EQ(refusal(problem(100)), "head_dim 100: multiples of 8 up to 256 are taken");
  EXPECT_EQ(refusal(problem(264)), "head_dim 264: multiples of 8 up to 256 are taken");
  EXPECT_EQ(refusal(problem(64, 4)), "head_dim_v 4: multiples of 8 up to 256 are taken");
  const auto changed = [](auto member, auto value) {
    tegula_problem p = problem();
    p.*member = value;
    return refusal(p);
  };
  EXPECT_EQ(changed(&tegula_problem::q_dtype, TEGULA_F32), "q is f32: f16 and bf16 are taken");
  EXPECT_EQ(changed(&tegula_problem::kv_dtype, TEGULA_E4M3),
            "k and v are e4m3, q is bf16: one type is taken");
  EXPECT_EQ(changed(&tegula_problem::layout_k, TEGULA_PAGED), "k and v are paged: not yet");
  EXPECT_EQ(changed(&tegula_problem::num_splits, 3), "num_splits 3: not yet");
  EXPECT_EQ(changed(&tegula_problem::num_splits, 1), "");
  EXPECT_EQ(changed(&tegula_problem::fixed_split, 64), "fixed_split 64: not yet");
  EXPECT_EQ(changed(&tegula_problem::bias_dtype, TEGULA_BF16), "a bias tensor: not yet");
  EXPECT_EQ(changed(&tegula_problem::seqlen_k, int64_t{1} << 30),
            "seqlen_k 1073741824 is more than 1073741823");
}

// Every problem that is taken has a spec that compiles and holds it.
TEST(CudaForwardSpec, EveryHeadDimHasATile) {
  for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (int64_t head_dim_v = 8; head_dim_v <= 256; head_dim_v += 8) {
      for (const double softcap : {0.0, 30.0}) {
        tegula_problem p = problem(head_dim, head_dim_v);
        p.softcap = softcap;
        ASSERT_EQ(refusal(p), "");
        const ForwardPlan plan = plan_forward(p);
        for (const device::ForwardSpec& spec : {plan.spec, plan.plain_spec}) {
          ASSERT_EQ(device::fault_of(spec), nullptr) << device::fault_of(spec);
          ASSERT_GE(spec.head_dim, head_dim);
          ASSERT_GE(spec.head_dim_v, head_dim_v);
        }
      }
    }
  }
  const auto tile = [](int64_t head_dim, int64_t head_dim_v) {
    const device::ForwardSpec spec = plan_forward(problem(head_dim, head_dim_v)).spec;
    return std::pair{spec.head_dim, spec.head_dim_v};
  };
  EXPECT_EQ(tile(8, 8), (std::pair{64, 64}));
  EXPECT_EQ(tile(72, 64), (std::pair{96, 96}));
  EXPECT_EQ(tile(192, 128), (std::pair{192, 128}));
  EXPECT_EQ(tile(128, 136), (std::pair{192, 192}));
  EXPECT_EQ(tile(200, 8), (std::pair{256, 256}));
}

TEST(CudaForwardSpec, MasksAndSchedules) {
  const auto spec = [](auto&& change) {
    tegula_problem p = problem();
    change(p);
    return plan_forward(p).spec;
  };
  EXPECT_EQ(spec([](auto&) {}).mask, MaskKind::kLength);
  EXPECT_EQ(spec([](auto&) {}).schedule, Schedule::kStatic);
  EXPECT_EQ(spec([](auto& p) { p.causal = 1; }).mask, MaskKind::kRight);
  EXPECT_EQ(spec([](auto& p) { p.causal = 1; }).schedule, Schedule::kDynamic);
  EXPECT_EQ(spec([](auto& p) { p.window_right = 3; }).mask, MaskKind::kRight);
  EXPECT_FALSE(spec([](auto& p) { p.causal = 1; }).zero_v);
  EXPECT_EQ(spec([](auto& p) { p.window_left = 3; }).mask, MaskKind::kInterval);
  EXPECT_TRUE(spec([](auto& p) { p.window_left = 3; }).zero_v);
  EXPECT_EQ(spec([](auto& p) { p.attention_chunk = 3; }).mask, MaskKind::kInterval);
  EXPECT_EQ(spec([](auto& p) { p.operands = TEGULA_HAS_LEFTPAD_K; }).mask, MaskKind::kInterval);
  const auto used = spec([](auto& p) { p.operands = TEGULA_HAS_SEQUSED_K; });
  EXPECT_EQ(used.mask, MaskKind::kLength);
  EXPECT_TRUE(used.zero_v);
  EXPECT_EQ(used.schedule, Schedule::kList);
}

TEST(CudaForwardSpec, ShortBlocksForFewKeys) {
  const auto keys = [](int64_t head_dim, int causal, int64_t longest, uint32_t operands) {
    tegula_problem p = problem(head_dim, head_dim);
    p.causal = causal;
    p.max_seqlen_k = longest;
    p.operands = operands;
    return plan_forward(p).spec.tile_n;
  };
  EXPECT_EQ(keys(64, 1, 512, 0), 64);
  EXPECT_EQ(keys(128, 1, 512, 0), 64);
  EXPECT_EQ(keys(128, 1, 513, 0), 128);
  EXPECT_EQ(keys(128, 0, 512, 0), 128);
  EXPECT_EQ(keys(128, 1, 512, TEGULA_HAS_SEQUSED_K), 128);
  EXPECT_EQ(keys(96, 1, 512, 0), 128);
  EXPECT_EQ(keys(136, 1, 512, 0), 96);
}

// The list holds every tile that lengths within the tensors can ask for, of either variant.
TEST(CudaForwardSpec, ListHoldsEveryTile) {
  tegula_problem p = problem(64, 64);
  p.layout_q = TEGULA_RAGGED;
  p.batch = 5;
  p.seqlen_q = 0;
  p.total_q = 1000;
  const ForwardPlan plan = plan_forward(p);
  for (const int64_t tile_m : {plan.spec.tile_m, plan.plain_spec.tile_m}) {
    const int64_t lengths[] = {1, 1, 1, 1, 996};
    int64_t tiles = 0;
    for (const int64_t length : lengths) tiles += (length + tile_m - 1) / tile_m;
    EXPECT_GE(plan.list_capacity, tiles);
  }
  EXPECT_EQ(plan.scratch_bytes,
            sizeof(device::TileCounter) +
                static_cast<size_t>(plan.list_capacity) * sizeof(device::ListEntry));
  EXPECT_EQ(plan_forward(problem()).scratch_bytes, 0u);
}

TEST(CudaForwardSpec, EachSpecHasItsOwnTextAndName) {
  std::map<std::string, std::string> names;
  size_t specs = 0;
  for (const auto dtype : {TEGULA_BF16, TEGULA_F16}) {
    for (const auto o_dtype : {TEGULA_BF16, TEGULA_F16, TEGULA_F32}) {
      for (const int64_t head_dim : {64, 96, 128, 256}) {
        for (const int causal : {0, 1}) {
          for (const double softcap : {0.0, 2.0}) {
            for (const uint32_t operands : {0u, TEGULA_HAS_ALIBI, TEGULA_HAS_SEQUSED_K}) {
              tegula_problem p = problem(head_dim, head_dim);
              p.q_dtype = p.kv_dtype = dtype;
              p.o_dtype = o_dtype;
              p.causal = causal;
              p.softcap = softcap;
              p.operands = operands;
              const ForwardPlan plan = plan_forward(p);
              for (const device::ForwardSpec& spec : {plan.spec, plan.plain_spec}) {
                ++specs;
                const std::string source = source_of(spec);
                const auto [at, fresh] = names.emplace(name_of(spec), source);
                EXPECT_TRUE(fresh) << at->first;
                EXPECT_NE(source.find("extern \"C\" __global__"), std::string::npos);
              }
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(names.size(), specs);
  std::map<std::string, int> sources;
  for (const auto& [name, source] : names) ++sources[source];
  EXPECT_EQ(sources.size(), specs);
}

}  // namespace
}  // namespace tegula::cuda
