// SPDX-License-Identifier: Apache-2.0
#include "src/api/check.hpp"

#include <cstdio>
#include <cstring>

namespace tegula::api {
namespace {

// A structure larger than this is an uninitialised struct_size, not a newer version; its tail is
// not worth the risk of reading.
constexpr size_t kLargestStruct = 4096;

}  // namespace

Status read_struct(const char* name, const void* given, void* known, size_t known_size,
                   size_t least) {
  if (given == nullptr) return fail(TEGULA_INVALID_ARGUMENT, "%s: is NULL", name);
  size_t size;
  std::memcpy(&size, given, sizeof size);
  if (size < least) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "%s: struct_size %zu is less than %zu (begin with its *_init function)", name, size,
                least);
  }
  if (size > kLargestStruct) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "%s: struct_size %zu is more than %zu (begin with its *_init function)", name, size,
                kLargestStruct);
  }
  if (size <= known_size) {
    std::memset(known, 0, known_size);
    std::memcpy(known, given, size);
  } else {
    const unsigned char* bytes = static_cast<const unsigned char*>(given);
    for (size_t i = known_size; i < size; ++i) {
      if (bytes[i] != 0) {
        return fail(TEGULA_UNSUPPORTED,
                    "%s: struct_size %zu is more than the %zu that this library knows, and byte "
                    "%zu is not 0",
                    name, size, known_size, i);
      }
    }
    std::memcpy(known, given, known_size);
  }
  std::memcpy(known, &known_size, sizeof known_size);
  return {};
}

Status init_struct(const char* name, void* given, size_t struct_size, size_t least) {
  if (given == nullptr) return fail(TEGULA_INVALID_ARGUMENT, "%s: is NULL", name);
  if (struct_size < least || struct_size > kLargestStruct) {
    return fail(TEGULA_INVALID_ARGUMENT, "%s: struct_size %zu is not within %zu and %zu", name,
                struct_size, least, kLargestStruct);
  }
  std::memset(given, 0, struct_size);
  std::memcpy(given, &struct_size, sizeof struct_size);
  return {};
}

ShortText type_text(const tegula_tensor& tensor) {
  ShortText out{};
  const tegula_dtype dtype = dtype_from_dlpack(tensor.type_code, tensor.type_bits);
  if (dtype != TEGULA_DTYPE_NONE) {
    std::snprintf(out.text, sizeof out.text, "%s", dtype_name(dtype));
  } else if (tensor.type_code <= 2) {
    constexpr const char* kFamilies[] = {"int", "uint", "float"};
    std::snprintf(out.text, sizeof out.text, "%s%u", kFamilies[tensor.type_code], tensor.type_bits);
  } else {
    std::snprintf(out.text, sizeof out.text, "type %u, %u bits", tensor.type_code,
                  tensor.type_bits);
  }
  return out;
}

ShortText device_text(int32_t kind, int32_t index) {
  ShortText out{};
  if (kind == TEGULA_CPU) {
    std::snprintf(out.text, sizeof out.text, "cpu");
  } else if (kind == TEGULA_CUDA) {
    std::snprintf(out.text, sizeof out.text, "cuda:%" PRId32, index);
  } else {
    std::snprintf(out.text, sizeof out.text, "kind %" PRId32, kind);
  }
  return out;
}

bool has_elements(const tegula_tensor& tensor) {
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] == 0) return false;
  }
  return true;
}

std::byte* address_of(const tegula_tensor& tensor) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(tensor.data) +
                                      tensor.byte_offset);
}

bool fits_tma(const tegula_tensor& tensor) {
  constexpr int64_t kGranule = 16, kStrideEnd = int64_t{1} << 40;
  if (!has_elements(tensor)) return true;
  if (reinterpret_cast<uintptr_t>(address_of(tensor)) % kGranule != 0) return false;
  const int64_t size = tensor.type_bits / 8;
  for (int32_t i = 0; i + 1 < tensor.ndim; ++i) {
    if (tensor.shape[i] <= 1) continue;
    const int64_t stride = tensor.strides[i];
    if (stride <= 0 || stride >= kStrideEnd / size || stride * size % kGranule != 0) return false;
  }
  return true;
}

int64_t stride_of(const tegula_tensor& tensor, int32_t dimension) {
  return tensor.shape[dimension] <= 1 || !has_elements(tensor) ? 0 : tensor.strides[dimension];
}

