// SPDX-License-Identifier: Apache-2.0
// What the library has to say besides errors; goes to the caller's callback or nowhere.
#pragma once

#include <tegula/tegula.h>

namespace tegula {

void set_log_callback(tegula_log_fn callback, void* context);

// printf style, one line without its end, cut at 511 characters. Cheap while no callback is set.
__attribute__((format(printf, 1, 2))) void log_message(const char* format, ...);

}  // namespace tegula
