// SPDX-License-Identifier: Apache-2.0
// The library itself: version, capabilities, memory, messages.
#pragma once

#include <tegula/tegula.h>
#include <tegula/error.hpp>
#include <tegula/executor.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tegula {
inline namespace v1 {

// MAJOR * 10000 + MINOR * 100 + PATCH of the library that runs.
inline int32_t version() {
  return tegula_version();
}

// Names: see tegula_capability. Unknown ones throw an Error that lists the known ones.
inline int64_t capability(const std::string& name) {
  int64_t value = 0;
  check(tegula_capability(nullptr, name.c_str(), &value));
  return value;
}
inline int64_t capability(const std::string& name, const Device& device) {
  int64_t value = 0;
  check(tegula_capability(&device.c(), name.c_str(), &value));
  return value;
}

// Frees idle scratch memory; the bytes freed.
inline size_t trim_memory() {
  size_t freed = 0;
  check(tegula_trim_memory(&freed));
  return freed;
}

// Receives messages of the library; see tegula_log_fn. nullptr turns them off, which is the default.
inline void set_log_callback(tegula_log_fn callback, void* context = nullptr) {
  tegula_set_log_callback(callback, context);
}

}  // namespace v1
}  // namespace tegula
