// SPDX-License-Identifier: Apache-2.0
// Valid calls that tests then spoil one field at a time.
#pragma once

#include <gtest/gtest.h>
#include <tegula/tegula.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace tegula_test {

// 64 KiB of a known byte, aligned for every type.
class Buffer {
 public:
  static constexpr size_t kSize = 65536;
  static constexpr unsigned char kFill = 0x5a;

  void fill() { std::memset(bytes_, kFill, kSize); }
  void zero() { std::memset(bytes_, 0, kSize); }
  bool untouched() const {
    for (unsigned char byte : bytes_) {
      if (byte != kFill) return false;
    }
    return true;
  }
  unsigned char* data() { return bytes_; }
  int32_t* i32() { return reinterpret_cast<int32_t*>(bytes_); }
  int64_t* i64() { return reinterpret_cast<int64_t*>(bytes_); }
  float* f32() { return reinterpret_cast<float*>(bytes_); }

 private:
  alignas(64) unsigned char bytes_[kSize];
};

inline tegula_tensor make_tensor(void* data, int32_t dtype, std::initializer_list<int64_t> shape) {
  tegula_tensor tensor;
  EXPECT_EQ(
      tegula_tensor_init(&tensor, data, dtype, static_cast<int32_t>(shape.size()), shape.begin()),
      TEGULA_OK)
      << tegula_last_error();
  return tensor;
}

// A tensor and its memory, present or not.
struct Operand {
  tegula_tensor tensor = {};
  std::unique_ptr<Buffer> buffer = std::make_unique<Buffer>();

  void set(int32_t dtype, std::initializer_list<int64_t> shape) {
    tensor = make_tensor(buffer->data(), dtype, shape);
  }
};

struct IndexOperand {
  tegula_index index = {};
  std::unique_ptr<Buffer> buffer = std::make_unique<Buffer>();

  void set(std::initializer_list<int64_t> shape, std::initializer_list<int32_t> values) {
    index.tensor = make_tensor(buffer->data(), TEGULA_I32, shape);
    std::copy(values.begin(), values.end(), buffer->i32());
  }
  void set_i64(std::initializer_list<int64_t> shape, std::initializer_list<int64_t> values) {
    index.tensor = make_tensor(buffer->data(), TEGULA_I64, shape);
    std::copy(values.begin(), values.end(), buffer->i64());
  }
};

enum class Layout { kDense, kRagged, kPaged, kPageIndices };

// batch 2, num_heads_q 4, num_heads_kv 2, head_dim 8, head_dim_v 16.
// Dense: seqlen_q 3, seqlen_k 6. Ragged: q 1 + 4 of 5 rows, k 2 + 6 of 8 rows.
// Paged: dense q, 5 pages of 4 keys, 2 pages a sequence, lengths 6 and 8.
struct ForwardFixture {
  Operand q, k, v, o, lse, sink, alibi_slopes, bias, descale_q, descale_k, descale_v;
  IndexOperand cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, page_table,
      page_indices, page_indptr, cu_seqlens_new;
  tegula_forward_args args;
  tegula_problem problem;  // what the caller sets; the plan's

  explicit ForwardFixture(Layout layout, int32_t q_dtype = TEGULA_F32, int32_t kv_dtype = 0) {
    if (kv_dtype == 0) kv_dtype = q_dtype;
    const int32_t o_dtype =
        q_dtype == TEGULA_E4M3 || q_dtype == TEGULA_E5M2 ? TEGULA_BF16 : q_dtype;
    EXPECT_EQ(tegula_forward_args_init(&args), TEGULA_OK);
    EXPECT_EQ(tegula_problem_init(&problem), TEGULA_OK);
    for (Operand* operand :
         {&q, &k, &v, &sink, &alibi_slopes, &bias, &descale_q, &descale_k, &descale_v}) {
      operand->buffer->zero();
    }
    if (layout == Layout::kRagged) {
      q.set(q_dtype, {5, 4, 8});
      o.set(o_dtype, {5, 4, 16});
      lse.set(TEGULA_F32, {4, 5});
      k.set(kv_dtype, {8, 2, 8});
      v.set(kv_dtype, {8, 2, 16});
      cu_seqlens_q.set({3}, {0, 1, 5});
      cu_seqlens_k.set({3}, {0, 2, 8});
      args.cu_seqlens_q = &cu_seqlens_q.index;
      args.cu_seqlens_k = &cu_seqlens_k.index;
    } else {
      q.set(q_dtype, {2, 3, 4, 8});
      o.set(o_dtype, {2, 3, 4, 16});
      lse.set(TEGULA_F32, {2, 4, 3});
      if (layout == Layout::kDense) {
        k.set(kv_dtype, {2, 6, 2, 8});
        v.set(kv_dtype, {2, 6, 2, 16});
      } else {
        k.set(kv_dtype, {5, 4, 2, 8});
        v.set(kv_dtype, {5, 4, 2, 16});
        seqused_k.set({2}, {6, 8});
        args.seqused_k = &seqused_k.index;
      }
      if (layout == Layout::kPaged) {
        page_table.set({2, 2}, {3, 1, 0, 4});
        args.page_table = &page_table.index;
      } else if (layout == Layout::kPageIndices) {
        page_indices.set({4}, {3, 1, 0, 4});
        page_indptr.set({3}, {0, 2, 4});
        args.page_indices = &page_indices.index;
        args.page_indptr = &page_indptr.index;
      }
    }
    args.q = &q.tensor;
    args.k = &k.tensor;
    args.v = &v.tensor;
    args.o = &o.tensor;
    args.lse = &lse.tensor;
    o.buffer->fill();
    lse.buffer->fill();
  }

