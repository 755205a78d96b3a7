// SPDX-License-Identifier: Apache-2.0
// The operations of the CPU back end, on checked and resolved calls.
#pragma once

#include "src/core/calls.hpp"
#include "src/core/status.hpp"
#include "src/cpu/forward_plan.hpp"

namespace tegula::cpu {

Status forward(const ForwardPlan& plan, const ForwardCall& call, const Execution& execution);
Status append_kv(const KernelFamily& family, const AppendCall& call, const Execution& execution);
Status combine(const KernelFamily& family, const CombineCall& call, const Execution& execution);

}  // namespace tegula::cpu
