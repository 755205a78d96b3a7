// SPDX-License-Identifier: Apache-2.0
// Checks of index values that the host can see (contract.md, 9): lengths, offsets, page numbers.
// O(batch + pages seen).
#pragma once

#include "src/core/calls.hpp"
#include "src/core/status.hpp"

namespace tegula::api {

// From 0, not decreasing, ending at most at `total`, the rows of `tensor_name`. The view has batch
// + 1 entries.
Status check_offsets(const char* name, const IndexView& offsets, int64_t batch,
                     const char* tensor_name, const char* what, int64_t total);

// Row of a page table: its capacity in pages, checked.
Status check_page_row(const PageTable& pages, int64_t batch_index, int64_t total_pages,
                      int64_t& row_pages);
// Ids of pages [begin, end) of a sequence lie within [0, num_pages).
Status check_page_ids(const PageTable& pages, int64_t batch_index, int64_t begin, int64_t end,
                      int64_t num_pages);

// Arrays of offsets that are present, each alone, and seqlen_new.
Status check_visible_offsets(const tegula_problem& here, const ForwardCall& call);

// Every length and page of a forward; page ids only if they are present (a CUDA call may have no
// copy of them). `here` describes this call's tensors; call.problem is the plan's.
Status check_lengths(const tegula_problem& here, const tegula_tensor* bias,
                     const ForwardCall& call);

}  // namespace tegula::api
