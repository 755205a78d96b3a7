// SPDX-License-Identifier: Apache-2.0
#include "tests/device/fake/fake_cuda.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/device/model/machine.hpp"

// Types that NVIDIA's header leaves incomplete.
namespace tegula::cuda {

struct CUctx_st {
  int device;
  bool primary;
};
struct CUmod_st {
  std::string image;
  void* kernels;  // a library of the model's compiler
};
struct CUfunc_st {
  std::string name;
  std::string image;
  void* kernels;
  int device;
  int dynamic_shared = 0;
  unsigned long long launches = 0;
};
struct CUstream_st {
  CUctx_st* context;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
};
struct CUevent_st {
  double milliseconds = 0;
};
struct CUmemPoolHandle_st {
  int device;
};
struct CUgraph_st {};
struct CUgraphExec_st {};

}  // namespace tegula::cuda

namespace fake {
namespace {

using namespace tegula::cuda;

long long number_of(const char* name, long long otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

struct Block {
  size_t bytes;
  int device;
};
struct Fault {
  CUresult result;
  int from, times;
};

struct State {
  std::recursive_mutex mutex;
  int num_devices = static_cast<int>(number_of("FAKE_CUDA_DEVICES", 2));
  int arch = static_cast<int>(number_of("FAKE_CUDA_ARCH", 90));
  size_t memory = static_cast<size_t>(number_of("FAKE_CUDA_MEMORY", 1LL << 30));
  std::vector<std::unique_ptr<CUctx_st>> primaries;
  std::map<uintptr_t, Block> blocks;
  std::map<uintptr_t, size_t> pinned;
  std::map<std::string, Fault> faults;
  std::map<std::string, long long> calls;
  Kernel kernel = nullptr;
  void* kernel_context = nullptr;
  double clock = 0;
  std::string last_text = "the fake driver was told to";
  std::vector<std::shared_ptr<void>> kept;  // what is never given back

  size_t used(int device) const {
    size_t sum = 0;
    for (const auto& [address, block] : blocks) sum += block.device == device ? block.bytes : 0;
    return sum;
  }
};

State& state() {
  static State* const the_state = new State;
  return *the_state;
}

template <class T>
T* keep(T* made) {
  state().kept.push_back(std::shared_ptr<T>(made));
  return made;
}

thread_local std::vector<CUctx_st*> stack;

CUctx_st* current() { return stack.empty() ? nullptr : stack.back(); }

// Counts a call, and fails it where a test asks for that.
CUresult enter(const char* symbol) {
  State& s = state();
  ++s.calls[symbol];
  const auto fault = s.faults.find(symbol);
  if (fault == s.faults.end()) return CUDA_SUCCESS;
  if (fault->second.from-- > 1) return CUDA_SUCCESS;
  fault->second.from = 1;
  const CUresult result = fault->second.result;
  if (--fault->second.times <= 0) s.faults.erase(fault);
  return result;
}

CUresult allocate(CUdeviceptr* pointer, size_t bytes, int device) {
  State& s = state();
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (s.used(device) + bytes > s.memory) return CUDA_ERROR_OUT_OF_MEMORY;
  void* const block = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (block == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = reinterpret_cast<uintptr_t>(block);
  s.blocks[*pointer] = {bytes, device};
  return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr pointer) {
  State& s = state();
  const auto found = s.blocks.find(pointer);
  if (found == s.blocks.end()) return CUDA_ERROR_INVALID_VALUE;
  s.blocks.erase(found);
  std::free(reinterpret_cast<void*>(pointer));
  return CUDA_SUCCESS;
}

// The block of device memory that holds an address.
const Block* find_block(CUdeviceptr pointer) {
  const auto& blocks = state().blocks;
  auto after = blocks.upper_bound(pointer);
  if (after == blocks.begin()) return nullptr;
  --after;
  return pointer < after->first + after->second.bytes ? &after->second : nullptr;
}

bool on_device(CUdeviceptr pointer, size_t bytes) {
  return bytes == 0 || (find_block(pointer) != nullptr &&
                        find_block(pointer) == find_block(pointer + bytes - 1));
}

// What capture forbids.
bool capturing(CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) > 2 &&
         stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

Control::TensorMap read_map(const void* map) {
  Control::TensorMap copy;
  const void* where;
  std::memcpy(&where, map, sizeof where);
  std::memcpy(&copy, where, sizeof copy);
  return copy;
}

// As model/ wants it; the forward's tensors have four dimensions.
tegula::model::TensorView view_of(const void* map) {
  const Control::TensorMap made = read_map(map);
  tegula::model::TensorView view{made.data, made.element_size, {}, {}, {}};
  for (int i = 0; i < 4; ++i) {
    view.sizes[i] = i < made.rank ? made.sizes[i] : 1;
    view.strides[i] = i < made.rank ? made.strides[i] : 0;
    view.box[i] = i < made.rank ? made.box[i] : 1;
  }
  return view;
}

CUresult run_model(const CUlaunchConfig& config, CUfunc_st& function, void** parameters) {
  const tegula::model::LaunchSize size = {
      {config.gridDimX, config.gridDimY, config.gridDimZ},
      {config.blockDimX, config.blockDimY, config.blockDimZ},
      config.sharedMemBytes};
  // Counted for each kernel, so that the repeats of a case meet every timing.
  static const auto first = static_cast<unsigned long long>(number_of("FAKE_CUDA_SEED", 0));
  const std::string wrong = tegula::model::run_kernel(function.kernels, size, parameters, view_of,
                                                      first + function.launches++);
  if (wrong.empty()) return CUDA_SUCCESS;
  state().last_text = function.name + ": " + wrong;
  return CUDA_ERROR_LAUNCH_FAILED;
}

}  // namespace
}  // namespace fake

using namespace tegula::cuda;
using fake::current;
using fake::enter;
using fake::stack;
using fake::state;

#define FAKE(symbol, parameters)                                                    \
  extern "C" __attribute__((visibility("default"))) CUresult symbol parameters {    \
    const std::lock_guard<std::recursive_mutex> lock(state().mutex);                \
    if (const CUresult fault = enter(#symbol); fault != CUDA_SUCCESS) return fault;
#define FAKE_END return CUDA_SUCCESS; }

FAKE(cuInit, (unsigned))
  if (state().num_devices == 0) return CUDA_ERROR_NO_DEVICE;
  for (int i = 0; i < state().num_devices && state().primaries.size() < 16; ++i) {
    state().primaries.push_back(std::make_unique<CUctx_st>(CUctx_st{i, true}));
  }
FAKE_END

FAKE(cuDriverGetVersion, (int* version))
  *version = static_cast<int>(fake::number_of("FAKE_CUDA_VERSION", 13000));
FAKE_END

FAKE(cuGetErrorName, (CUresult error, const char** name))
  *name = error == CUDA_SUCCESS               ? "CUDA_SUCCESS"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
          : error == CUDA_ERROR_NO_DEVICE     ? "CUDA_ERROR_NO_DEVICE"
          : error == CUDA_ERROR_LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
                                              : "CUDA_ERROR_FAKE";
FAKE_END

FAKE(cuGetErrorString, (CUresult, const char** text))
  *text = state().last_text.c_str();
FAKE_END

FAKE(cuDeviceGetCount, (int* count))
  *count = state().num_devices;
FAKE_END

FAKE(cuDeviceGet, (CUdevice* device, int ordinal))
  if (ordinal < 0 || ordinal >= state().num_devices) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
FAKE_END

FAKE(cuDeviceGetName, (char* name, int size, CUdevice device))
  std::snprintf(name, static_cast<size_t>(size), "Fake GPU %d", device);
FAKE_END

FAKE(cuDeviceGetPCIBusId, (char* text, int size, CUdevice device))
  std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", device);
FAKE_END

FAKE(cuDeviceGetAttribute, (int* value, CUdevice_attribute attribute, CUdevice))
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = state().arch / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = state().arch % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 
      *value = static_cast<int>(fake::number_of("FAKE_CUDA_SMS", 132));
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 50 << 20; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
    default: *value = 1000000; break;
  }
FAKE_END

FAKE(cuDeviceTotalMem_v2, (size_t* bytes, CUdevice))
  *bytes = state().memory;
FAKE_END

// ---- Contexts -----------------------------------------------------------------------------------

FAKE(cuDevicePrimaryCtxRetain, (CUcontext* context, CUdevice device))
  *context = state().primaries[static_cast<size_t>(device)].get();
FAKE_END

FAKE(cuCtxCreate_v2, (CUcontext* context, unsigned, CUdevice device))
  *context = fake::keep(new CUctx_st{device, false});
  stack.push_back(*context);
FAKE_END

FAKE(cuCtxPushCurrent_v2, (CUcontext context))
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  stack.push_back(context);
FAKE_END

FAKE(cuCtxPopCurrent_v2, (CUcontext* context))
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
FAKE_END

FAKE(cuCtxGetCurrent, (CUcontext* context))
  *context = current();
FAKE_END

FAKE(cuCtxGetDevice, (CUdevice* device))
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current()->device;
FAKE_END

// ---- Modules and launches -----------------------------------------------------------------------

FAKE(cuModuleLoadDataEx,
     (CUmodule* module, const void* image, unsigned, CUjit_option*, void**))
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (image == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  if (std::memcmp(image, "\177ELF", 4) == 0) {
    void* const kernels = tegula::model::open_kernels(image, state().last_text);
    if (kernels == nullptr) return CUDA_ERROR_INVALID_IMAGE;
    *module = fake::keep(new CUmod_st{"", kernels});
  } else {
    *module = fake::keep(new CUmod_st{static_cast<const char*>(image), nullptr});
  }
FAKE_END

FAKE(cuModuleUnload, (CUmodule))
FAKE_END

FAKE(cuModuleGetFunction, (CUfunction* function, CUmodule module, const char* name))
  *function = fake::keep(new CUfunc_st{name, module->image, module->kernels, current()->device});
FAKE_END

FAKE(cuFuncGetAttribute, (int* value, CUfunction_attribute attribute, CUfunction))
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 168
                                                                : 0;
FAKE_END

FAKE(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value))
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value > 227 << 10) return CUDA_ERROR_INVALID_VALUE;
    function->dynamic_shared = value;
  }
FAKE_END

FAKE(cuLaunchKernelEx,
     (const CUlaunchConfig* config, CUfunction function, void** parameters, void**))
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const bool named = reinterpret_cast<uintptr_t>(config->hStream) > 2;
  if (current()->device != function->device ||
      (named && config->hStream->context != current())) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0 ||
      config->gridDimX > 0x7fffffffu || config->gridDimY > 65535 || config->gridDimZ > 65535 ||
      config->blockDimX * config->blockDimY * config->blockDimZ > 1024 ||
      config->sharedMemBytes > static_cast<unsigned>(std::max(function->dynamic_shared, 48 << 10))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (state().kernel != nullptr && !fake::capturing(config->hStream)) {
    state().kernel(state().kernel_context,
                   {function->name.c_str(), function->image.c_str(), function->device, config,
                    parameters});
  } else if (function->kernels != nullptr && !fake::capturing(config->hStream)) {
    return fake::run_model(*config, *function, parameters);
  }
FAKE_END

// Keeps what it is given where the map's first bytes point.
FAKE(cuTensorMapEncodeTiled,
     (CUtensorMap * map, CUtensorMapDataType type, uint32_t rank, void* address,
      const uint64_t* sizes, const uint64_t* strides, const uint32_t* box,
      const uint32_t* element_strides, CUtensorMapInterleave, CUtensorMapSwizzle,
      CUtensorMapL2promotion, CUtensorMapFloatOOBfill))
  const int element = type == CU_TENSOR_MAP_DATA_TYPE_UINT8     ? 1
                      : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ||
                              type == CU_TENSOR_MAP_DATA_TYPE_INT32 ||
                              type == CU_TENSOR_MAP_DATA_TYPE_UINT32
                          ? 4
                          : 2;
  if (rank < 1 || rank > 5 || reinterpret_cast<uintptr_t>(address) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(map) % 64 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto* copy = fake::keep(new fake::Control::TensorMap{});
  copy->data = static_cast<const unsigned char*>(address);
  copy->rank = static_cast<int>(rank);
  copy->element_size = element;
  for (uint32_t i = 0; i < rank; ++i) {
    copy->sizes[i] = sizes[i];
    copy->strides[i] = i == 0 ? static_cast<uint64_t>(element) : strides[i - 1];
    copy->box[i] = box[i];
    const bool bad_stride = i > 0 && (strides[i - 1] % 16 != 0 || strides[i - 1] == 0 ||
                                      strides[i - 1] >= uint64_t{1} << 40);
    if (bad_stride || sizes[i] == 0 || sizes[i] > uint64_t{1} << 32 || box[i] == 0 ||
        box[i] > 256 || element_strides[i] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &copy, sizeof copy);
FAKE_END

// ---- Streams, events, graphs --------------------------------------------------------------------

FAKE(cuStreamCreate, (CUstream * stream, unsigned))
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *stream = fake::keep(new CUstream_st{current()});
FAKE_END

FAKE(cuStreamDestroy_v2, (CUstream))
FAKE_END

FAKE(cuStreamGetCtx, (CUstream stream, CUcontext* context))
  *context = reinterpret_cast<uintptr_t>(stream) > 2 ? stream->context : current();
FAKE_END

FAKE(cuStreamGetId, (CUstream stream, unsigned long long* id))
  *id = reinterpret_cast<uintptr_t>(stream);
FAKE_END

FAKE(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* status))
  *status = fake::capturing(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                    : CU_STREAM_CAPTURE_STATUS_NONE;
FAKE_END

FAKE(cuStreamSynchronize, (CUstream stream))
  if (fake::capturing(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
FAKE_END

FAKE(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode))
  stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
FAKE_END

FAKE(cuStreamEndCapture, (CUstream stream, CUgraph* graph))
  stream->capture = CU_STREAM_CAPTURE_STATUS_NONE;
  *graph = new CUgraph_st;
FAKE_END

FAKE(cuGraphInstantiateWithFlags, (CUgraphExec * executable, CUgraph, unsigned long long))
  *executable = new CUgraphExec_st;
FAKE_END

FAKE(cuGraphLaunch, (CUgraphExec, CUstream))
FAKE_END

FAKE(cuGraphExecDestroy, (CUgraphExec executable))
  delete executable;
FAKE_END

FAKE(cuGraphDestroy, (CUgraph graph))
  delete graph;
FAKE_END

FAKE(cuEventCreate, (CUevent * event, unsigned))
  *event = new CUevent_st;
FAKE_END

FAKE(cuEventDestroy_v2, (CUevent event))
  delete event;
FAKE_END

FAKE(cuEventRecord, (CUevent event, CUstream))
  event->milliseconds = state().clock += 1.0;
FAKE_END

FAKE(cuEventSynchronize, (CUevent))
FAKE_END

FAKE(cuEventElapsedTime, (float* milliseconds, CUevent begin, CUevent end))
  *milliseconds = static_cast<float>(end->milliseconds - begin->milliseconds);
FAKE_END

// ---- Memory -------------------------------------------------------------------------------------

FAKE(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes))
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return fake::allocate(pointer, bytes, current()->device);
FAKE_END

FAKE(cuMemFree_v2, (CUdeviceptr pointer))
  return fake::release(pointer);
FAKE_END

FAKE(cuMemAllocHost_v2, (void** pointer, size_t bytes))
  *pointer = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  state().pinned[reinterpret_cast<uintptr_t>(*pointer)] = bytes;
FAKE_END

FAKE(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps* properties))
  *pool = new CUmemPoolHandle_st{properties->location.id};
FAKE_END

FAKE(cuMemPoolSetAttribute, (CUmemoryPool, CUmemPool_attribute, void*))
FAKE_END

FAKE(cuMemPoolGetAttribute, (CUmemoryPool, CUmemPool_attribute, void* value))
  const uint64_t none = 0;  // what was freed is gone at once
  std::memcpy(value, &none, sizeof none);
FAKE_END

FAKE(cuMemPoolTrimTo, (CUmemoryPool, size_t))
FAKE_END

FAKE(cuMemAllocFromPoolAsync,
     (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))
  if (fake::capturing(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return fake::allocate(pointer, bytes, pool->device);
FAKE_END

FAKE(cuMemFreeAsync, (CUdeviceptr pointer, CUstream))
  return fake::release(pointer);
FAKE_END

FAKE(cuPointerGetAttributes, (unsigned count, CUpointer_attribute* attributes, void** values,
                              CUdeviceptr pointer))
  const fake::Block* const block = fake::find_block(pointer);
  const auto& pinned = state().pinned;
  auto after = pinned.upper_bound(pointer);
  const bool is_pinned = after != pinned.begin() &&
                         pointer < std::prev(after)->first + std::prev(after)->second;
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: {
        const unsigned type = block != nullptr ? CU_MEMORYTYPE_DEVICE
                              : is_pinned      ? CU_MEMORYTYPE_HOST
                                               : 0;
        std::memcpy(values[i], &type, sizeof type);
        break;
      }
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
        const int ordinal = block != nullptr ? block->device : is_pinned ? 0 : -2;
        std::memcpy(values[i], &ordinal, sizeof ordinal);
        break;
      }
      default: std::memset(values[i], 0, 1); break;
    }
  }
FAKE_END

FAKE(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t bytes, CUstream))
  if (!fake::on_device(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
FAKE_END

FAKE(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes, CUstream))
  if (!fake::on_device(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
FAKE_END

FAKE(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream))
  if (!fake::on_device(to, bytes) || !fake::on_device(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
FAKE_END

FAKE(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream))
  if (!fake::on_device(to, count)) return CUDA_ERROR_INVALID_VALUE;
  std::memset(reinterpret_cast<void*>(to), value, count);
FAKE_END

FAKE(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream))
  if (!fake::on_device(to, 4 * count)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) std::memcpy(reinterpret_cast<void*>(to + 4 * i), &value, 4);
FAKE_END

// ---- Pages --------------------------------------------------------------------------------------

extern "C" __attribute__((visibility("default"))) CUresult cuMemAddressReserve(
    CUdeviceptr* pointer, size_t size, size_t, CUdeviceptr, unsigned long long) {
  void* const block =
      mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (block == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = reinterpret_cast<uintptr_t>(block);
  return CUDA_SUCCESS;
}

// The handle is the device, the first field of its location.
extern "C" __attribute__((visibility("default"))) CUresult cuMemCreate(
    unsigned long long* handle, size_t, const int* properties, unsigned long long) {
  *handle = static_cast<unsigned long long>(properties[3]);
  return CUDA_SUCCESS;
}

extern "C" __attribute__((visibility("default"))) CUresult cuMemMap(
    CUdeviceptr pointer, size_t size, size_t, unsigned long long handle, unsigned long long) {
  const std::lock_guard<std::recursive_mutex> lock(state().mutex);
  state().blocks[pointer] = {size, static_cast<int>(handle)};
  return CUDA_SUCCESS;
}

extern "C" __attribute__((visibility("default"))) CUresult cuMemSetAccess(CUdeviceptr pointer,
                                                                          size_t size, const void*,
                                                                          size_t) {
  const int failed =
      mprotect(reinterpret_cast<void*>(pointer), size, PROT_READ | PROT_WRITE);
  return failed == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- What tests steer ---------------------------------------------------------------------------

extern "C" __attribute__((visibility("default"))) const fake::Control fake_control;

const fake::Control fake_control = {
    [](const char* symbol, CUresult result, int from, int times) {
      const std::lock_guard<std::recursive_mutex> lock(state().mutex);
      state().faults[symbol] = {result, from, times};
    },
    [](fake::Kernel kernel, void* context) {
      const std::lock_guard<std::recursive_mutex> lock(state().mutex);
      state().kernel = kernel;
      state().kernel_context = context;
    },
    [](const char* symbol) {
      const std::lock_guard<std::recursive_mutex> lock(state().mutex);
      return state().calls[symbol];
    },
    [] {
      const std::lock_guard<std::recursive_mutex> lock(state().mutex);
      size_t sum = 0;
      for (const auto& [address, block] : state().blocks) sum += block.bytes;
      return sum;
    },
    [] { return static_cast<int>(stack.size()); },
    [](size_t bytes) {
      void* pointer = nullptr;
      cuMemAllocHost_v2(&pointer, bytes);
      return pointer;
    },
    fake::read_map,
};
