// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/driver/driver.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

namespace tegula::cuda {
namespace {

constexpr int kLeastVersion = 12000;  // driver 525

struct Device {
  DeviceInfo info;
  std::atomic<CUcontext> context{nullptr};  // the primary one, retained
  std::atomic<CUmemoryPool> pool{nullptr};
};

struct State {
  Driver driver;
  int num_devices = 0;
  std::unique_ptr<Device[]> devices;
  std::mutex mutex;  // while a context is retained or a pool made
};

// Set by open_driver() once: either the state or why there is none. Never freed.
constinit std::atomic<State*> the_state{nullptr};
constinit tegula_status failure = TEGULA_UNSUPPORTED;
constinit char failure_text[400] = "";
// CUDA does not survive a fork: a child of a process that used it gets errors, at best.
constinit std::atomic<bool> forked{false};

__attribute__((format(printf, 2, 3))) void refuse(tegula_status code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(failure_text, sizeof failure_text, format, arguments);
  va_end(arguments);
  failure = code;
}

// By its soname first: a process that uses CUDA already must get the same copy. The folders are
// those that containers, WSL and NixOS keep outside the linker's path.
void* open_library(std::string& path) {
  const char* const asked = secure_getenv("TEGULA_LIBCUDA");
  if (asked != nullptr && asked[0] != '\0') {
    void* const handle = dlopen(asked, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* const why = dlerror();
      refuse(TEGULA_UNSUPPORTED, "CUDA driver: TEGULA_LIBCUDA: %.300s",
             why != nullptr ? why : asked);
    }
    path = asked;
    return handle;
  }
  constexpr const char* kNames[] = {
      "libcuda.so.1",
      "/usr/local/nvidia/lib64/libcuda.so.1",
      "/usr/lib/wsl/lib/libcuda.so.1",
      "/run/opengl-driver/lib/libcuda.so.1",
  };
  for (const char* name : kNames) {
    void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    path = name;
    return handle;
  }
  refuse(TEGULA_UNSUPPORTED,
         "CUDA driver: no libcuda.so.1 on the linker's path nor in /usr/local/nvidia/lib64, "
         "/usr/lib/wsl/lib, /run/opengl-driver/lib (TEGULA_LIBCUDA names another place)");
  return nullptr;
}

bool find_symbols(void* handle, Driver& driver) {
  const auto find = [handle](auto& pointer, const char* name) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(dlsym(handle, name));
    return pointer != nullptr;
  };
#define TEGULA_CUDA_FIND(symbol, parameters)                                                      \
  if (!find(driver.symbol, #symbol)) {                                                            \
    refuse(TEGULA_UNSUPPORTED,                                                                    \
           "CUDA driver (%.100s): has no %s; tegula needs driver 525 (CUDA 12.0) or a newer one", \
           driver.path.c_str(), #symbol);                                                         \
    return false;                                                                                 \
  }
  TEGULA_CUDA_ENTRY_POINTS(TEGULA_CUDA_FIND)
#undef TEGULA_CUDA_FIND
#define TEGULA_CUDA_FIND(symbol, parameters) find(driver.symbol, #symbol);
  TEGULA_CUDA_OPTIONAL_ENTRY_POINTS(TEGULA_CUDA_FIND)
#undef TEGULA_CUDA_FIND
  return true;
}

// Also before cuInit has succeeded, where a driver may have no text.
void describe(const Driver& driver, CUresult result, const char*& name, const char*& text) {
  name = nullptr;
  text = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &text);
  if (name == nullptr) name = "an unknown error";
  if (text == nullptr) text = "";
}

CUresult read_device(const Driver& driver, int index, DeviceInfo& info) {
  info.index = index;
  CUresult result = driver.cuDeviceGet(&info.device, index);
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    if (result == CUDA_SUCCESS) result = driver.cuDeviceGetAttribute(&value, which, info.device);
    return value;
  };
  info.compute_capability = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  info.num_sms = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  info.l2_bytes = static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  info.memory_pools = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) != 0;
  if (result == CUDA_SUCCESS) result = driver.cuDeviceTotalMem_v2(&info.memory_bytes, info.device);
  if (result == CUDA_SUCCESS) {
    result = driver.cuDeviceGetName(info.name, static_cast<int>(sizeof info.name), info.device);
  }
  return result;
}

