// SPDX-License-Identifier: Apache-2.0
// The only place that knows all back ends: ordered lists of implementations, the choice among them,
// and the reasons.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tegula/tegula.h>

#include "src/core/calls.hpp"
#include "src/core/status.hpp"
#include "src/cpu/forward_plan.hpp"
#include "src/cuda/ops/forward.hpp"

namespace tegula {

struct Plan;

// The lines of tegula_explain.
class Explanation {
 public:
  __attribute__((format(printf, 2, 3))) void line(const char* format, ...);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// One way to run a forward. Lists of them are ordered: the first that accepts wins.
struct Implementation {
  const char* name;
  void (*refuse)(const tegula_problem& problem, const tegula_device& device, Refusal& why);
  void (*configure)(Plan& plan);  // fills tiles, splits and scratch_bytes
  Status (*prepare)(std::span<const Plan* const> plans);  // all of this implementation
  void (*explain)(const Plan& plan, Explanation& out);  // how it computes: tiles, splits, memory
  Status (*forward)(const Plan& plan, const ForwardCall& call, const Execution& execution);
};

struct Plan {
  tegula_problem problem;  // checked, defaults resolved (api::resolve_problem)
  tegula_device device;    // isa: the one chosen, never AUTO (CPU)
  int32_t asked_isa = TEGULA_ISA_AUTO;
  const Implementation* implementation = nullptr;
  int64_t tile_m = 0;
  int64_t tile_n = 0;
  int64_t num_splits = 1;
  size_t scratch_bytes = 0;
  size_t state_bytes = 0;
  cpu::ForwardPlan cpu;                       // of a CPU implementation
  cuda::ForwardPlan cuda;                     // of a CUDA one
  mutable std::atomic<bool> prepared{false};  // CUDA: compiled and loaded
};

// problem is checked and resolved. Fails with TEGULA_UNSUPPORTED and the reasons if no
// implementation accepts.
Status make_plan(const tegula_problem& problem, const tegula_device& device, Plan& plan);
std::string explain(const Plan& plan);
// Compiles and loads what the plans need, kernels side by side; once is enough.
Status prepare(std::span<const Plan* const> plans);

// The CPU of this machine, the environment's TEGULA_ISA applied; fails if that names an unknown or
// absent ISA.
Status describe_cpu(tegula_device& device);

// Fills compute_capability and num_sms of the GPU device.index; fails with the driver's reason.
Status describe_cuda(tegula_device& device);
// The memory behind an address lies on the GPU; `name` is the argument's.
Status check_cuda_address(const char* name, const void* address, const tegula_device& device);
// The stream (NULL: fine) belongs to the GPU's primary context.
Status check_cuda_stream(void* stream, const tegula_device& device);

// What this build and the device can do (tegula_capability); device is checked.
Status capability(const tegula_device& device, const char* name, int64_t* value);
// Frees the idle scratch of all back ends; the bytes freed.
size_t trim_memory();

Status run_append_kv(const AppendCall& call, const Execution& execution);
Status run_combine(const CombineCall& call, const Execution& execution);

}  // namespace tegula

// The ABI's opaque handle.
struct tegula_plan {
  tegula::Plan plan;
};
