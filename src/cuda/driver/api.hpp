// SPDX-License-Identifier: Apache-2.0
// Our own declarations of the part of the CUDA driver API that is used: types, enumerators and
// entry points have NVIDIA's names and values, so that their documentation can be read beside
// this. tests/unit/cuda/driver/api_test.cc compares them with cuda.h where a toolkit is present.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tegula::cuda {

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;

enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
  CUDA_ERROR_INVALID_PC = 718,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
};

enum CUdevice_attribute : int {
  CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,  // kHz
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,  // kHz
  CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
  CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
};

enum CUfunction_attribute : int {
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
  CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
  CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
};

enum CUpointer_attribute : int {
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,     // CUmemorytype
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,      // bool
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,  // int
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
};

enum CUmemorytype : int {
  CU_MEMORYTYPE_HOST = 1,
  CU_MEMORYTYPE_DEVICE = 2,
  CU_MEMORYTYPE_ARRAY = 3,
  CU_MEMORYTYPE_UNIFIED = 4,
};

enum CUstream_flags : unsigned {
  CU_STREAM_DEFAULT = 0,
  CU_STREAM_NON_BLOCKING = 1,
};

enum CUevent_flags : unsigned {
  CU_EVENT_DEFAULT = 0,
  CU_EVENT_DISABLE_TIMING = 2,
};

enum CUstreamCaptureStatus : int {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};