  // Optional operands, right for any layout above.
  void add_sink() {
    sink.set(TEGULA_F32, {4});
    args.sink = &sink.tensor;
  }
  void add_alibi() {
    alibi_slopes.set(TEGULA_F32, {2, 4});
    args.alibi_slopes = &alibi_slopes.tensor;
  }
  void add_bias(int32_t dtype = TEGULA_F32) {
    bias.set(dtype, {2, 4, args.cu_seqlens_q ? 4 : 3, args.seqused_k ? 8 : 6});
    args.bias = &bias.tensor;
  }
  void add_seqused_q() {
    seqused_q.set({2}, {1, 2});
    args.seqused_q = &seqused_q.index;
  }
  void add_seqused_k() {
    seqused_k.set({2}, {2, 5});
    args.seqused_k = &seqused_k.index;
  }
  void add_leftpad() {
    leftpad_k.set({2}, {0, 2});
    args.leftpad_k = &leftpad_k.index;
  }
  void add_cu_seqlens_new() {
    cu_seqlens_new.set({3}, {0, 0, 0});
    args.cu_seqlens_new = &cu_seqlens_new.index;
  }
  void add_descales() {
    descale_q.set(TEGULA_F32, {1});
    descale_k.set(TEGULA_F32, {2});
    descale_v.set(TEGULA_F32, {2, 2});
    for (Operand* scale : {&descale_q, &descale_k, &descale_v}) {
      for (int i = 0; i < 4; ++i) scale->buffer->f32()[i] = 0.5f;
    }
    args.descale_q = &descale_q.tensor;
    args.descale_k = &descale_k.tensor;
    args.descale_v = &descale_v.tensor;
  }

  bool outputs_untouched() const { return o.buffer->untouched() && lse.buffer->untouched(); }

  tegula_status describe() { return tegula_describe_forward(&args, &problem); }
};

struct PlanDeleter {
  void operator()(tegula_plan* plan) const { tegula_plan_destroy(plan); }
};
using PlanHandle = std::unique_ptr<tegula_plan, PlanDeleter>;

inline PlanHandle make_plan(const tegula_problem& problem, const tegula_device* device = nullptr) {
  tegula_plan* plan = nullptr;
  EXPECT_EQ(tegula_plan_create(&problem, device, &plan), TEGULA_OK) << tegula_last_error();
  return PlanHandle(plan);
}

// Paged cache of 5 pages x 4 keys, batch 2, 2 new rows each behind lengths 3 and 6; num_heads_kv 2,
// head_dim 8, head_dim_v 16, rotary_dim 8, num_heads_q 4.
struct AppendFixture {
  Operand k_new, v_new, k_cache, v_cache, cos, sin, q, q_out, descale_k, descale_v;
  IndexOperand cu_seqlens_new, seqused_k, page_table, page_indices, page_indptr, slot_mapping,
      positions;
  tegula_append_kv_args args;

