// SPDX-License-Identifier: Apache-2.0
// The list of forward's tensors, which the description and the call walk.
#pragma once

#include <tegula/tegula.h>

#include "src/core/status.hpp"

namespace tegula::api {

// Calls f(name, tensor) for each tensor that is present, index tensors included, until one fails.
template <class F>
Status for_each_tensor(const tegula_forward_args& a, F&& f) {
  const struct {
    const char* name;
    const tegula_tensor* tensor;
  } tensors[] = {{"q", a.q},
                 {"k", a.k},
                 {"v", a.v},
                 {"o", a.o},
                 {"lse", a.lse},
                 {"sink", a.sink},
                 {"bias", a.bias},
                 {"alibi_slopes", a.alibi_slopes},
                 {"descale_q", a.descale_q},
                 {"descale_k", a.descale_k},
                 {"descale_v", a.descale_v}};
  const struct {
    const char* name;
    const tegula_index* index;
  } indices[] = {{"cu_seqlens_q", a.cu_seqlens_q},    {"cu_seqlens_k", a.cu_seqlens_k},
                 {"seqused_q", a.seqused_q},          {"seqused_k", a.seqused_k},
                 {"leftpad_k", a.leftpad_k},          {"page_table", a.page_table},
                 {"page_indices", a.page_indices},    {"page_indptr", a.page_indptr},
                 {"cu_seqlens_new", a.cu_seqlens_new}};
  for (const auto& entry : tensors) {
    if (entry.tensor != nullptr) TEGULA_RETURN_IF_ERROR(f(entry.name, *entry.tensor));
  }
  for (const auto& entry : indices) {
    if (entry.index != nullptr) TEGULA_RETURN_IF_ERROR(f(entry.name, entry.index->tensor));
  }
  return {};
}

}  // namespace tegula::api
