// SPDX-License-Identifier: Apache-2.0
// Linux gives a process the state of AMX tiles only when it asks for it.
#pragma once

namespace tegula::cpu {

// Asks at the first call, for all threads of the process; 3 to 6 us. False where the kernel is too
// old, a sandbox forbids the call, or an alternate signal stack of the process is too small for the
// larger frames: the kernels without tiles are used then.
bool tiles_permitted() noexcept;

}  // namespace tegula::cpu
