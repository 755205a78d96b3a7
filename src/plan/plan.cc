// SPDX-License-Identifier: Apache-2.0
#include "src/plan/plan.hpp"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "src/core/dtype.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/executor/thread_pool.hpp"
#include "src/cpu/families.hpp"

namespace tegula {
namespace {

__attribute__((format(printf, 2, 3))) void refuse(Refusal& why, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(why.text, sizeof why.text, format, arguments);
  va_end(arguments);
}

template <tegula_isa kIsa>
void refuse_cpu(const tegula_problem& problem, const tegula_device& device, Refusal& why) {
  if (device.kind != TEGULA_CPU) return refuse(why, "the device is not a CPU");
  if (cpu::find_family(kIsa) == nullptr) return refuse(why, "not in this build");
  if (device.isa != TEGULA_ISA_AUTO && device.isa != kIsa) {
    return refuse(why, "the device asks for %s",
                  tegula_isa_name(static_cast<tegula_isa>(device.isa)));
  }
  if (!cpu::machine_runs(kIsa)) return refuse(why, "this machine cannot run it");
  if (kIsa == TEGULA_ISA_AMX && device.isa == TEGULA_ISA_AUTO && !cpu::suits_tiles(problem)) {
    return refuse(why, "matrix tiles take q, k and v of 16 or 8 bits without a bias");
  }
  if (kIsa == TEGULA_ISA_AVX512BF16 && device.isa == TEGULA_ISA_AUTO) {
    if (problem.q_dtype != TEGULA_BF16) {
      return refuse(why, "q is %s: no use for the bf16 dot product", dtype_name(problem.q_dtype));
    }
    if (!cpu::pairs_rule().use) return refuse(why, "%s", cpu::pairs_rule().reason);
  }
}

template <tegula_isa kIsa>
void configure_cpu(Plan& plan) {
  plan.device.isa = kIsa;
  plan.cpu = cpu::plan_forward(plan.problem, *cpu::find_family(kIsa), plan.device.num_workers);
  plan.tile_m = plan.cpu.tile_m;
  plan.tile_n = plan.cpu.params.tile_n;
  plan.num_splits = plan.cpu.max_splits;
  plan.scratch_bytes = plan.cpu.scratch_bytes;
}

Status forward_cpu(const Plan& plan, const ForwardCall& call, const Execution& execution) {
  return cpu::forward(plan.cpu, call, execution);
}

void refuse_cuda(const tegula_problem&, const tegula_device& device, Refusal& why) {
  refuse(why, device.kind == TEGULA_CUDA ? "the CUDA back end is not in this version"
                                         : "the device is not a GPU");
}

template <tegula_isa kIsa>
constexpr Implementation cpu_implementation(const char* name) {
  return {name, refuse_cpu<kIsa>, configure_cpu<kIsa>, forward_cpu};
}

// In order of preference: the first that accepts wins.
constexpr Implementation kForward[] = {
    {"cuda", refuse_cuda, nullptr, nullptr},
    cpu_implementation<TEGULA_ISA_AMX>("cpu_amx"),
    cpu_implementation<TEGULA_ISA_AVX512BF16>("cpu_avx512bf16"),
    cpu_implementation<TEGULA_ISA_AVX512>("cpu_avx512"),
    cpu_implementation<TEGULA_ISA_AVX2>("cpu_avx2"),
    cpu_implementation<TEGULA_ISA_SCALAR>("cpu_scalar"),
    cpu_implementation<TEGULA_ISA_AMX_MODEL>("cpu_amx_model"),
};

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
  Refusal why;
  for (const Implementation& candidate : kForward) {
    why = {};
    candidate.refuse(problem, device, why);
    if (why) continue;
    plan.implementation = &candidate;
    candidate.configure(plan);
    return {};
  }
  if (device.kind == TEGULA_CUDA) {
    return fail(
        TEGULA_UNSUPPORTED,
        "device: kind cuda has no implementation: the CUDA back end is not in this version");
  }
  return fail(TEGULA_UNSUPPORTED, "device: isa %s has no implementation here: %s",
              tegula_isa_name(static_cast<tegula_isa>(device.isa)), why.text);
}

std::string explain(const Plan& plan) {
  std::string text;
  const auto line = [&text](const char* format, auto... values) {
    char buffer[256];
    std::snprintf(buffer, sizeof buffer, format, values...);
    text += buffer;
    text += '\n';
  };
  const tegula_problem& problem = plan.problem;
  const cpu::ForwardParams& params = plan.cpu.params;
  line("implementation  %s", plan.implementation->name);
  tegula_device asked = plan.device;
  asked.isa = plan.asked_isa;
  for (const Implementation* candidate = kForward; candidate != plan.implementation; ++candidate) {
    Refusal why;
    candidate->refuse(problem, asked, why);
    line("  not %-16s%s", candidate->name, why.text);
  }
  line(
      "problem         forward, q %s, k and v %s, o %s, heads %lld/%lld, head_dim %lld, head_dim_v "
      "%lld",
      dtype_name(problem.q_dtype), dtype_name(problem.kv_dtype), dtype_name(problem.o_dtype),
      static_cast<long long>(problem.num_heads_q), static_cast<long long>(problem.num_heads_kv),
      static_cast<long long>(problem.head_dim), static_cast<long long>(problem.head_dim_v));
  constexpr const char* kLayouts[] = {"dense", "ragged", "paged"};
  const auto size = [](int64_t value) { return static_cast<long long>(value); };
  line("sizes           batch %lld, q %s of at most %lld, k %s of at most %lld%s",
       size(problem.batch), kLayouts[problem.layout_q], size(problem.max_seqlen_q),
       kLayouts[problem.layout_k], size(problem.max_seqlen_k),
       problem.layout_k == TEGULA_PAGED ? " in pages" : "");
  if (problem.layout_k == TEGULA_PAGED) {
    line("pages           %lld of %lld tokens", size(problem.num_pages), size(problem.page_size));
  }
  line("mask            %swindow_left %lld, window_right %lld, attention_chunk %lld",
       problem.causal ? "causal, " : "", size(problem.window_left), size(problem.window_right),
       size(problem.attention_chunk));
  line("scores          softmax_scale %g, softcap %g%s%s%s", problem.softmax_scale, problem.softcap,
       (problem.operands & TEGULA_HAS_ALIBI) ? ", ALiBi" : "",
       (problem.operands & TEGULA_HAS_BIAS) ? ", bias" : "",
       (problem.operands & TEGULA_HAS_SINK) ? ", sink" : "");
  line("products        %s",
       params.use_tiles ? (params.tiles.q_parts * params.tiles.kv_parts > 1
                               ? "matrix tiles (tdpbf16ps) on fp16 as two bf16 parts, fp32 sums"
                               : "matrix tiles (tdpbf16ps), fp32 sums")
       : params.pairs   ? "bf16 pairs (vdpbf16ps), fp32 sums"
                        : "fp32");
  line("packing         %lld query head%s a kv head in the rows of an item",
       size(params.qheads_per_kvhead), params.qheads_per_kvhead == 1 ? " of" : "s of");
  line(
      "few rows        at most %lld packed rows a sequence: lanes along head_dim, blocks of %lld "
      "keys",
      size(plan.cpu.family->narrow_rows), size(plan.cpu.family->narrow_tile));
  line("tiles           tile_m %lld rows (panels of %lld), tile_n %lld keys",
       static_cast<long long>(plan.tile_m), static_cast<long long>(params.layout.panel_rows),
       static_cast<long long>(plan.tile_n));
  if (problem.fixed_split > 0) {
    line("splits          every %lld keys, at most %lld a sequence",
         static_cast<long long>(problem.fixed_split), static_cast<long long>(plan.num_splits));
  } else if (problem.num_splits > 0) {
    line("splits          %lld, as asked", static_cast<long long>(problem.num_splits));
  } else {
    line("splits          automatic, at most %lld a sequence, none below %lld keys",
         static_cast<long long>(plan.num_splits), static_cast<long long>(plan.cpu.least_split));
  }
  line("workers         %d", plan.device.num_workers);
  line("scratch         %zu bytes: %zu a worker, %zu for split partials", plan.scratch_bytes,
       plan.cpu.worker_bytes,
       plan.scratch_bytes - plan.cpu.worker_bytes * static_cast<size_t>(plan.device.num_workers));
  return text;
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
