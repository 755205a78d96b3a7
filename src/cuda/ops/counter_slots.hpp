// SPDX-License-Identifier: Apache-2.0
// Tile counters on a device that every launch leaves at zero, so that no launch needs a memset
// before it (3 % of a call of 100 us). Two launches that may run at once have different slots:
// launches of one stream follow each other and share one; a captured launch, which may be replayed
// anywhere, keeps its own for the life of the process.
#pragma once

#include "device/abi/forward.hpp"
#include "src/core/status.hpp"
#include "src/cuda/driver/driver.hpp"

namespace tegula::cuda {

// Makes the device's slots; not under stream capture. The device's context is current.
Status prepare_counter_slots(const Driver& driver, int device_index);

// The slot of a launch on the stream. TEGULA_OUT_OF_MEMORY: more launches were captured than there
// are slots.
Status counter_slot(const Driver& driver, int device_index, CUstream stream,
                    device::TileCounter*& slot);

}  // namespace tegula::cuda
