// SPDX-License-Identifier: Apache-2.0
// Clocks and power of a GPU by NVIDIA's management library, if the machine has it.
#pragma once

#include <string>

namespace tegula::program {

class Nvml {
 public:
  // Of the GPU on this PCI bus: the library's numbers and the driver's differ.
  explicit Nvml(const std::string& pci_bus_id);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  struct Reading {
    unsigned sm_mhz = 0, memory_mhz = 0;
    double watts = 0;
  };
  bool available() const { return device_ != nullptr; }
  const std::string& why_not() const { return why_not_; }
  Reading read() const;

 private:
  struct Functions;
  Functions* functions_ = nullptr;
  void* device_ = nullptr;
  std::string why_not_;
};

}  // namespace tegula::program
