// SPDX-License-Identifier: Apache-2.0
#include "device/abi/forward.hpp"

#include <gtest/gtest.h>

namespace tegula::device {
namespace {

constexpr ForwardSpec kSpecs[] = {
    {},
    {.head_dim = 64, .head_dim_v = 64, .tile_m = 192, .num_stages = 3, .q_stages = 2},
    {.head_dim = 96, .head_dim_v = 96, .tile_m = 192},
    {.head_dim = 192, .head_dim_v = 128},
    {.head_dim = 256, .head_dim_v = 256, .tile_n = 80},
};

TEST(ForwardSpec, PartsOfSharedMemoryAreAlignedAndDisjoint) {
  for (const ForwardSpec& spec : kSpecs) {
    EXPECT_EQ(fault_of(spec), nullptr);
    const SmemPlan plan = smem_plan(spec);
    // A swizzled tile begins at a multiple of 1,024 bytes.
    for (int start : {plan.q, plan.q_stage, plan.k, plan.k_stage, plan.v, plan.v_stage}) {
      EXPECT_EQ(start % 1024, 0);
    }
    EXPECT_EQ(plan.barriers % 8, 0);
    EXPECT_GE(plan.k, plan.q + spec.q_stages * spec.tile_m * spec.head_dim * 2);
    EXPECT_GE(plan.v, plan.k + spec.num_stages * spec.tile_n * spec.head_dim * 2);
    EXPECT_GE(plan.barriers, plan.v + spec.num_stages * spec.tile_n * spec.head_dim_v * 2);
    EXPECT_LE(plan.bytes, kSmemLimit);
    const BarrierPlan barriers = barrier_plan(spec);
    EXPECT_EQ(barriers.end, 8 * 2 * (spec.q_stages + 2 * spec.num_stages + tile_slots(spec)));
  }
}

TEST(ForwardSpec, RegistersFitTheSm) {
  for (int tile_m : {64, 128, 192}) {
    const ForwardSpec spec{.tile_m = tile_m};
    const Registers registers = registers_of(spec);
    EXPECT_EQ(registers.producer % 8, 0);
    EXPECT_EQ(registers.consumer % 8, 0);
    EXPECT_LE(registers.consumer, 255);
    EXPECT_LE(128 * (registers.producer + tile_m / 64 * registers.consumer), kRegisters);
    // setmaxnreg only moves what the block has at entry: 65,536 / threads, in steps of 8.
    const int entry = kRegisters / num_threads(spec) / 8 * 8;
    EXPECT_LE(registers.producer + tile_m / 64 * registers.consumer, entry * (1 + tile_m / 64));
  }
}

TEST(ForwardSpec, FaultsAreNamed) {
  EXPECT_STREQ(fault_of({.num_stages = 4}), "shared memory");
  EXPECT_STREQ(fault_of({.tile_m = 64, .ping_pong = true}), "ping_pong takes two warpgroups");
  EXPECT_STREQ(fault_of({.kv_dtype = Dtype::kF16}), "k and v have another type than q");
  EXPECT_NE(fault_of({.tile_n = 72}), nullptr);
}

}  // namespace
}  // namespace tegula::device
