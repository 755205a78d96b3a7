// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/pack_kernels.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "src/api/api.hpp"
#include "src/cuda/ops/forward.hpp"
#include "tests/cases/cases.hpp"
#include "tests/cases/forward_case.hpp"

namespace tegula::program {
namespace {

using Kernels = std::map<std::string, cuda::KernelText>;  // by name

constexpr std::pair<std::int64_t, std::int64_t> kHeadDims[] = {
    {64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};

bool is_packed(const tegula_problem& problem) {
  return std::find(std::begin(kHeadDims), std::end(kHeadDims),
                   std::pair(problem.head_dim, problem.head_dim_v)) != std::end(kHeadDims);
}

void add_problem(const tegula_problem& given, const cuda::DeviceInfo& device, Kernels& kernels) {
  tegula_problem problem;
  Refusal why;
  if (!api::resolve_problem(given, problem).ok() || !is_packed(problem)) return;
  cuda::refuse_forward(problem, device, why);
  if (why) return;
  for (cuda::KernelText& text : cuda::kernels_of(cuda::plan_forward(problem))) {
    kernels.emplace(text.name, std::move(text));
  }
}

tegula_problem usual_problem(std::int64_t head_dim, std::int64_t head_dim_v, std::int64_t seqlen,
                             bool causal) {
  tegula_problem problem;
  tegula_problem_init(&problem);
  problem.q_dtype = problem.kv_dtype = problem.o_dtype = TEGULA_BF16;
  problem.batch = 1;
  problem.seqlen_q = problem.seqlen_k = seqlen;
  problem.num_heads_q = problem.num_heads_kv = 16;
  problem.head_dim = head_dim;
  problem.head_dim_v = head_dim_v;
  problem.causal = causal ? 1 : 0;
  return problem;
}

// What models ask for most, and what the suite h200-forward measures: full and causal at every head
// dim, short and long; at 128 also fp16, ragged batches, a window and softcap.
void add_usual(const cuda::DeviceInfo& device, Kernels& kernels) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t seqlen : {512, 8192}) {
      for (const auto& [head_dim, head_dim_v] : kHeadDims) {
        add_problem(usual_problem(head_dim, head_dim_v, seqlen, causal), device, kernels);
      }
      const tegula_problem plain = usual_problem(128, 128, seqlen, causal);
      tegula_problem half = plain;
      half.q_dtype = half.kv_dtype = half.o_dtype = TEGULA_F16;
      add_problem(half, device, kernels);
      tegula_problem ragged = plain;
      ragged.layout_q = ragged.layout_k = TEGULA_RAGGED;
      ragged.total_q = ragged.total_k = seqlen;
      add_problem(ragged, device, kernels);
      tegula_problem capped = plain;
      capped.softcap = 30;
      add_problem(capped, device, kernels);
    }
  }
  tegula_problem window = usual_problem(128, 128, 16384, true);
  window.window_left = 1023;
  add_problem(window, device, kernels);
}

}  // namespace

std::vector<cuda::KernelText> packed_kernels(const std::vector<std::string>& tables) {
  cuda::DeviceInfo device;
  device.compute_capability = 90;
  device.num_sms = 132;
  Kernels kernels;
  add_usual(device, kernels);
  for (const std::string& table : tables) {
    for (const cases::Case& item : cases::load_table(table)) {
      if (item.op != cases::Op::kForward) continue;
      // Every type, layout and mask at every tile: 60 variants more, compiled when they are run.
      if (item.has_tag("gpu")) continue;
      const cases::ForwardData data(item, cases::Placement::kAligned, 0);
      tegula_problem problem;
      tegula_problem_init(&problem);
      if (data.problem(&problem) == TEGULA_OK) add_problem(problem, device, kernels);
    }
  }
  std::vector<cuda::KernelText> texts;
  for (auto& [name, text] : kernels) texts.push_back(std::move(text));
  return texts;
}

}  // namespace tegula::program
