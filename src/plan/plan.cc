// SPDX-License-Identifier: Apache-2.0
#include "src/plan/plan.hpp"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "src/core/dtype.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/executor/thread_pool.hpp"
#include "src/cpu/families.hpp"
#include "src/plan/implementations.hpp"

namespace tegula {

void Explanation::line(const char* format, ...) {
  char buffer[320];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  text_ += buffer;
  text_ += '\n';
}

namespace {

// In order of preference: the first that accepts wins.
constexpr const Implementation* kForward[] = {&kCudaForwardSm90, &kCpuAmx,  &kCpuAvx512Bf16,
                                              &kCpuAvx512,       &kCpuAvx2, &kCpuScalar,
                                              &kCpuAmxModel};

constexpr int32_t kUnknownIsa = -1;

// What TEGULA_ISA asks for: a tegula_isa or kUnknownIsa. Read once, at the first use: a host may
// call setenv while other threads are here. (No function-local static: a fork while another thread
// holds its guard would hang the child.)
int32_t isa_of_environment() {
  constexpr int32_t kUnread = -2;
  static constinit std::atomic<int32_t> known{kUnread};
  int32_t isa = known.load(std::memory_order_relaxed);
  if (isa != kUnread) return isa;
  const char* const text = std::getenv("TEGULA_ISA");
  isa = kUnknownIsa;
  for (int32_t i = TEGULA_ISA_AUTO; i <= TEGULA_ISA_AMX_MODEL; ++i) {
    if (text != nullptr && std::strcmp(text, tegula_isa_name(i)) == 0) isa = i;
  }
  if (text == nullptr || text[0] == '\0') isa = TEGULA_ISA_AUTO;
  known.store(isa, std::memory_order_relaxed);
  return isa;
}

// The widest family: append and combine have no use for the bf16 dot product.
Status row_family(const cpu::KernelFamily*& family) {
  tegula_device device;
  TEGULA_RETURN_IF_ERROR(describe_cpu(device));
  if (device.isa == TEGULA_ISA_AUTO) {
    device.isa = cpu::machine_runs(TEGULA_ISA_AVX512) ? TEGULA_ISA_AVX512
                 : cpu::machine_runs(TEGULA_ISA_AVX2) ? TEGULA_ISA_AVX2
                                                      : TEGULA_ISA_SCALAR;
  }
  family = cpu::find_family(static_cast<tegula_isa>(device.isa));
  if (family == nullptr) family = cpu::find_family(TEGULA_ISA_SCALAR);
  return {};
}

}  // namespace

Status make_plan(const tegula_problem& problem, const tegula_device& device, Plan& plan) {
  plan.problem = problem;
  plan.device = device;
  plan.asked_isa = device.isa;
  Refusal first, last;
  for (const Implementation* candidate : kForward) {
    last = {};
    candidate->refuse(problem, device, last);
    if (!last) {
      plan.implementation = candidate;
      candidate->configure(plan);
      return {};
    }
    if (candidate == kForward[0]) first = last;
  }
  if (device.kind == TEGULA_CUDA) {
    return fail(TEGULA_UNSUPPORTED, "device: cuda:%d has no implementation for this: %s",
                static_cast<int>(device.index), first.text);
  }
  return fail(TEGULA_UNSUPPORTED, "device: isa %s has no implementation here: %s",
              tegula_isa_name(static_cast<tegula_isa>(device.isa)), last.text);
}

Status prepare(std::span<const Plan* const> plans) {
  for (const Implementation* implementation : kForward) {
    std::vector<const Plan*> own;
    for (const Plan* plan : plans) {
      if (plan->implementation == implementation) own.push_back(plan);
    }
    if (!own.empty()) TEGULA_RETURN_IF_ERROR(implementation->prepare(own));
  }
  return {};
}

std::string explain(const Plan& plan) {
  Explanation out;
  const tegula_problem& problem = plan.problem;
  out.line("implementation  %s", plan.implementation->name);
  tegula_device asked = plan.device;
  asked.isa = plan.asked_isa;
  for (const Implementation* const* candidate = kForward; *candidate != plan.implementation;
       ++candidate) {
    Refusal why;
    (*candidate)->refuse(problem, asked, why);
    out.line("  not %-18s%s", (*candidate)->name, why.text);
  }
  const auto size = [](int64_t value) { return static_cast<long long>(value); };
  out.line(
      "problem         forward, q %s, k and v %s, o %s, heads %lld/%lld, head_dim %lld, head_dim_v "
      "%lld",
      dtype_name(problem.q_dtype), dtype_name(problem.kv_dtype), dtype_name(problem.o_dtype),
      size(problem.num_heads_q), size(problem.num_heads_kv), size(problem.head_dim),
      size(problem.head_dim_v));
  constexpr const char* kLayouts[] = {"dense", "ragged", "paged"};
  out.line("sizes           batch %lld, q %s of at most %lld, k %s of at most %lld%s",
           size(problem.batch), kLayouts[problem.layout_q], size(problem.max_seqlen_q),
           kLayouts[problem.layout_k], size(problem.max_seqlen_k),
           problem.layout_k == TEGULA_PAGED ? " in pages" : "");
  if (problem.layout_k == TEGULA_PAGED) {
    out.line("pages           %lld of %lld tokens", size(problem.num_pages),
             size(problem.page_size));
  }
  out.line("mask            %swindow_left %lld, window_right %lld, attention_chunk %lld",
           problem.causal ? "causal, " : "", size(problem.window_left), size(problem.window_right),
           size(problem.attention_chunk));
  out.line("scores          softmax_scale %g, softcap %g%s%s%s", problem.softmax_scale,
           problem.softcap, (problem.operands & TEGULA_HAS_ALIBI) ? ", ALiBi" : "",
           (problem.operands & TEGULA_HAS_BIAS) ? ", bias" : "",
           (problem.operands & TEGULA_HAS_SINK) ? ", sink" : "");
  plan.implementation->explain(plan, out);
  return out.text();
}

Status describe_cpu(tegula_device& device) {
  device = {};
  device.struct_size = sizeof device;
  device.kind = TEGULA_CPU;
  device.isa = TEGULA_ISA_AUTO;
  device.num_workers = cpu::ThreadPool::process_pool().num_workers();
  const int32_t asked = isa_of_environment();
  if (asked == kUnknownIsa) {
    const char* const text = std::getenv("TEGULA_ISA");
    return fail(TEGULA_INVALID_ARGUMENT,
                "TEGULA_ISA: \"%.32s\" is not one of scalar, avx2, avx512, avx512bf16, amx, "
                "amx_model, auto",
                text != nullptr ? text : "");
  }
  const auto isa = static_cast<tegula_isa>(asked);
  if (isa != TEGULA_ISA_AUTO && (cpu::find_family(isa) == nullptr || !cpu::machine_runs(isa))) {
    return fail(TEGULA_UNSUPPORTED, "TEGULA_ISA: %s is %s", tegula_isa_name(isa),
                cpu::find_family(isa) == nullptr ? "not in this build"
                                                 : "not an instruction set of this machine");
  }
  device.isa = isa;
  return {};
}

Status run_append_kv(const AppendCall& call, const Execution& execution) {
  const cpu::KernelFamily* family = nullptr;
  TEGULA_RETURN_IF_ERROR(row_family(family));
  return cpu::append_kv(*family, call, execution);
}

Status run_combine(const CombineCall& call, const Execution& execution) {
  const cpu::KernelFamily* family = nullptr;
  TEGULA_RETURN_IF_ERROR(row_family(family));
  return cpu::combine(*family, call, execution);
}

}  // namespace tegula
