// SPDX-License-Identifier: Apache-2.0
// tegula for C++20: a header-only layer over the C ABI in tegula.h.
//
//   std::vector<float> q(...), k(...), v(...), o(...);
//   const tegula::Extents shape{batch, seqlen, heads, head_dim};
//   const tegula::ForwardArgs args{.q = {q, shape}, .k = {k, shape}, .v = {v, shape}, .o = {o,
//   shape}}; tegula::forward(args, {.causal = true});           // plan and run
//
//   const tegula::Plan plan(args, {.causal = true});   // or plan once
//   plan.forward(args);                                // and run as often as you like
//
// Every failure is a tegula::Error; outputs are untouched then.
#pragma once

#if __cplusplus < 202002L
#error "tegula/tegula.hpp needs C++20 (-std=c++20); tegula/tegula.h is plain C"
#endif

#include <tegula/append_kv.hpp>
#include <tegula/combine.hpp>
#include <tegula/error.hpp>
#include <tegula/executor.hpp>
#include <tegula/forward.hpp>
#include <tegula/library.hpp>
#include <tegula/plan.hpp>
#include <tegula/problem.hpp>
#include <tegula/tensor.hpp>
