// SPDX-License-Identifier: Apache-2.0
// The host's half of device/sm90/forward.hpp: which problems it takes, with which spec, and a
// launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tegula/tegula.h>

#include "device/abi/forward.hpp"
#include "src/core/calls.hpp"
#include "src/core/status.hpp"
#include "src/cuda/driver/driver.hpp"
#include "src/cuda/jit/jit.hpp"

namespace tegula::cuda {

struct ForwardPlan {
  device::ForwardSpec spec;        // operands that bulk tensor copies can read
  device::ForwardSpec plain_spec;  // any other strides and alignment
  bool plain = false;              // problem.unaligned: calls take plain_spec
  device::MaskRule mask{};
  int64_t list_capacity = 0;  // Schedule::kList: entries
  size_t scratch_bytes = 0;   // of a call, on the device
};

// The variant that every call of the plan takes (src/api refuses operands below problem.unaligned's
// class).
inline const device::ForwardSpec& spec_of(const ForwardPlan& plan) {
  return plan.plain ? plan.plain_spec : plan.spec;
}

// Says why the kernel does not take the problem, if so. problem is checked and resolved.
void refuse_forward(const tegula_problem& problem, const DeviceInfo& device, Refusal& why);

// Of a problem that refuse_forward() takes. Pure.
ForwardPlan plan_forward(const tegula_problem& problem);

// Compiles or finds, and loads, every kernel that calls of the plans may launch, side by side.
Status prepare_forward(std::span<const ForwardPlan* const> plans, int device_index);

// The texts of both variants, and of what is launched before them: for packs.
std::vector<KernelText> kernels_of(const ForwardPlan& plan);

// Queues the call on execution.stream: asynchronous, lengths are read on the device. The device is
// the one that holds the tensors, given by its index.
Status forward(const ForwardPlan& plan, const ForwardCall& call, const Execution& execution,
               int device_index);

// The generated text of a variant: includes, spec, entry.
std::string source_of(const device::ForwardSpec& spec);
// Short and unique: "forward bf16 128/128 128x128 ...".
std::string name_of(const device::ForwardSpec& spec);

}  // namespace tegula::cuda
