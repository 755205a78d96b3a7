// SPDX-License-Identifier: Apache-2.0
// forward: attention in one call.
#pragma once

#include <tegula/plan.hpp>

namespace tegula {
inline namespace v1 {

// Plans and runs. Planning costs a few microseconds; hold a Plan where that matters.
//   tegula::forward({.q = q, .k = k, .v = v, .o = o}, {.causal = true});
inline void forward(const ForwardArgs& args, const Options& options = {},
                    const Execution& execution = {}) {
  Plan(args, options).forward(args, execution);
}

}  // namespace v1
}  // namespace tegula