void open_driver_throwing() {
  auto state = std::make_unique<State>();
  Driver& driver = state->driver;
  void* const handle = open_library(driver.path);
  if (handle == nullptr || !find_symbols(handle, driver)) return;
  const auto failed = [&driver](CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return false;
    const char *name, *text;
    describe(driver, result, name, text);
    // A machine without a usable GPU is refused like one without a driver.
    refuse(TEGULA_UNSUPPORTED, "CUDA driver (%.100s): %s: %s (%.150s)", driver.path.c_str(), what,
           name, text);
    return true;
  };
  if (failed(driver.cuInit(0), "cuInit")) return;
  if (failed(driver.cuDriverGetVersion(&driver.version), "cuDriverGetVersion")) return;
  if (driver.version < kLeastVersion) {
    return refuse(
        TEGULA_UNSUPPORTED,
        "CUDA driver: it is for CUDA %d.%d; tegula needs driver 525 (CUDA 12.0) or a newer "
        "one",
        driver.version / 1000, driver.version % 1000 / 10);
  }
  if (failed(driver.cuDeviceGetCount(&state->num_devices), "cuDeviceGetCount")) return;
  if (state->num_devices < 1) return refuse(TEGULA_UNSUPPORTED, "CUDA driver: it shows no GPU");
  state->devices = std::make_unique<Device[]>(static_cast<size_t>(state->num_devices));
  for (int i = 0; i < state->num_devices; ++i) {
    if (failed(read_device(driver, i, state->devices[i].info), "cuDeviceGetAttribute")) return;
  }
  Dl_info where;
  if (dladdr(reinterpret_cast<void*>(driver.cuInit), &where) != 0 && where.dli_fname != nullptr) {
    driver.path = where.dli_fname;
  }
  pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  the_state.store(state.release(), std::memory_order_release);
}

void open_driver() noexcept {
  try {
    open_driver_throwing();
  } catch (...) {
    refuse(TEGULA_OUT_OF_MEMORY, "CUDA driver: the system has no memory left");
  }
}

Status find_state(State*& state) {
  state = the_state.load(std::memory_order_acquire);
  if (state == nullptr) {
    // pthread_once begins anew in a child that was forked in the middle of it.
    static constinit pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_driver);
    state = the_state.load(std::memory_order_acquire);
    if (state == nullptr) return fail(failure, "%s", failure_text);
  }
  if (forked.load(std::memory_order_relaxed)) {
    return fail(
        TEGULA_DEVICE_ERROR,
        "CUDA driver: it was initialised before this process was forked, which CUDA does not "
        "survive; start the worker with spawn or exec");
  }
  return {};
}

Status find_device(int index, State*& state, Device*& device) {
  TEGULA_RETURN_IF_ERROR(find_state(state));
  if (index < 0 || index >= state->num_devices) {
    return fail(TEGULA_INVALID_ARGUMENT, "device: index %d, but the CUDA driver shows %d GPU%s",
                index, state->num_devices, state->num_devices == 1 ? "" : "s");
  }
  device = &state->devices[index];
  return {};
}

bool is_sticky(CUresult result) {
  constexpr CUresult kSticky[] = {CUDA_ERROR_ILLEGAL_ADDRESS,
                                  CUDA_ERROR_LAUNCH_TIMEOUT,
                                  CUDA_ERROR_ASSERT,
                                  CUDA_ERROR_HARDWARE_STACK_ERROR,
                                  CUDA_ERROR_ILLEGAL_INSTRUCTION,
                                  CUDA_ERROR_MISALIGNED_ADDRESS,
                                  CUDA_ERROR_INVALID_ADDRESS_SPACE,
                                  CUDA_ERROR_INVALID_PC,
                                  CUDA_ERROR_LAUNCH_FAILED};
  return std::find(std::begin(kSticky), std::end(kSticky), result) != std::end(kSticky);
}

Status scratch_pool(State& state, Device& device, CUmemoryPool& pool) {
  pool = device.pool.load(std::memory_order_acquire);
  if (pool != nullptr) return {};
  const std::lock_guard lock(state.mutex);
  pool = device.pool.load(std::memory_order_relaxed);
  if (pool != nullptr) return {};
  const CUmemPoolProps properties{CU_MEM_ALLOCATION_TYPE_PINNED,
                                  CU_MEM_HANDLE_TYPE_NONE,
                                  {CU_MEM_LOCATION_TYPE_DEVICE, device.info.device},
                                  nullptr,
                                  0,
                                  0,
                                  {}};
  CUmemoryPool made = nullptr;
  TEGULA_RETURN_IF_ERROR(
      check(state.driver.cuMemPoolCreate(&made, &properties), "cuMemPoolCreate"));
  uint64_t keep = UINT64_MAX;
  TEGULA_RETURN_IF_ERROR(
      check(state.driver.cuMemPoolSetAttribute(made, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep),
            "cuMemPoolSetAttribute"));
  pool = made;
  device.pool.store(made, std::memory_order_release);
  return {};
}

}  // namespace

