// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/nvml.hpp"

#include <dlfcn.h>

#include <type_traits>

namespace tegula::program {

// nvml.h: functions return 0 for success.
struct Nvml::Functions {
  int (*init)();
  int (*shutdown)();
  int (*by_bus)(const char* pci_bus_id, void** device);
  int (*clock)(void* device, int type, unsigned* mhz);
  int (*power)(void* device, unsigned* milliwatts);

  bool find(void* library) {
    const auto one = [library](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    return one(init, "nvmlInit_v2") && one(shutdown, "nvmlShutdown") &&
           one(by_bus, "nvmlDeviceGetHandleByPciBusId_v2") &&
           one(clock, "nvmlDeviceGetClockInfo") && one(power, "nvmlDeviceGetPowerUsage");
  }
};

Nvml::Nvml(const std::string& pci_bus_id) {
  void* library = nullptr;
  for (const char* name : {"libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    why_not_ = "no libnvidia-ml.so.1";
    return;
  }
  Functions functions{};
  if (!functions.find(library)) {
    why_not_ = "libnvidia-ml.so.1 is too old";
  } else if (functions.init() != 0) {
    why_not_ = "nvmlInit failed";
  } else {
    functions_ = new Functions(functions);
    if (functions_->by_bus(pci_bus_id.c_str(), &device_) != 0) {
      device_ = nullptr;
      why_not_ = "NVML does not know " + pci_bus_id;
    }
  }
}

Nvml::~Nvml() {
  if (functions_ != nullptr) functions_->shutdown();
  delete functions_;
}

Nvml::Reading Nvml::read() const {
  constexpr int kSmClock = 1, kMemoryClock = 2;
  Reading reading;
  if (!available()) return reading;
  unsigned milliwatts = 0;
  functions_->clock(device_, kSmClock, &reading.sm_mhz);
  functions_->clock(device_, kMemoryClock, &reading.memory_mhz);
  functions_->power(device_, &milliwatts);
  reading.watts = milliwatts / 1000.0;
  return reading;
}

}  // namespace tegula::program
