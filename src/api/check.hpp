// SPDX-License-Identifier: Apache-2.0
// Checks of one tensor and of one structure, shared by all operations. They read no element and
// allocate nothing; every refusal names the argument and shows both values.
#pragma once

#include <cinttypes>
#include <cstddef>
#include <cstdint>

#include <tegula/tegula.h>

#include "src/core/dtype.hpp"
#include "src/core/status.hpp"
#include "src/core/tensor.hpp"

namespace tegula::api {

// Copies the structure that the caller gave (NULL: refused) into `known`, whatever the two sides'
// versions: a shorter one is taken if it holds at least the first release's `least` bytes, the rest
// being zero, that is, absent; of a longer one the unknown tail must be zero.
Status read_struct(const char* name, const void* given, void* known, size_t known_size,
                   size_t least);

// The size of T in the first release: the offset of the first field that was added since.
template <class T>
inline constexpr size_t kFirstSize = sizeof(T);
template <>
inline constexpr size_t kFirstSize<tegula_problem> = offsetof(tegula_problem, unaligned);
template <>
inline constexpr size_t kFirstSize<tegula_device> = offsetof(tegula_device, compute_capability);

template <class T>
Status read_struct(const char* name, const T* given, T& known) {
  return read_struct(name, given, &known, sizeof(T), kFirstSize<T>);
}

// Zeroes struct_size bytes and sets struct_size; for the *_init functions.
Status init_struct(const char* name, void* given, size_t struct_size, size_t least);

// What the last dimension's stride may be. Strides of other dimensions are free; dimensions of size
// <= 1 have none.
enum class LastStride { kOne, kOneOrZero, kFree };

// Rank, lanes, type (any that tegula_dtype knows; into *dtype), sizes, strides (not negative on the
// CPU), and that every element lies within 64-bit offsets. The data pointer is not looked at.
Status check_tensor(const char* name, const tegula_tensor& tensor, LastStride last,
                    tegula_dtype& dtype);
// As check_tensor, and refuses every type but the given one.
Status check_typed(const char* name, const tegula_tensor& tensor, LastStride last,
                   tegula_dtype wanted);
// Rank and type of an index tensor: i32, or i64 for slot_mapping.
Status check_index(const char* name, const tegula_index& index, int32_t rank,
                   tegula_dtype wanted = TEGULA_I32);

Status check_rank(const char* name, const tegula_tensor& tensor, int32_t rank);
// NULL data (with elements), and alignment to the element's size.
Status check_address(const char* name, const tegula_tensor& tensor);
// An output may not overlap itself: by ascending stride, each stride is at least the extent of the
// dimensions below it.
Status check_output(const char* name, const tegula_tensor& tensor);
// Refuses outputs that begin where another tensor does; tensors without elements never do.
Status check_distinct(const char* name, const tegula_tensor& output, const char* other_name,
                      const tegula_tensor& other);
Status check_same_device(const char* name, const tegula_tensor& tensor, const char* other_name,
                         const tegula_tensor& other);
// A call on the CPU takes CPU tensors; a CUDA call those of its device.
Status check_device(const char* name, const tegula_tensor& tensor, int32_t kind, int32_t index);
// An operation that has no plan: refuses tensors that are not on the CPU.
Status check_cpu(const char* operation, const tegula_tensor& tensor);

// "v: seqlen_k 6 differs from k: seqlen_k 5".
Status check_equal(const char* name, const char* what, int64_t value, const char* other_name,
                   const char* other_what, int64_t other);

// Whether the tensor copy engine of a GPU can move it: TEGULA_UNALIGNED_* in tegula.h. A tensor
// without elements, or whose data is still NULL, is moved.
bool fits_tma(const tegula_tensor& tensor);

bool has_elements(const tegula_tensor& tensor);
std::byte* address_of(const tegula_tensor& tensor);
// 0 for dimensions of size <= 1 and for tensors without elements, whose data may be NULL: then every
// back end may multiply by it without a thought.
int64_t stride_of(const tegula_tensor& tensor, int32_t dimension);

// f32 [1], [num_heads] or [batch, num_heads], strides free: the three forms of a scale per head.
Status check_head_scale(const char* name, const tegula_tensor& tensor, int64_t batch,
                        int64_t num_heads);
StridedView head_scale_view(const tegula_tensor& tensor);

// [batch, token, head, dim], or [token, head, dim] with batch_stride 0.
TokenView token_view(const tegula_tensor& tensor);
IndexView index_view(const tegula_index* index);

// For messages. Returned by value so that two may stand in one message.
struct ShortText {
  char text[32];
};
ShortText type_text(const tegula_tensor& tensor);    // "bf16", "uint8", "type 5, 64 bits"
ShortText device_text(int32_t kind, int32_t index);  // "cpu", "cuda:1"

}  // namespace tegula::api
