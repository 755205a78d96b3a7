// SPDX-License-Identifier: Apache-2.0
// The library as the commands use it: types by their names, device and executor from --isa and --threads.
#pragma once

#include <cstdint>
#include <string>

#include <tegula/tegula.hpp>

#include "src/io/array.hpp"
#include "tests/oracle/formats.hpp"
#include "tools/tegula/failure.hpp"
#include "tools/tegula/workers.hpp"

namespace tegula::program {

// What a file calls a type -> the library's; kNone where it has none (f64, u8 ...).
Dtype library_dtype(io::Dtype dtype);
io::Dtype file_dtype(Dtype dtype);
oracle::Format format_of(Dtype dtype);  // floats only
bool is_8bit(Dtype dtype);
// As it stands in the C ABI's structures.
inline std::int32_t code_of(Dtype dtype) { return static_cast<std::int32_t>(dtype); }

// "fp32", "f32", "bf16", "e4m3" ...; kNone if it is none of them.
Dtype find_dtype(const std::string& name);
std::string known_dtypes();  // for people
// Failure naming the option and what it takes if the name is unknown.
Dtype parse_dtype(const std::string& option, const std::string& name);
tegula_isa parse_isa(const std::string& name);

struct MachineOptions {
  int threads = 0;  // 0: as many as the library's pool has
  std::string isa = "auto";
};

// Device and executor of one run.
class Machine {
 public:
  explicit Machine(const MachineOptions& options);

  const Device& device() const { return device_; }
  const Execution& execution() const { return execution_; }
  int threads() const { return device_.num_workers(); }
  // As many threads as the library uses, for work that is not its own.
  Workers& workers() { return workers_; }

 private:
  Device device_;
  Workers workers_;
  Execution execution_;
};

std::string version_text();  // "0.1.0"

}  // namespace tegula::program