Status find_driver(const Driver*& driver) {
  State* state = nullptr;
  TEGULA_RETURN_IF_ERROR(find_state(state));
  driver = &state->driver;
  return {};
}

Status check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return {};
  const char *name = "no driver", *text = "";
  if (const State* state = the_state.load(std::memory_order_acquire)) {
    describe(state->driver, result, name, text);
  }
  const tegula_status code =
      result == CUDA_ERROR_OUT_OF_MEMORY ? TEGULA_OUT_OF_MEMORY : TEGULA_DEVICE_ERROR;
  return fail(
      code, "%s: %s, error %d (%s)%s", what, name, static_cast<int>(result), text,
      is_sticky(result) ? "; a kernel that ran before in this process's context has failed" : "");
}

Status device_count(int& count) {
  State* state = nullptr;
  TEGULA_RETURN_IF_ERROR(find_state(state));
  count = state->num_devices;
  return {};
}

Status device_info(int index, const DeviceInfo*& info) {
  State* state = nullptr;
  Device* device = nullptr;
  TEGULA_RETURN_IF_ERROR(find_device(index, state, device));
  info = &device->info;
  return {};
}

Status ContextGuard::enter(int device_index) {
  State* state = nullptr;
  Device* device = nullptr;
  TEGULA_RETURN_IF_ERROR(find_device(device_index, state, device));
  CUcontext context = device->context.load(std::memory_order_acquire);
  if (context == nullptr) {
    const std::lock_guard lock(state->mutex);
    context = device->context.load(std::memory_order_relaxed);
    if (context == nullptr) {
      TEGULA_RETURN_IF_ERROR(
          check(state->driver.cuDevicePrimaryCtxRetain(&context, device->info.device),
                "cuDevicePrimaryCtxRetain"));
      device->context.store(context, std::memory_order_release);
    }
  }
  TEGULA_RETURN_IF_ERROR(check(state->driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent"));
  driver_ = &state->driver;
  return {};
}

ContextGuard::~ContextGuard() {
  CUcontext popped = nullptr;
  if (driver_ != nullptr) driver_->cuCtxPopCurrent_v2(&popped);
}

Status allocate_scratch(int device_index, size_t bytes, CUstream stream, CUdeviceptr& pointer) {
  State* state = nullptr;
  Device* device = nullptr;
  TEGULA_RETURN_IF_ERROR(find_device(device_index, state, device));
  if (!device->info.memory_pools) {
    return fail(TEGULA_UNSUPPORTED, "workspace: is NULL, and device %d has no memory pools",
                device_index);
  }
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  TEGULA_RETURN_IF_ERROR(
      check(state->driver.cuStreamIsCapturing(stream, &capture), "cuStreamIsCapturing"));
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return fail(
        TEGULA_INVALID_ARGUMENT,
        "workspace: is NULL, but the stream is being captured: a graph needs scratch of the "
        "caller's, %zu bytes",
        bytes);
  }
  CUmemoryPool pool = nullptr;
  TEGULA_RETURN_IF_ERROR(scratch_pool(*state, *device, pool));
  return check(state->driver.cuMemAllocFromPoolAsync(&pointer, bytes, pool, stream),
               "cuMemAllocFromPoolAsync");
}

Status free_scratch(CUdeviceptr pointer, CUstream stream) {
  State* state = nullptr;
  TEGULA_RETURN_IF_ERROR(find_state(state));
  return check(state->driver.cuMemFreeAsync(pointer, stream), "cuMemFreeAsync");
}

size_t trim_device_memory() {
  const State* const state = the_state.load(std::memory_order_acquire);
  if (state == nullptr || forked.load(std::memory_order_relaxed)) return 0;
  size_t freed = 0;
  for (int i = 0; i < state->num_devices; ++i) {
    CUmemoryPool const pool = state->devices[i].pool.load(std::memory_order_acquire);
    if (pool == nullptr) continue;
    uint64_t before = 0, after = 0;
    const auto reserved = [&](uint64_t& bytes) {
      return state->driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                                 &bytes) == CUDA_SUCCESS;
    };
    if (!reserved(before) || state->driver.cuMemPoolTrimTo(pool, 0) != CUDA_SUCCESS) continue;
    if (reserved(after) && after < before) freed += static_cast<size_t>(before - after);
  }
  return freed;
}

}  // namespace tegula::cuda
