// SPDX-License-Identifier: Apache-2.0
// Argument checks: what the caller gave in, a problem or a resolved call out, or the first thing that is wrong with it.
#pragma once

#include <tegula/tegula.h>

#include "src/core/calls.hpp"
#include "src/core/status.hpp"

namespace tegula::api {

// Types, layouts, operands and sizes from the tensors (tegula_describe_forward).
Status describe_forward(const tegula_forward_args& args, tegula_problem& problem);

// Checks every field against contract.md, 2 to 4, and resolves defaults: o_dtype, softmax_scale, seqlen maxima, and causal into
// window_right = 0. What the CPU or CUDA column refuses by name is the planner's business, not this function's.
Status resolve_problem(const tegula_problem& given, tegula_problem& resolved);

// Checks the tensors against the plan's problem (types, heads, dims, layout equal; sizes at most the maxima) and every index
// that is visible on the host, then resolves pointers and strides.
Status resolve_forward(const tegula_problem& problem, const tegula_forward_args& args, ForwardCall& call);
Status resolve_append_kv(const tegula_append_kv_args& args, AppendCall& call);
Status resolve_combine(const tegula_combine_args& args, CombineCall& call);
Status resolve_execution(const tegula_execution* given, Execution& execution);

}  // namespace tegula::api
