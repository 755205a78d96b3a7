// SPDX-License-Identifier: Apache-2.0
// Index tensors on the device are untrusted (contract.md, 9): whatever they hold, nothing outside a
// tensor is read or written (the operands end at pages that fault; compute-sanitizer sees more),
// and the other sequences are right.
#include <cstring>
#include <limits>
#include <vector>

#include "tests/cases/random.hpp"
#include "tests/device/gpu_util.hpp"

namespace tegula::cases {
namespace {

class GpuHostile : public GpuTest {
 protected:
  // Runs with one index tensor's words replaced; the words of error_word. `data` holds the outputs.
  std::int32_t run(ForwardData& data, const tegula_index* tegula_forward_args::* slot,
                   const std::vector<std::int32_t>& words) {
    DeviceForward device(*gpu_, data, Placement::kGuarded);
    PlanPointer plan;
    EXPECT_EQ(plan_call(*gpu_, data, device, plan), "");
    tegula_execution execution;
    tegula_execution_init(&execution);
    execution.stream = device.stream().get();
    execution.error_word = device.error_word();
    void* const to = const_cast<void*>((device.args().*slot)->tensor.data);
    {
      const GpuScope scope(*gpu_);
      check_gpu(
          gpu_->driver().cuMemcpyHtoDAsync_v2(reinterpret_cast<cuda::CUdeviceptr>(to), words.data(),
                                              4 * words.size(), device.stream().get()),
          "copy");
    }
    EXPECT_EQ(tegula_forward(plan.get(), &device.args(), &execution), TEGULA_OK)
        << tegula_last_error();
    device.download_outputs();                               // throws if a page faulted
    EXPECT_NE(device.changed_inputs().rfind("q: ", 0), 0u);  // q comes first
    return device.read_error_word();
  }
};

constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();

Case ragged_case() {
  Case item = plain(TEGULA_BF16, 0, 0, 4, 2, 64);
  item.ragged_q = true;
  item.layout_k = LayoutK::kRagged;
  item.seqlens_q = {130, 7, 64};
  item.seqlens_k = {200, 300, 33};
  item.seqused_q = item.seqused_k = true;
  item.slack_q = 3;
  item.slack_k = 20;
  item.leftpad_k = {3, 0, 5};
  item.causal = true;
  return item;
}

// "" if the sequences that the words do not touch have the bits of a call without them.
std::string other_sequences(const ForwardData& data, const ForwardData& good, std::int64_t bad) {
  for (std::int64_t b = 0; b < data.item().batch(); ++b) {
    if (b == bad) continue;
    for (std::int64_t i = 0; i < data.used_q(b); ++i) {
      for (std::int64_t h = 0; h < data.item().num_heads_q; ++h) {
        if (data.lse(b, i, h) != good.lse(b, i, h) || data.o(b, i, h, 0) != good.o(b, i, h, 0)) {
          return "sequence " + std::to_string(b) + " changed";
        }
      }
    }
  }
  return "";
}

TEST_F(GpuHostile, LengthsOfOneSequence) {
  const Case item = ragged_case();
  ForwardData good(item, Placement::kAligned, kPoison);
  ASSERT_EQ(run_on(*gpu_, good), "");
  const struct {
    const tegula_index* tegula_forward_args::* slot;
    std::vector<std::int32_t> words;
  } lengths[] = {{&tegula_forward_args::seqused_q, {130, 7, 64}},
                 {&tegula_forward_args::seqused_k, {200, 300, 33}},
                 {&tegula_forward_args::leftpad_k, {3, 0, 5}}};
  for (const auto& length : lengths) {
    for (const std::int32_t value : {-1, kMin, kMax, 1000000}) {
      ForwardData data(item, Placement::kAligned, kPoison);
      std::vector<std::int32_t> words = length.words;
      words[1] = value;
      const std::int32_t word = run(data, length.slot, words);
      EXPECT_EQ(word, 2) << "1 + the sequence, value " << value;
      EXPECT_EQ(other_sequences(data, good, 1), "") << value;
    }
  }
}

TEST_F(GpuHostile, Offsets) {
  const Case item = ragged_case();
  const std::vector<std::vector<std::int32_t>> spoiled = {
      {0, kMax, 5, 100},        {kMin, 0, 1, 2}, {0, 500, 40, 600},  {-1, -1, -1, -1},
      {kMax, kMax, kMax, kMax}, {7, 6, 5, 4},    {0, 133, 143, kMax}};
  for (const auto& words : spoiled) {
    for (const auto slot :
         {&tegula_forward_args::cu_seqlens_q, &tegula_forward_args::cu_seqlens_k}) {
      ForwardData data(item, Placement::kAligned, kPoison);
      EXPECT_NE(run(data, slot, words), 0) << words[0] << " " << words[1];
    }
  }
}

TEST_F(GpuHostile, RandomWords) {
  const Case item = ragged_case();
  for (std::uint64_t n = 0; n < 40; ++n) {
    for (const auto slot : {&tegula_forward_args::cu_seqlens_q, &tegula_forward_args::cu_seqlens_k,
                            &tegula_forward_args::seqused_q, &tegula_forward_args::seqused_k,
                            &tegula_forward_args::leftpad_k}) {
      std::vector<std::int32_t> words;
      for (std::uint64_t i = 0; i < 3; ++i) {
        const std::uint64_t bits = splitmix64(n, i);
        words.push_back(static_cast<std::int32_t>(n % 2 == 0 ? bits : bits % 700));
      }
      ForwardData data(item, Placement::kAligned, kPoison);
      run(data, slot, words);
    }
  }
}

}  // namespace
}  // namespace tegula::cases