enum CUstreamCaptureMode : int {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

enum CUjit_option : int {
  CU_JIT_ERROR_LOG_BUFFER = 5,
  CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
};

// ---- Memory pools -------------------------------------------------------------------------------

enum CUmemAllocationType : int { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum CUmemAllocationHandleType : int { CU_MEM_HANDLE_TYPE_NONE = 0 };
enum CUmemLocationType : int { CU_MEM_LOCATION_TYPE_DEVICE = 1 };

enum CUmemPool_attribute : int {
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,     // uint64_t
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,  // uint64_t
};

struct CUmemLocation {
  CUmemLocationType type;
  int id;
};

struct CUmemPoolProps {
  CUmemAllocationType allocType;
  CUmemAllocationHandleType handleTypes;
  CUmemLocation location;
  void* win32SecurityAttributes;
  size_t maxSize;
  unsigned short usage;
  unsigned char reserved[54];
};

// ---- Launches -----------------------------------------------------------------------------------

enum CUlaunchAttributeID : int {
  CU_LAUNCH_ATTRIBUTE_IGNORE = 0,
  CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
  CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
  CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};

union CUlaunchAttributeValue {
  char pad[64];
  int cooperative;
  struct {
    unsigned x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;
};

struct CUlaunchAttribute {
  CUlaunchAttributeID id;
  char pad[8 - sizeof(CUlaunchAttributeID)];
  CUlaunchAttributeValue value;
};

struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned numAttrs;
};

// ---- Tensor maps --------------------------------------------------------------------------------

// 64-byte alignment is what the hardware and cuTensorMapEncodeTiled ask for (cuda.h of 13.0
// declares 128, of 12.x 64).
struct alignas(64) CUtensorMap {
  uint64_t opaque[16];
};

enum CUtensorMapDataType : int {
  CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
  CU_TENSOR_MAP_DATA_TYPE_UINT16 = 1,
  CU_TENSOR_MAP_DATA_TYPE_UINT32 = 2,
  CU_TENSOR_MAP_DATA_TYPE_INT32 = 3,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
};

enum CUtensorMapInterleave : int {
  CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
  CU_TENSOR_MAP_INTERLEAVE_16B = 1,
  CU_TENSOR_MAP_INTERLEAVE_32B = 2,
};

enum CUtensorMapSwizzle : int {
  CU_TENSOR_MAP_SWIZZLE_NONE = 0,
  CU_TENSOR_MAP_SWIZZLE_32B = 1,
  CU_TENSOR_MAP_SWIZZLE_64B = 2,
  CU_TENSOR_MAP_SWIZZLE_128B = 3,
};

enum CUtensorMapL2promotion : int {
  CU_TENSOR_MAP_L2_PROMOTION_NONE = 0,
  CU_TENSOR_MAP_L2_PROMOTION_L2_64B = 1,
  CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2,
  CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3,
};

enum CUtensorMapFloatOOBfill : int {
  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0,
  CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA = 1,
};

// ---- Entry points -------------------------------------------------------------------------------

// F(symbol, parameters): the symbol as libcuda exports it, version suffix included; all return a
// CUresult. Every one exists since driver 525 (CUDA 12.0).
#define TEGULA_CUDA_ENTRY_POINTS(F)                                                              \
  F(cuInit, (unsigned flags))                                                                    \
  F(cuDriverGetVersion, (int* version))                                                          \
  F(cuGetErrorName, (CUresult error, const char** name))                                         \
  F(cuGetErrorString, (CUresult error, const char** text))                                       \
  F(cuDeviceGetCount, (int* count))                                                              \
  F(cuDeviceGet, (CUdevice* device, int ordinal))                                                \
  F(cuDeviceGetName, (char* name, int size, CUdevice device))                                    \
  F(cuDeviceGetPCIBusId, (char* text, int size, CUdevice device))                                \
  F(cuDeviceGetAttribute, (int* value, CUdevice_attribute attribute, CUdevice device))           \
  F(cuDeviceTotalMem_v2, (size_t* bytes, CUdevice device))                                       \
  F(cuDevicePrimaryCtxRetain, (CUcontext* context, CUdevice device))                             \
  F(cuCtxPushCurrent_v2, (CUcontext context))                                                    \
  F(cuCtxPopCurrent_v2, (CUcontext* context))                                                    \
  F(cuCtxGetCurrent, (CUcontext* context))                                                       \
  F(cuCtxGetDevice, (CUdevice* device))                                                          \
  F(cuModuleLoadDataEx, (CUmodule* module, const void* image, unsigned num_options,              \
                         CUjit_option* options, void** values))                                  \
  F(cuModuleUnload, (CUmodule module))                                                           \
  F(cuModuleGetFunction, (CUfunction* function, CUmodule module, const char* name))              \
  F(cuFuncGetAttribute, (int* value, CUfunction_attribute attribute, CUfunction function))       \
  F(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value))        \
  F(cuLaunchKernelEx, (const CUlaunchConfig* config, CUfunction function, void** parameters,     \
                       void** extra))                                                            \
  F(cuTensorMapEncodeTiled,                                                                      \
    (CUtensorMap* map, CUtensorMapDataType type, uint32_t rank, void* address,                   \
     const uint64_t* sizes, const uint64_t* strides, const uint32_t* box,                        \
     const uint32_t* element_strides, CUtensorMapInterleave interleave,                          \
     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,                               \
     CUtensorMapFloatOOBfill fill))                                                              \
  F(cuPointerGetAttributes, (unsigned count, CUpointer_attribute* attributes, void** values,     \
                             CUdeviceptr pointer))                                               \
  F(cuStreamCreate, (CUstream* stream, unsigned flags))                                          \
  F(cuStreamDestroy_v2, (CUstream stream))                                                       \
  F(cuStreamGetCtx, (CUstream stream, CUcontext* context))                                       \
  F(cuStreamGetId, (CUstream stream, unsigned long long* id))                                    \
  F(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* status))                       \
  F(cuStreamSynchronize, (CUstream stream))                                                      \
  F(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode))                        \
  F(cuStreamEndCapture, (CUstream stream, CUgraph* graph))                                       \
  F(cuGraphInstantiateWithFlags, (CUgraphExec* executable, CUgraph graph,                        \
                                  unsigned long long flags))                                     \
  F(cuGraphLaunch, (CUgraphExec executable, CUstream stream))                                    \
  F(cuGraphExecDestroy, (CUgraphExec executable))                                                \
  F(cuGraphDestroy, (CUgraph graph))                                                             \
  F(cuEventCreate, (CUevent* event, unsigned flags))                                             \
  F(cuEventDestroy_v2, (CUevent event))                                                          \
  F(cuEventRecord, (CUevent event, CUstream stream))                                             \
  F(cuEventSynchronize, (CUevent event))                                                         \
  F(cuEventElapsedTime, (float* milliseconds, CUevent begin, CUevent end))                       \
  F(cuMemAlloc_v2, (CUdeviceptr* pointer, size_t bytes))                                         \
  F(cuMemFree_v2, (CUdeviceptr pointer))                                                         \
  F(cuMemPoolCreate, (CUmemoryPool* pool, const CUmemPoolProps* properties))                     \
  F(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void* value))      \
  F(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void* value))      \
  F(cuMemPoolTrimTo, (CUmemoryPool pool, size_t bytes_to_keep))                                  \
  F(cuMemAllocFromPoolAsync, (CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool,             \
                              CUstream stream))                                                  \
  F(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream))                                      \
  F(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t bytes, CUstream stream))     \
  F(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes, CUstream stream))           \
  F(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))     \
  F(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))       \
  F(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream))

// Newer ones, nullptr in an older driver.
#define TEGULA_CUDA_OPTIONAL_ENTRY_POINTS(F) F(cuFuncLoad, (CUfunction function))  // 12.4

}  // namespace tegula::cuda
