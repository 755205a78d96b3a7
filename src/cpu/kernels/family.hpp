// SPDX-License-Identifier: Apache-2.0
// The family of one instruction set as the generic code sees it. Included last by each isa/ file.
#pragma once

#include "src/cpu/kernels/append.hpp"
#include "src/cpu/kernels/finish.hpp"
#include "src/cpu/kernels/forward.hpp"

namespace tegula::TEGULA_ISA_NAMESPACE {

const cpu::KernelFamily kFamily = {
    .isa = TEGULA_ISA_VALUE,
    .name = TEGULA_ISA_NAME,
    .lanes = kLanes,
    .panel_vectors = kPanelVectors,
    .narrow_rows = kNarrowRows,
    .narrow_tile = kNarrowTile,
    .has_pairs = kHasPairs,
    .has_tiles = kHasTiles,
    .forward = forward,
    .combine = combine,
    .append = append,
};

}  // namespace tegula::TEGULA_ISA_NAMESPACE
