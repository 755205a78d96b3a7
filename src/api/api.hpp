// SPDX-License-Identifier: Apache-2.0
// Argument checks: what the caller gave in, a problem or a resolved call out, or the first thing
// that is wrong with it.
#pragma once

#include <tegula/tegula.h>

#include "src/core/calls.hpp"
#include "src/core/status.hpp"

namespace tegula::api {

// Types, layouts, operands and sizes from the tensors (tegula_describe_forward).
Status describe_forward(const tegula_forward_args& args, tegula_problem& problem);

// Checks every field against contract.md, 2 to 4, and resolves defaults: o_dtype, softmax_scale,
// seqlen maxima, fixed_split rounded up, and causal into window_right = 0. Only what no device
// serves is refused here; the rest is the planner's business.
Status resolve_problem(const tegula_problem& given, tegula_problem& resolved);

// Checks the tensors against the plan's problem (types, heads, dims, layout, operands equal; sizes
// at most the maxima) and every index that is visible on the host, then resolves pointers and
// strides. call.problem points to `problem`.
Status resolve_forward(const tegula_problem& problem, const tegula_device& device,
                       const tegula_forward_args& args, ForwardCall& call);
// No plan: the device is that of the tensors, all of them.
Status resolve_append_kv(const tegula_append_kv_args& args, AppendCall& call);
Status resolve_combine(const tegula_combine_args& args, CombineCall& call);
// given may be NULL. device: the plan's, whose num_workers bounds the executor's; NULL: no plan.
// Of the CUDA driver nothing is asked: check_cuda_execution does.
Status resolve_execution(const tegula_execution* given, const tegula_device* device,
                         Execution& execution);
// Stream, workspace and error word of a CUDA call belong to its device.
Status check_cuda_execution(const Execution& execution, const tegula_device& device);
// given may be NULL: this machine's CPU. The driver fills in a GPU that the caller gave by its index
// alone.
Status resolve_device(const tegula_device* given, tegula_device& device);

}  // namespace tegula::api
