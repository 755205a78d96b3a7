// SPDX-License-Identifier: Apache-2.0
// Bad calls of forward that shapes, types and strides tell: status, exact text, outputs untouched.
#include "tests/unit/api/bad_forward.hpp"

namespace {

using namespace tegula_test;

const BadForward kShapes[] = {
    // Absent.
    {"q_null", kDense, [](F& f) { f.args.q = nullptr; }, kValue, "q: is NULL"},
    {"k_null", kDense, [](F& f) { f.args.k = nullptr; }, kValue, "k: is NULL"},
    {"v_null", kDense, [](F& f) { f.args.v = nullptr; }, kValue, "v: is NULL"},
    {"o_null", kDense, [](F& f) { f.args.o = nullptr; }, kValue, "o: is NULL"},
    {"cu_seqlens_q_null", kRagged, [](F& f) { f.args.cu_seqlens_q = nullptr; }, kValue,
     "cu_seqlens_q: is NULL, but q: rank is 3 (ragged)"},
    {"cu_seqlens_k_null", kRagged, [](F& f) { f.args.cu_seqlens_k = nullptr; }, kValue,
     "cu_seqlens_k: is NULL, but k: rank is 3 (ragged)"},
    {"seqused_k_null_paged", kPaged, [](F& f) { f.args.seqused_k = nullptr; }, kValue,
     "seqused_k: is NULL, but page_table is present"},
    {"page_indptr_null", kIndices, [](F& f) { f.args.page_indptr = nullptr; }, kValue,
     "page_indptr: is NULL, but page_indices is present"},
    {"page_indices_null", kIndices, [](F& f) { f.args.page_indices = nullptr; }, kValue,
     "page_indices: is NULL, but page_indptr is present"},
    // Together.
    {"cu_seqlens_q_dense", kDense,
     [](F& f) {
       f.cu_seqlens_q.set({3}, {0, 3, 6});
       f.args.cu_seqlens_q = &f.cu_seqlens_q.index;
     },
     kValue, "cu_seqlens_q: present, but q: rank is 4 (dense)"},
    {"cu_seqlens_k_dense", kDense,
     [](F& f) {
       f.cu_seqlens_k.set({3}, {0, 6, 12});
       f.args.cu_seqlens_k = &f.cu_seqlens_k.index;
     },
     kValue, "cu_seqlens_k: present, but k: rank is 4 (dense or paged)"},
    {"page_table_ragged", kRagged,
     [](F& f) {
       f.page_table.set({2, 2}, {0, 1, 2, 3});
       f.args.page_table = &f.page_table.index;
     },
     kValue, "page_table: present, but k: rank is 3 (ragged)"},
    {"page_table_and_indices", kIndices,
     [](F& f) {
       f.page_table.set({2, 2}, {0, 1, 2, 3});
       f.args.page_table = &f.page_table.index;
     },
     kValue, "page_indices: present beside page_table; at most one may be given"},
    {"new_tokens_without_seqused", kDense, [](F& f) { f.args.seqlen_new = 2; }, kValue,
     "seqused_k: is NULL, but seqlen_new is present"},
    {"cu_seqlens_new_without_seqused", kDense, [](F& f) { f.add_cu_seqlens_new(); }, kValue,
     "seqused_k: is NULL, but cu_seqlens_new is present"},
    {"seqlen_new_and_cu_seqlens_new", kPaged,
     [](F& f) {
       f.add_cu_seqlens_new();
       f.args.seqlen_new = 1;
     },
     kValue, "seqlen_new: 1 beside cu_seqlens_new; at most one may be given"},
    {"seqlen_new_negative", kPaged, [](F& f) { f.args.seqlen_new = -3; }, kValue,
     "seqlen_new: -3 is less than 0"},
    // Ranks.
    {"q_rank", kDense, [](F& f) { f.q.set(TEGULA_F32, {24, 8}); }, kValue,
     "q: rank 2 is not 4 (dense) or 3 (ragged)"},
    {"k_rank", kDense, [](F& f) { f.k.set(TEGULA_F32, {24, 8}); }, kValue,
     "k: rank 2 is not 4 (dense or paged) or 3 (ragged)"},
    {"v_rank", kDense, [](F& f) { f.v.set(TEGULA_F32, {12, 2, 16}); }, kValue,
     "v: rank 3 differs from k: rank 4"},
    {"o_rank", kDense, [](F& f) { f.o.set(TEGULA_F32, {6, 4, 16}); }, kValue, "o: rank 3 is not 4"},
    {"lse_rank", kRagged, [](F& f) { f.lse.set(TEGULA_F32, {1, 4, 5}); }, kValue,
     "lse: rank 3 is not 2"},
    {"ndim_negative", kDense, [](F& f) { f.q.tensor.ndim = -1; }, kValue,
     "q: ndim -1 is not within 0 and 5"},
    {"ndim_large", kDense, [](F& f) { f.v.tensor.ndim = 6; }, kValue,
     "v: ndim 6 is not within 0 and 5"},
    {"cu_seqlens_q_rank", kRagged, [](F& f) { f.cu_seqlens_q.set({1, 3}, {0, 1, 5}); }, kValue,
     "cu_seqlens_q: rank 2 is not 1"},
    {"page_table_rank", kPaged, [](F& f) { f.page_table.set({4}, {3, 1, 0, 4}); }, kValue,
     "page_table: rank 1 is not 2"},
    {"sink_rank", kDense,
     [](F& f) {
       f.sink.set(TEGULA_F32, {1, 4});
       f.args.sink = &f.sink.tensor;
     },
     kValue, "sink: rank 2 is not 1"},
    {"alibi_rank", kDense,
     [](F& f) {
       f.add_alibi();
       f.alibi_slopes.set(TEGULA_F32, {1, 2, 4});
     },
     kValue, "alibi_slopes: rank 3 is not 1 ([num_heads_q]) or 2 ([batch, num_heads_q])"},
    {"bias_rank", kDense,
     [](F& f) {
       f.bias.set(TEGULA_F32, {3, 6});
       f.args.bias = &f.bias.tensor;
     },
     kValue, "bias: rank 2 is not 4"},
    // Sizes.
    {"k_v_seqlen", kDense, [](F& f) { f.v.set(TEGULA_F32, {2, 7, 2, 16}); }, kValue,
     "v: seqlen_k 7 differs from k: seqlen_k 6"},
    {"k_v_total", kRagged, [](F& f) { f.v.set(TEGULA_F32, {9, 2, 16}); }, kValue,
     "v: total_k 9 differs from k: total_k 8"},
    {"k_v_heads", kDense, [](F& f) { f.v.set(TEGULA_F32, {2, 6, 1, 16}); }, kValue,
     "v: num_heads_kv 1 differs from k: num_heads_kv 2"},
    {"k_v_batch", kDense, [](F& f) { f.v.set(TEGULA_F32, {1, 6, 2, 16}); }, kValue,
     "v: batch 1 differs from k: batch 2"},
    {"k_v_pages", kPaged, [](F& f) { f.v.set(TEGULA_F32, {4, 4, 2, 16}); }, kValue,
     "v: num_pages 4 differs from k: num_pages 5"},
    {"k_v_page_size", kPaged, [](F& f) { f.v.set(TEGULA_F32, {5, 8, 2, 16}); }, kValue,
     "v: page_size 8 differs from k: page_size 4"},
    {"page_size_0", kPaged,
     [](F& f) {
       f.k.set(TEGULA_F32, {5, 0, 2, 8});
       f.v.set(TEGULA_F32, {5, 0, 2, 16});
     },
     kValue, "k: page_size 0 is less than 1"},
    {"q_k_batch", kDense,
     [](F& f) {
       f.k.set(TEGULA_F32, {3, 6, 2, 8});
       f.v.set(TEGULA_F32, {3, 6, 2, 16});
     },
     kValue, "k: batch 3 differs from q: batch 2"},
    {"q_k_head_dim", kDense, [](F& f) { f.k.set(TEGULA_F32, {2, 6, 2, 16}); }, kValue,
     "k: head_dim 16 differs from q: head_dim 8"},
    {"o_batch", kDense, [](F& f) { f.o.set(TEGULA_F32, {1, 3, 4, 16}); }, kValue,
     "o: batch 1 differs from q: batch 2"},
    {"o_seqlen", kDense, [](F& f) { f.o.set(TEGULA_F32, {2, 4, 4, 16}); }, kValue,
     "o: seqlen_q 4 differs from q: seqlen_q 3"},
    {"o_total", kRagged, [](F& f) { f.o.set(TEGULA_F32, {4, 4, 16}); }, kValue,
     "o: total_q 4 differs from q: total_q 5"},
    {"o_heads", kDense, [](F& f) { f.o.set(TEGULA_F32, {2, 3, 2, 16}); }, kValue,
     "o: num_heads_q 2 differs from q: num_heads_q 4"},
    {"o_head_dim", kDense, [](F& f) { f.o.set(TEGULA_F32, {2, 3, 4, 8}); }, kValue,
     "o: head_dim_v 8 differs from v: head_dim_v 16"},
    {"lse_batch", kDense, [](F& f) { f.lse.set(TEGULA_F32, {1, 4, 3}); }, kValue,
     "lse: shape[0] 1 differs from q: batch 2"},
    {"lse_heads", kDense, [](F& f) { f.lse.set(TEGULA_F32, {2, 3, 4}); }, kValue,
     "lse: shape[1] 3 differs from q: num_heads_q 4"},
    {"lse_seqlen", kDense, [](F& f) { f.lse.set(TEGULA_F32, {2, 4, 6}); }, kValue,
     "lse: shape[2] 6 differs from q: seqlen_q 3"},
    {"lse_ragged_total", kRagged, [](F& f) { f.lse.set(TEGULA_F32, {4, 6}); }, kValue,
     "lse: shape[1] 6 differs from q: total_q 5"},
    {"cu_seqlens_q_empty", kRagged, [](F& f) { f.cu_seqlens_q.set({0}, {}); }, kValue,
     "cu_seqlens_q: shape[0] 0 is less than 1 (batch + 1)"},
    {"cu_seqlens_k_batch", kRagged, [](F& f) { f.cu_seqlens_k.set({4}, {0, 2, 4, 8}); }, kValue,
     "cu_seqlens_k: batch (shape[0] - 1) 3 differs from cu_seqlens_q: batch 2"},
    {"seqused_k_batch", kPaged, [](F& f) { f.seqused_k.set({3}, {1, 1, 1}); }, kValue,
     "seqused_k: shape[0] 3 differs from q: batch 2"},
    {"seqused_q_batch", kDense,
     [](F& f) {
       f.add_seqused_q();
       f.seqused_q.set({1}, {1});
     },
     kValue, "seqused_q: shape[0] 1 differs from q: batch 2"},
    {"leftpad_batch", kDense,
     [](F& f) {
       f.add_leftpad();
       f.leftpad_k.set({3}, {0, 0, 0});
     },
     kValue, "leftpad_k: shape[0] 3 differs from q: batch 2"},
    {"page_table_batch", kPaged, [](F& f) { f.page_table.set({1, 4}, {3, 1, 0, 4}); }, kValue,
     "page_table: shape[0] 1 differs from q: batch 2"},
    {"page_indptr_batch", kIndices, [](F& f) { f.page_indptr.set({2}, {0, 4}); }, kValue,
     "page_indptr: batch (shape[0] - 1) 1 differs from q: batch 2"},
    {"sink_heads", kDense,
     [](F& f) {
       f.sink.set(TEGULA_F32, {2});
       f.args.sink = &f.sink.tensor;
     },
     kValue, "sink: shape[0] 2 differs from q: num_heads_q 4"},
    {"alibi_heads", kDense,
     [](F& f) {
       f.add_alibi();
       f.alibi_slopes.set(TEGULA_F32, {2});
     },
     kValue, "alibi_slopes: shape[0] 2 differs from q: num_heads_q 4"},
    {"alibi_batch", kDense,
     [](F& f) {
       f.add_alibi();
       f.alibi_slopes.set(TEGULA_F32, {1, 4});
     },
     kValue, "alibi_slopes: shape[0] 1 differs from q: batch 2"},
    {"bias_batch", kDense,
     [](F& f) {
       f.add_bias();
       f.bias.set(TEGULA_F32, {1, 4, 3, 6});
     },
     kValue, "bias: shape[0] 1 differs from q: batch 2"},
    {"bias_heads", kDense,
     [](F& f) {
       f.add_bias();
       f.bias.set(TEGULA_F32, {2, 1, 3, 6});
     },
     kValue, "bias: shape[1] 1 differs from q: num_heads_q 4"},
    {"bias_seqlen_q", kDense,
     [](F& f) {
       f.add_bias();
       f.bias.set(TEGULA_F32, {2, 4, 4, 6});
     },
     kValue, "bias: shape[2] 4 differs from q: seqlen_q 3"},
    {"bias_seqlen_k", kDense,
     [](F& f) {
       f.add_bias();
       f.bias.set(TEGULA_F32, {2, 4, 3, 5});
     },
     kValue, "bias: shape[3] 5 differs from k: seqlen_k 6"},
    {"descale_heads", kDense,
     [](F& f) {
       f.add_descales();
       f.descale_k.set(TEGULA_F32, {4});
     },
     kValue, "descale_k: shape[0] 4 differs from the call: num_heads_kv 2", true, TEGULA_BF16,
     TEGULA_E4M3},
    {"descale_batch", kDense,
     [](F& f) {
       f.add_descales();
       f.args.descale_q = nullptr;
       f.descale_v.set(TEGULA_F32, {3, 2});
     },
     kValue, "descale_v: shape[0] 3 differs from the call: batch 2", true, TEGULA_BF16,
     TEGULA_E4M3},
    {"descale_rank", kDense,
     [](F& f) {
       f.add_descales();
       f.args.descale_q = nullptr;
       f.descale_v.set(TEGULA_F32, {1, 2, 2});
     },
     kValue, "descale_v: rank 3 is more than 2 ([1], [num_heads_kv] or [batch, num_heads_kv])",
     true, TEGULA_BF16, TEGULA_E4M3},
    {"shape_negative", kDense, [](F& f) { f.k.tensor.shape[1] = -6; }, kValue,
     "k: shape[1] -6 is less than 0"},
    // Types.
    {"k_v_dtype", kDense, [](F& f) { f.v.set(TEGULA_BF16, {2, 6, 2, 16}); }, kUnsupported,
     "v: dtype bf16 differs from k: dtype f32"},
    {"q_int", kDense,
     [](F& f) {
       f.q.tensor.type_code = 0;
       f.q.tensor.type_bits = 16;
     },
     kType, "q: dtype int16 is not one of f32, f16, bf16, e4m3, e5m2, bool, i32, i64"},
    {"q_f64", kDense, [](F& f) { f.q.tensor.type_bits = 64; }, kType,
     "q: dtype float64 is not one of f32, f16, bf16, e4m3, e5m2, bool, i32, i64"},
    {"o_unknown", kDense, [](F& f) { f.o.tensor.type_code = 5; }, kType,
     "o: dtype type 5, 32 bits is not one of f32, f16, bf16, e4m3, e5m2, bool, i32, i64"},
    {"k_int8", kDense,
     [](F& f) {
       f.k.tensor.type_code = 0;
       f.k.tensor.type_bits = 8;
     },
     kUnsupported,
     "k: dtype int8 is not supported (block-quantised caches; f32, f16, bf16, e4m3, e5m2 are)"},
    {"v_uint8", kDense,
     [](F& f) {
       f.v.tensor.type_code = 1;
       f.v.tensor.type_bits = 8;
     },
     kUnsupported,
     "v: dtype uint8 is not supported (block-quantised caches; f32, f16, bf16, e4m3, e5m2 are)"},
    {"v_fp4", kDense,
     [](F& f) {
       f.v.tensor.type_code = 17;
       f.v.tensor.type_bits = 4;
     },
     kUnsupported,
     "v: dtype type 17, 4 bits is not supported (block-quantised caches; f32, f16, bf16, e4m3, "
     "e5m2 are)"},
    {"lanes", kDense, [](F& f) { f.q.tensor.type_lanes = 4; }, kType, "q: type_lanes 4 is not 1"},
    {"lse_dtype", kDense, [](F& f) { f.lse.set(TEGULA_F16, {2, 4, 3}); }, kType,
     "lse: dtype f16 is not f32"},
    {"sink_dtype", kDense,
     [](F& f) {
       f.sink.set(TEGULA_BF16, {4});
       f.args.sink = &f.sink.tensor;
     },
     kType, "sink: dtype bf16 is not f32"},
    {"descale_dtype", kDense,
     [](F& f) {
       f.add_descales();
       f.descale_q.set(TEGULA_F16, {1});
     },
     kType, "descale_q: dtype f16 is not f32", true, TEGULA_E4M3, TEGULA_E4M3},
    {"cu_seqlens_q_int64", kRagged, [](F& f) { f.cu_seqlens_q.set_i64({3}, {0, 1, 5}); }, kType,
     "cu_seqlens_q: dtype i64 is not i32"},
    {"cu_seqlens_k_int64", kRagged, [](F& f) { f.cu_seqlens_k.set_i64({3}, {0, 2, 8}); }, kType,
     "cu_seqlens_k: dtype i64 is not i32"},
    {"page_table_int64", kPaged, [](F& f) { f.page_table.set_i64({2, 2}, {3, 1, 0, 4}); }, kType,
     "page_table: dtype i64 is not i32"},
    {"seqused_k_float", kPaged,
     [](F& f) { f.seqused_k.index.tensor = make_tensor(f.q.buffer->data(), TEGULA_F32, {2}); },
     kType, "seqused_k: dtype f32 is not i32"},
    {"seqused_k_int16", kPaged, [](F& f) { f.seqused_k.index.tensor.type_bits = 16; }, kType,
     "seqused_k: dtype int16 is not one of f32, f16, bf16, e4m3, e5m2, bool, i32, i64"},
    // Strides.
    {"q_last_stride", kDense, [](F& f) { f.q.tensor.strides[3] = 2; }, kValue,
     "q: strides[3] 2 is not 1: the last dimension is contiguous"},
    {"lse_last_stride", kDense, [](F& f) { f.lse.tensor.strides[2] = 2; }, kValue,
     "lse: strides[2] 2 is not 1: the last dimension is contiguous"},
    {"bias_last_stride", kDense,
     [](F& f) {
       f.add_bias();
       f.bias.tensor.strides[3] = 3;
     },
     kValue, "bias: strides[3] 3 is not 1 or 0: the last dimension is contiguous"},
    {"k_negative_stride", kDense, [](F& f) { f.k.tensor.strides[1] = -16; }, kValue,
     "k: strides[1] -16 is less than 0"},
    {"cu_seqlens_stride", kRagged, [](F& f) { f.cu_seqlens_q.index.tensor.strides[0] = 2; }, kValue,
     "cu_seqlens_q: strides[0] 2 is not 1: the last dimension is contiguous"},
    {"page_table_negative_stride", kPaged, [](F& f) { f.page_table.index.tensor.strides[0] = -2; },
     kValue, "page_table: strides[0] -2 is less than 0"},
    {"o_broadcast", kDense, [](F& f) { f.o.tensor.strides[0] = 0; }, kValue,
     "o: strides[0] 0 is less than 1, so that the output overlaps itself"},
    {"o_overlap", kDense, [](F& f) { f.o.tensor.strides[1] = 63; }, kValue,
     "o: strides[1] 63 is less than 64, so that the output overlaps itself"},
    {"lse_overlap", kDense, [](F& f) { f.lse.tensor.strides[0] = 11; }, kValue,
     "lse: strides[0] 11 is less than 12, so that the output overlaps itself"},
    {"v_keys_contiguous", kDense,
     [](F& f) {
       f.v.tensor.strides[1] = 1;
       f.v.tensor.strides[3] = 6;
     },
     kUnsupported,
     "v: stride 1 along the keys with stride 6 along head_dim_v is not supported yet (dtype e4m3)",
     true, TEGULA_E4M3, TEGULA_E4M3},
    {"v_keys_contiguous_f32", kDense,
     [](F& f) {
       f.v.tensor.strides[1] = 1;
       f.v.tensor.strides[3] = 6;
     },
     kValue, "v: strides[3] 6 is not 1: the last dimension is contiguous"},
    {"stride_overflow", kDense, [](F& f) { f.k.tensor.strides[1] = INT64_MAX / 2; }, kValue,
     "k: shape[1] 6 with strides[1] 4611686018427387903 is beyond 64-bit offsets"},
    {"bytes_overflow", kDense, [](F& f) { f.k.tensor.strides[1] = INT64_MAX / 16; }, kValue,
     "k: 2882303761517117547 elements of extent with byte_offset 0 are beyond 64-bit offsets"},
    {"byte_offset_overflow", kDense, [](F& f) { f.q.tensor.byte_offset = UINT64_MAX; }, kValue,
     "q: 192 elements of extent with byte_offset 18446744073709551615 are beyond 64-bit offsets"},
    // Devices.
    {"k_device", kDense, [](F& f) { f.k.tensor.device_kind = TEGULA_CUDA; }, kType,
     "k: device cuda:0 differs from q: device cpu"},
    {"page_table_device", kPaged,
     [](F& f) {
       f.page_table.index.tensor.device_kind = TEGULA_CUDA;
       f.page_table.index.tensor.device_index = 1;
     },
     kType, "page_table: device cuda:1 differs from q: device cpu"},
    {"lse_device_unknown", kDense, [](F& f) { f.lse.tensor.device_kind = 10; }, kType,
     "lse: device kind 10 differs from q: device cpu"},
};

class BadForwardShape : public testing::TestWithParam<BadForward> {};

TEST_P(BadForwardShape, IsRefused) {
  expect_refused(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Table, BadForwardShape, testing::ValuesIn(kShapes),
                         [](const auto& test) { return std::string(test.param.id); });

// Field report B15: every mismatch between q, k and v is named with both sizes, and nothing is
// read.
TEST(BadForward, LengthTakenFromVWouldReadPastK) {
  F f(kDense);
  f.q.set(TEGULA_F32, {1, 3, 1, 8});
  f.o.set(TEGULA_F32, {1, 3, 1, 8});
  f.k.set(TEGULA_F32, {1, 1, 1, 8});
  f.v.set(TEGULA_F32, {1, 4000000, 1, 8});
  f.args.lse = nullptr;
  EXPECT_EQ(f.describe(), TEGULA_INVALID_ARGUMENT);
  EXPECT_STREQ(tegula_last_error(), "v: seqlen_k 4000000 differs from k: seqlen_k 1");
}

}  // namespace