Status check_tensor(const char* name, const tegula_tensor& tensor, LastStride last,
                    tegula_dtype& dtype) {
  if (tensor.ndim < 0 || tensor.ndim > TEGULA_MAX_DIMS) {
    return fail(TEGULA_INVALID_ARGUMENT, "%s: ndim %" PRId32 " is not within 0 and %d", name,
                tensor.ndim, TEGULA_MAX_DIMS);
  }
  if (tensor.type_lanes != 1) {
    return fail(TEGULA_WRONG_TYPE, "%s: type_lanes %u is not 1", name, tensor.type_lanes);
  }
  dtype = dtype_from_dlpack(tensor.type_code, tensor.type_bits);
  if (dtype == TEGULA_DTYPE_NONE) {
    return fail(TEGULA_WRONG_TYPE,
                "%s: dtype %s is not one of f32, f16, bf16, e4m3, e5m2, bool, i32, i64", name,
                type_text(tensor).text);
  }
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] < 0) {
      return fail(TEGULA_INVALID_ARGUMENT, "%s: shape[%" PRId32 "] %" PRId64 " is less than 0",
                  name, i, tensor.shape[i]);
    }
  }
  if (!has_elements(tensor)) return {};

  // Elements from the first to the last, exclusive of the first; then in bytes, the offset
  // included.
  int64_t extent = 0;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    const int64_t size = tensor.shape[i], stride = tensor.strides[i];
    if (size <= 1) continue;
    if (stride < 0) {
      return fail(TEGULA_INVALID_ARGUMENT, "%s: strides[%" PRId32 "] %" PRId64 " is less than 0",
                  name, i, stride);
    }
    const bool is_last = i + 1 == tensor.ndim;
    if (is_last && last != LastStride::kFree && stride != 1 &&
        !(last == LastStride::kOneOrZero && stride == 0)) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "%s: strides[%" PRId32 "] %" PRId64
                  " is not %s: the last dimension is contiguous",
                  name, i, stride, last == LastStride::kOne ? "1" : "1 or 0");
    }
    int64_t length;
    if (__builtin_mul_overflow(size - 1, stride, &length) ||
        __builtin_add_overflow(extent, length, &extent)) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "%s: shape[%" PRId32 "] %" PRId64 " with strides[%" PRId32 "] %" PRId64
                  " is beyond 64-bit offsets",
                  name, i, size, i, stride);
    }
  }
  int64_t bytes;
  const int64_t element = static_cast<int64_t>(dtype_size(dtype));
  if (__builtin_add_overflow(extent, int64_t{1}, &extent) ||
      __builtin_mul_overflow(extent, element, &bytes) ||
      tensor.byte_offset > static_cast<uint64_t>(INT64_MAX) - static_cast<uint64_t>(bytes)) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "%s: %" PRId64 " elements of extent with byte_offset %" PRIu64
                " are beyond 64-bit offsets",
                name, extent, tensor.byte_offset);
  }
  return {};
}

Status check_typed(const char* name, const tegula_tensor& tensor, LastStride last,
                   tegula_dtype wanted) {
  tegula_dtype dtype = TEGULA_DTYPE_NONE;
  TEGULA_RETURN_IF_ERROR(check_tensor(name, tensor, last, dtype));
  if (dtype != wanted) {
    return fail(TEGULA_WRONG_TYPE, "%s: dtype %s is not %s", name, dtype_name(dtype),
                dtype_name(wanted));
  }
  return {};
}

Status check_index(const char* name, const tegula_index& index, int32_t rank, tegula_dtype wanted) {
  TEGULA_RETURN_IF_ERROR(check_typed(name, index.tensor, LastStride::kOne, wanted));
  return check_rank(name, index.tensor, rank);
}

Status check_rank(const char* name, const tegula_tensor& tensor, int32_t rank) {
  if (tensor.ndim != rank) {
    return fail(TEGULA_INVALID_ARGUMENT, "%s: rank %" PRId32 " is not %" PRId32, name, tensor.ndim,
                rank);
  }
  return {};
}

Status check_address(const char* name, const tegula_tensor& tensor) {
  if (!has_elements(tensor)) return {};
  const uintptr_t size = dtype_size(dtype_from_dlpack(tensor.type_code, tensor.type_bits));
  if (tensor.data == nullptr) {
    return fail(TEGULA_INVALID_ARGUMENT, "%s: data is NULL, but shape[0] is %" PRId64, name,
                tensor.ndim > 0 ? tensor.shape[0] : int64_t{1});
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(address_of(tensor));
  if (address % size != 0) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "%s: the address is %zu past a multiple of %zu bytes, the size of %s", name,
                static_cast<size_t>(address % size), static_cast<size_t>(size),
                type_text(tensor).text);
  }
  return {};
}