  explicit AppendFixture(Layout layout, int32_t new_dtype = TEGULA_F32, int32_t cache_dtype = 0) {
    if (cache_dtype == 0) cache_dtype = new_dtype;
    EXPECT_EQ(tegula_append_kv_args_init(&args), TEGULA_OK);
    for (Operand* operand : {&k_new, &v_new, &cos, &sin, &q, &descale_k, &descale_v}) {
      operand->buffer->zero();
    }
    k_new.set(new_dtype, {2, 2, 2, 8});
    v_new.set(new_dtype, {2, 2, 2, 16});
    seqused_k.set({2}, {3, 6});
    args.seqused_k = &seqused_k.index;
    if (layout == Layout::kDense || layout == Layout::kRagged) {
      k_cache.set(cache_dtype, {2, 8, 2, 8});
      v_cache.set(cache_dtype, {2, 8, 2, 16});
    } else {
      k_cache.set(cache_dtype, {5, 4, 2, 8});
      v_cache.set(cache_dtype, {5, 4, 2, 16});
    }
    if (layout == Layout::kRagged) {
      k_new.set(new_dtype, {4, 2, 8});
      v_new.set(new_dtype, {4, 2, 16});
      cu_seqlens_new.set({3}, {0, 3, 4});
      args.cu_seqlens_new = &cu_seqlens_new.index;
    } else if (layout == Layout::kPaged) {
      page_table.set({2, 2}, {3, 1, 0, 4});
      args.page_table = &page_table.index;
    } else if (layout == Layout::kPageIndices) {
      page_indices.set({4}, {3, 1, 0, 4});
      page_indptr.set({3}, {0, 2, 4});
      args.page_indices = &page_indices.index;
      args.page_indptr = &page_indptr.index;
    }
    args.k_new = &k_new.tensor;
    args.v_new = &v_new.tensor;
    args.k_cache = &k_cache.tensor;
    args.v_cache = &v_cache.tensor;
    k_cache.buffer->fill();
    v_cache.buffer->fill();
    q_out.buffer->fill();
  }

  void use_slots() {
    slot_mapping.set_i64({4}, {3, 19, -1, 7});
    args.page_table = args.page_indices = args.page_indptr = nullptr;
    args.slot_mapping = &slot_mapping.index;
  }
  void add_rotary() {
    cos.set(TEGULA_F32, {8, 4});
    sin.set(TEGULA_F32, {8, 4});
    args.cos = &cos.tensor;
    args.sin = &sin.tensor;
  }
  void add_q() {
    q.set(TEGULA_F32, {2, 2, 4, 8});
    q_out.set(TEGULA_F32, {2, 2, 4, 8});
    args.q = &q.tensor;
    args.q_out = &q_out.tensor;
  }
  void add_positions() {
    positions.set({4}, {0, 1, 7, 3});
    args.positions = &positions.index;
  }
  void add_descales() {
    descale_k.set(TEGULA_F32, {2});
    descale_v.set(TEGULA_F32, {2, 2});
    for (Operand* scale : {&descale_k, &descale_v}) {
      for (int i = 0; i < 4; ++i) scale->buffer->f32()[i] = 0.5f;
    }
    args.descale_k = &descale_k.tensor;
    args.descale_v = &descale_v.tensor;
  }

  bool outputs_untouched() const {
    return k_cache.buffer->untouched() && v_cache.buffer->untouched() && q_out.buffer->untouched();
  }
};

// 3 splits, batch 2, seqlen_q 3, num_heads_q 4, head_dim_v 8.
struct CombineFixture {
  Operand o_partial, lse_partial, o, lse, sink;
  tegula_combine_args args;

  explicit CombineFixture(Layout layout) {
    EXPECT_EQ(tegula_combine_args_init(&args), TEGULA_OK);
    if (layout == Layout::kRagged) {
      o_partial.set(TEGULA_F32, {3, 5, 4, 8});
      lse_partial.set(TEGULA_F32, {3, 4, 5});
      o.set(TEGULA_F32, {5, 4, 8});
      lse.set(TEGULA_F32, {4, 5});
    } else {
      o_partial.set(TEGULA_F32, {3, 2, 3, 4, 8});
      lse_partial.set(TEGULA_F32, {3, 2, 4, 3});
      o.set(TEGULA_F32, {2, 3, 4, 8});
      lse.set(TEGULA_F32, {2, 4, 3});
    }
    sink.set(TEGULA_F32, {4});
    for (Operand* operand : {&o_partial, &lse_partial, &sink}) operand->buffer->zero();
    o.buffer->fill();
    lse.buffer->fill();
    args.o_partial = &o_partial.tensor;
    args.lse_partial = &lse_partial.tensor;
    args.o = &o.tensor;
    args.lse = &lse.tensor;
    args.sink = &sink.tensor;
  }

  bool outputs_untouched() const { return o.buffer->untouched() && lse.buffer->untouched(); }
};

}  // namespace tegula_test
