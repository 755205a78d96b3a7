// SPDX-License-Identifier: Apache-2.0
// The CPU back end's implementations of forward: one an instruction set.
#include "src/core/dtype.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/families.hpp"
#include "src/plan/implementations.hpp"

namespace tegula {
namespace {

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
    if (!cpu::core_rule().use_pairs) return refuse(why, "%s", cpu::core_rule().reason);
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

Status prepare_cpu(std::span<const Plan* const>) {
  return {};
}

void explain_cpu(const Plan& plan, Explanation& out) {
  const tegula_problem& problem = plan.problem;
  const cpu::ForwardParams& params = plan.cpu.params;
  const auto size = [](int64_t value) { return static_cast<long long>(value); };
  out.line("products        %s",
           params.use_tiles ? (params.tiles.q_parts * params.tiles.kv_parts > 1
                                   ? "matrix tiles (tdpbf16ps) on fp16 as two bf16 parts, fp32 sums"
                                   : "matrix tiles (tdpbf16ps), fp32 sums")
           : params.pairs   ? "bf16 pairs (vdpbf16ps), fp32 sums"
                            : "fp32");
  out.line("packing         %lld query head%s a kv head in the rows of an item",
           size(params.qheads_per_kvhead), params.qheads_per_kvhead == 1 ? " of" : "s of");
  out.line("few rows        up to %lld packed rows a sequence: lanes along head_dim, %lld keys a block",
           params.use_tiles ? size(cpu::kLeastTileRows - 1) : size(plan.cpu.family->narrow_rows),
           size(plan.cpu.family->narrow_tile));
  if (params.use_tiles)
    out.line("                up to %lld: tiles, k and v as they lie", size(cpu::kFewTileRows));
  out.line("tiles           tile_m %lld rows (panels of %lld), tile_n %lld keys",
           static_cast<long long>(plan.tile_m), static_cast<long long>(params.layout.panel_rows),
           static_cast<long long>(plan.tile_n));
  if (problem.fixed_split > 0) {
    out.line("splits          every %lld keys, at most %lld a sequence",
             static_cast<long long>(problem.fixed_split), static_cast<long long>(plan.num_splits));
  } else if (problem.num_splits > 0) {
    out.line("splits          %lld, as asked", static_cast<long long>(problem.num_splits));
  } else {
    out.line("splits          automatic, at most %lld a sequence, none below %lld keys",
             static_cast<long long>(plan.num_splits), static_cast<long long>(plan.cpu.least_split));
  }
  out.line("workers         %d", plan.device.num_workers);
  out.line(
      "scratch         %zu bytes: %zu a worker, %zu for split partials", plan.scratch_bytes,
      plan.cpu.worker_bytes,
      plan.scratch_bytes - plan.cpu.worker_bytes * static_cast<size_t>(plan.device.num_workers));
}

template <tegula_isa kIsa>
constexpr Implementation cpu_implementation(const char* name) {
  return {name, refuse_cpu<kIsa>, configure_cpu<kIsa>, prepare_cpu, explain_cpu, forward_cpu};
}

}  // namespace

constexpr Implementation kCpuAmx = cpu_implementation<TEGULA_ISA_AMX>("cpu_amx");
constexpr Implementation kCpuAvx512Bf16 =
    cpu_implementation<TEGULA_ISA_AVX512BF16>("cpu_avx512bf16");
constexpr Implementation kCpuAvx512 = cpu_implementation<TEGULA_ISA_AVX512>("cpu_avx512");
constexpr Implementation kCpuAvx2 = cpu_implementation<TEGULA_ISA_AVX2>("cpu_avx2");
constexpr Implementation kCpuScalar = cpu_implementation<TEGULA_ISA_SCALAR>("cpu_scalar");
constexpr Implementation kCpuAmxModel = cpu_implementation<TEGULA_ISA_AMX_MODEL>("cpu_amx_model");

}  // namespace tegula