Status check_output(const char* name, const tegula_tensor& tensor) {
  if (!has_elements(tensor)) return {};
  int32_t order[TEGULA_MAX_DIMS];
  int32_t count = 0;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] <= 1) continue;
    int32_t at = count++;
    for (; at > 0 && tensor.strides[order[at - 1]] > tensor.strides[i]; --at)
      order[at] = order[at - 1];
    order[at] = i;
  }
  int64_t extent = 1;  // no overflow: check_tensor summed the same numbers
  for (int32_t n = 0; n < count; ++n) {
    const int32_t i = order[n];
    if (tensor.strides[i] < extent) {
      return fail(TEGULA_INVALID_ARGUMENT,
                  "%s: strides[%" PRId32 "] %" PRId64 " is less than %" PRId64
                  ", so that the output overlaps itself",
                  name, i, tensor.strides[i], extent);
    }
    extent += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  return {};
}

Status check_distinct(const char* name, const tegula_tensor& output, const char* other_name,
                      const tegula_tensor& other) {
  if (has_elements(output) && has_elements(other) && address_of(output) == address_of(other)) {
    return fail(TEGULA_INVALID_ARGUMENT, "%s: has the address of %s", name, other_name);
  }
  return {};
}

Status check_same_device(const char* name, const tegula_tensor& tensor, const char* other_name,
                         const tegula_tensor& other) {
  if (tensor.device_kind == other.device_kind &&
      (tensor.device_kind == TEGULA_CPU || tensor.device_index == other.device_index)) {
    return {};
  }
  return fail(TEGULA_WRONG_TYPE, "%s: device %s differs from %s: device %s", name,
              device_text(tensor.device_kind, tensor.device_index).text, other_name,
              device_text(other.device_kind, other.device_index).text);
}

Status check_device(const char* name, const tegula_tensor& tensor, int32_t kind, int32_t index) {
  if (tensor.device_kind == kind && (kind == TEGULA_CPU || tensor.device_index == index)) return {};
  return fail(TEGULA_WRONG_TYPE, "%s: device %s differs from the call's %s", name,
              device_text(tensor.device_kind, tensor.device_index).text,
              device_text(kind, index).text);
}

Status check_cpu(const char* operation, const tegula_tensor& tensor) {
  if (tensor.device_kind == TEGULA_CPU) return {};
  return fail(TEGULA_UNSUPPORTED, "%s: device %s is not supported by this build, cpu is", operation,
              device_text(tensor.device_kind, tensor.device_index).text);
}

Status check_equal(const char* name, const char* what, int64_t value, const char* other_name,
                   const char* other_what, int64_t other) {
  if (value == other) return {};
  return fail(TEGULA_INVALID_ARGUMENT, "%s: %s %" PRId64 " differs from %s: %s %" PRId64, name,
              what, value, other_name, other_what, other);
}

Status check_head_scale(const char* name, const tegula_tensor& tensor, int64_t batch,
                        int64_t num_heads) {
  TEGULA_RETURN_IF_ERROR(check_typed(name, tensor, LastStride::kFree, TEGULA_F32));
  if (tensor.ndim == 0 || (tensor.ndim == 1 && tensor.shape[0] == 1)) return {};
  if (tensor.ndim > 2) {
    return fail(TEGULA_INVALID_ARGUMENT,
                "%s: rank %" PRId32
                " is more than 2 ([1], [num_heads_kv] or [batch, num_heads_kv])",
                name, tensor.ndim);
  }
  if (tensor.ndim == 2)
    TEGULA_RETURN_IF_ERROR(
        check_equal(name, "shape[0]", tensor.shape[0], "the call", "batch", batch));
  return check_equal(name, tensor.ndim == 2 ? "shape[1]" : "shape[0]",
                     tensor.shape[tensor.ndim - 1], "the call", "num_heads_kv", num_heads);
}

StridedView head_scale_view(const tegula_tensor& tensor) {
  StridedView view;
  view.data = address_of(tensor);
  view.dtype = TEGULA_F32;
  if (tensor.ndim == 2) view.strides[0] = stride_of(tensor, 0);
  if (tensor.ndim >= 1) view.strides[1] = stride_of(tensor, tensor.ndim - 1);
  return view;
}

TokenView token_view(const tegula_tensor& tensor) {
  TokenView view;
  view.data = address_of(tensor);
  view.dtype = dtype_from_dlpack(tensor.type_code, tensor.type_bits);
  const int32_t token = tensor.ndim - 3;
  view.batch_stride = token > 0 ? stride_of(tensor, token - 1) : 0;
  view.token_stride = stride_of(tensor, token);
  view.head_stride = stride_of(tensor, token + 1);
  return view;
}

IndexView index_view(const tegula_index* index) {
  IndexView view;
  if (index == nullptr) return view;
  view.data = address_of(index->tensor);
  view.is_present = true;
  view.is_int64 = index->tensor.type_bits == 64;
  for (int32_t i = 0; i < index->tensor.ndim && i < 2; ++i)
    view.strides[i] = stride_of(index->tensor, i);
  return view;
}

}  // namespace tegula::api
