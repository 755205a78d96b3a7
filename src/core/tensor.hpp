// SPDX-License-Identifier: Apache-2.0
// Checked, resolved views of the caller's tensors. src/api makes them; back ends read them and
// check nothing again.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tegula/tegula.h>

namespace tegula {

// q, k, v, o, k_new ... brought to one form: element (batch, token, head, d) lies at
// data + (batch * batch_stride + token * token_stride + head * head_stride + d * dim_stride) *
// dtype size. Ragged tensors have batch_stride 0 and tokens counted from the first row of the
// tensor; pages count as batches and the offset in a page as the token. Absent: data == nullptr and
// dtype == NONE. Strides of dimensions of size <= 1 are 0.
struct TokenView {
  std::byte* data = nullptr;
  tegula_dtype dtype = TEGULA_DTYPE_NONE;
  int64_t batch_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t dim_stride = 1;  // 1 except in gradients

  bool present() const { return dtype != TEGULA_DTYPE_NONE; }
};

// lse, bias, sink, slopes, descales: up to four free strides, in elements. Absent: dtype == NONE.
struct StridedView {
  std::byte* data = nullptr;
  tegula_dtype dtype = TEGULA_DTYPE_NONE;
  int64_t strides[5] = {0, 0, 0, 0, 0};

  bool present() const { return dtype != TEGULA_DTYPE_NONE; }
  float f32(int64_t i, int64_t j = 0, int64_t k = 0) const {
    return reinterpret_cast<const float*>(data)[i * strides[0] + j * strides[1] + k * strides[2]];
  }
};

// An int32 or int64 index tensor of rank 1 or 2. Absent: data == nullptr and !present.
struct IndexView {
  const std::byte* data = nullptr;
  bool is_present = false;
  bool is_int64 = false;
  int64_t strides[2] = {0, 0};

  bool present() const { return is_present; }
  int64_t at(int64_t i, int64_t j = 0) const {
    const int64_t offset = i * strides[0] + j * strides[1];
    return is_int64 ? reinterpret_cast<const int64_t*>(data)[offset]
                    : reinterpret_cast<const int32_t*>(data)[offset];
  }
};

// Where page number n of a sequence lies: the table or ragged rows of it.
struct PageTable {
  IndexView table;    // [batch, max_pages]
  IndexView indices;  // [total_pages], with indptr [batch + 1]
  IndexView indptr;

  int64_t page(int64_t batch, int64_t n) const {
    return table.present() ? table.at(batch, n) : indices.at(indptr.at(batch) + n);
  }
};

}  // namespace tegula
