// SPDX-License-Identifier: Apache-2.0
// Bad calls of append_kv: status, exact text, outputs untouched.
#include <cmath>
#include <limits>

#include "tests/unit/api/call_fixture.hpp"

namespace {

using namespace tegula_test;

constexpr tegula_status kValue = TEGULA_INVALID_ARGUMENT;
constexpr tegula_status kType = TEGULA_WRONG_TYPE;
constexpr tegula_status kUnsupported = TEGULA_UNSUPPORTED;
constexpr Layout kDense = Layout::kDense;
constexpr Layout kRagged = Layout::kRagged;
constexpr Layout kPaged = Layout::kPaged;
constexpr Layout kIndices = Layout::kPageIndices;

struct BadAppend {
  const char* id;
  Layout layout;
  void (*spoil)(AppendFixture&);
  tegula_status status;
  const char* text;
  int32_t cache_dtype = TEGULA_F32;
};

void PrintTo(const BadAppend& bad, std::ostream* out) {
  *out << bad.id;
}

using A = AppendFixture;
const BadAppend kAppends[] = {
    {"k_new_null", kDense, [](A& a) { a.args.k_new = nullptr; }, kValue, "k_new: is NULL"},
    {"v_cache_null", kDense, [](A& a) { a.args.v_cache = nullptr; }, kValue, "v_cache: is NULL"},
    {"seqused_k_null", kDense, [](A& a) { a.args.seqused_k = nullptr; }, kValue,
     "seqused_k: is NULL, but slot_mapping is too"},
    {"seqused_k_null_rotary", kPaged,
     [](A& a) {
       a.use_slots();
       a.add_rotary();
       a.args.seqused_k = nullptr;
     },
     kValue, "seqused_k: is NULL, but cos is present and positions is not"},
    {"cos_alone", kDense,
     [](A& a) {
       a.add_rotary();
       a.args.sin = nullptr;
     },
     kValue, "sin: is NULL, but cos is present"},
    {"sin_alone", kDense,
     [](A& a) {
       a.add_rotary();
       a.args.cos = nullptr;
     },
     kValue, "cos: is NULL, but sin is present"},
    {"q_alone", kDense,
     [](A& a) {
       a.add_rotary();
       a.add_q();
       a.args.q_out = nullptr;
     },
     kValue, "q_out: is NULL, but q is present"},
    {"q_without_cos", kDense, [](A& a) { a.add_q(); }, kValue, "cos: is NULL, but q is present"},
    {"positions_without_cos", kDense, [](A& a) { a.add_positions(); }, kValue,
     "cos: is NULL, but positions is present"},
    {"slots_and_pages", kPaged,
     [](A& a) {
       a.use_slots();
       a.args.page_table = &a.page_table.index;
     },
     kValue, "slot_mapping: present beside page_table; at most one may be given"},
    {"page_indptr_null", kIndices, [](A& a) { a.args.page_indptr = nullptr; }, kValue,
     "page_indptr: is NULL, but page_indices is present"},
    {"style", kDense, [](A& a) { a.args.rotary_style = 2; }, kValue,
     "rotary_style: 2 is not 0 (half_split) or 1 (interleaved)"},
    {"new_dtypes", kDense, [](A& a) { a.v_new.set(TEGULA_F16, {2, 2, 2, 16}); }, kUnsupported,
     "v_new: dtype f16 differs from k_new: dtype f32"},
    {"cache_dtypes", kDense, [](A& a) { a.v_cache.set(TEGULA_E5M2, {2, 8, 2, 16}); }, kUnsupported,
     "v_cache: dtype e5m2 differs from k_cache: dtype e4m3", TEGULA_E4M3},
    {"cache_i32", kDense,
     [](A& a) {
       a.k_cache.set(TEGULA_I32, {2, 8, 2, 8});
       a.v_cache.set(TEGULA_I32, {2, 8, 2, 16});
     },
     kType, "k_cache: dtype i32 is not one of f32, f16, bf16, e4m3, e5m2"},
    {"8bit_rows_in_f32", kDense,
     [](A& a) {
       a.k_new.set(TEGULA_E4M3, {2, 2, 2, 8});
       a.v_new.set(TEGULA_E4M3, {2, 2, 2, 16});
     },
     kUnsupported, "k_new: dtype e4m3 with k_cache: dtype f32 is not supported"},
    {"rotary_of_8bit", kDense,
     [](A& a) {
       a.k_new.set(TEGULA_E4M3, {2, 2, 2, 8});
       a.v_new.set(TEGULA_E4M3, {2, 2, 2, 16});
       a.add_rotary();
     },
     kUnsupported, "cos: present, but k_new: dtype e4m3 is not f32, f16 or bf16", TEGULA_E4M3},
    {"k_new_rank", kDense, [](A& a) { a.k_new.set(TEGULA_F32, {8, 8}); }, kValue,
     "k_new: rank 2 is not 4 (dense) or 3 (ragged)"},
    {"cu_seqlens_new_dense", kDense,
     [](A& a) {
       a.cu_seqlens_new.set({3}, {0, 2, 4});
       a.args.cu_seqlens_new = &a.cu_seqlens_new.index;
     },
     kValue, "cu_seqlens_new: present, but k_new: rank is 4 (dense)"},
    {"cu_seqlens_new_null", kRagged, [](A& a) { a.args.cu_seqlens_new = nullptr; }, kValue,
     "cu_seqlens_new: is NULL, but k_new: rank is 3 (ragged) and slot_mapping is NULL"},
    {"new_batch", kDense, [](A& a) { a.v_new.set(TEGULA_F32, {1, 2, 2, 16}); }, kValue,
     "v_new: batch 1 differs from k_new: batch 2"},
    {"new_seqlen", kDense, [](A& a) { a.v_new.set(TEGULA_F32, {2, 3, 2, 16}); }, kValue,
     "v_new: seqlen_new 3 differs from k_new: seqlen_new 2"},
    {"new_heads", kDense, [](A& a) { a.v_new.set(TEGULA_F32, {2, 2, 1, 16}); }, kValue,
     "v_new: num_heads_kv 1 differs from k_new: num_heads_kv 2"},
    {"head_dim_large", kDense, [](A& a) { a.k_new.set(TEGULA_F32, {2, 2, 2, 600}); }, kUnsupported,
     "k_new: head_dim 600 is more than the supported 512"},
    {"cache_rank", kDense, [](A& a) { a.k_cache.set(TEGULA_F32, {16, 2, 8}); }, kValue,
     "k_cache: rank 3 is not 4"},
    {"cache_batch", kDense,
     [](A& a) {
       a.k_cache.set(TEGULA_F32, {3, 8, 2, 8});
       a.v_cache.set(TEGULA_F32, {3, 8, 2, 16});
     },
     kValue, "k_cache: batch 3 differs from k_new: batch 2"},
    {"cache_capacity", kDense, [](A& a) { a.v_cache.set(TEGULA_F32, {2, 9, 2, 16}); }, kValue,
     "v_cache: seqlen_k 9 differs from k_cache: seqlen_k 8"},
    {"cache_pages", kPaged, [](A& a) { a.v_cache.set(TEGULA_F32, {6, 4, 2, 16}); }, kValue,
     "v_cache: num_pages 6 differs from k_cache: num_pages 5"},
    {"cache_heads", kDense, [](A& a) { a.k_cache.set(TEGULA_F32, {2, 8, 4, 8}); }, kValue,
     "k_cache: num_heads_kv 4 differs from k_new: num_heads_kv 2"},
    {"cache_head_dim", kDense, [](A& a) { a.v_cache.set(TEGULA_F32, {2, 8, 2, 8}); }, kValue,
     "v_cache: head_dim_v 8 differs from v_new: head_dim_v 16"},
    {"cache_overlap", kDense, [](A& a) { a.k_cache.tensor.strides[1] = 15; }, kValue,
     "k_cache: strides[1] 15 is less than 16, so that the output overlaps itself"},
    {"cache_broadcast", kDense, [](A& a) { a.v_cache.tensor.strides[0] = 0; }, kValue,
     "v_cache: strides[0] 0 is less than 1, so that the output overlaps itself"},
    {"page_table_batch", kPaged, [](A& a) { a.page_table.set({3, 2}, {0, 1, 2, 3, 4, 0}); }, kValue,
     "page_table: shape[0] 3 differs from k_new: batch 2"},
    {"seqused_k_int64", kDense, [](A& a) { a.seqused_k.set_i64({2}, {3, 6}); }, kType,
     "seqused_k: dtype i64 is not i32"},
    {"slot_mapping_int32", kPaged,
     [](A& a) {
       a.use_slots();
       a.slot_mapping.set({4}, {3, 19, -1, 7});
     },
     kType, "slot_mapping: dtype i32 is not i64"},
    {"slot_mapping_length", kPaged,
     [](A& a) {
       a.use_slots();
       a.slot_mapping.set_i64({3}, {3, 19, -1});
     },
     kValue, "slot_mapping: shape[0] 3 differs from k_new: total_new 4"},
    {"positions_length", kDense,
     [](A& a) {
       a.add_rotary();
       a.add_positions();
       a.positions.set({2}, {0, 1});
     },
     kValue, "positions: shape[0] 2 differs from k_new: total_new 4"},
    {"positions_int64", kDense,
     [](A& a) {
       a.add_rotary();
       a.add_positions();
       a.positions.set_i64({4}, {0, 1, 2, 3});
     },
     kType, "positions: dtype i64 is not i32"},
    {"cos_dtype", kDense,
     [](A& a) {
       a.add_rotary();
       a.cos.set(TEGULA_F16, {8, 4});
     },
     kType, "cos: dtype f16 is not f32 or k_new: dtype f32"},
    {"sin_dtype", kDense,
     [](A& a) {
       a.add_rotary();
       a.sin.set(TEGULA_BF16, {8, 4});
     },
     kType, "sin: dtype bf16 differs from cos: dtype f32"},
    {"sin_shape", kDense,
     [](A& a) {
       a.add_rotary();
       a.sin.set(TEGULA_F32, {8, 3});
     },
     kValue, "sin: shape[1] 3 differs from cos: shape[1] 4"},
    {"rotary_dim", kDense,
     [](A& a) {
       a.add_rotary();
       a.cos.set(TEGULA_F32, {8, 5});
       a.sin.set(TEGULA_F32, {8, 5});
     },
     kValue, "cos: shape[1] 5 (rotary_dim / 2) is not within 1 and half of head_dim 8"},
    {"q_dtype", kDense,
     [](A& a) {
       a.add_rotary();
       a.add_q();
       a.q.set(TEGULA_BF16, {2, 2, 4, 8});
     },
     kType, "q: dtype bf16 is not f32"},
    {"q_seqlen", kDense,
     [](A& a) {
       a.add_rotary();
       a.add_q();
       a.q.set(TEGULA_F32, {2, 3, 4, 8});
     },
     kValue, "q: seqlen_new 3 differs from k_new: seqlen_new 2"},
    {"q_head_dim", kDense,
     [](A& a) {
       a.add_rotary();
       a.add_q();
       a.q.set(TEGULA_F32, {2, 2, 4, 16});
     },
     kValue, "q: head_dim 16 differs from k_new: head_dim 8"},
    {"q_heads", kDense,
     [](A& a) {
       a.add_rotary();
       a.add_q();
       a.q.set(TEGULA_F32, {2, 2, 3, 8});
       a.q_out.set(TEGULA_F32, {2, 2, 3, 8});
     },
     kValue, "k_new: num_heads_kv 2 does not divide q: num_heads_q 3"},
    {"q_out_heads", kDense,
     [](A& a) {
       a.add_rotary();
       a.add_q();
       a.q_out.set(TEGULA_F32, {2, 2, 2, 8});
     },
     kValue, "q_out: num_heads_q 2 differs from q: num_heads_q 4"},
    {"q_out_in_place_strides", kDense,
     [](A& a) {
       a.add_rotary();
       a.add_q();
       a.q_out.tensor.data = a.q.tensor.data;
       a.q_out.tensor.strides[0] = 128;
     },
     kValue, "q_out: has the address of q, but strides[0] 128 differs from q's 64"},
    {"descale_f32", kDense, [](A& a) { a.add_descales(); }, kType,
     "descale_k: present, but rows of dtype f32 are not rounded to 8 bits in a cache of dtype f32"},
    {"descale_shape", kDense,
     [](A& a) {
       a.add_descales();
       a.descale_k.set(TEGULA_F32, {3});
     },
     kValue, "descale_k: shape[0] 3 differs from the call: num_heads_kv 2", TEGULA_E4M3},
    {"descale_zero", kDense,
     [](A& a) {
       a.add_descales();
       a.descale_k.buffer->f32()[1] = 0;
     },
     kValue, "descale_k: 0 of sequence 0, head 1 is not finite and more than 0", TEGULA_E4M3},
    {"descale_nan", kDense,
     [](A& a) {
       a.add_descales();
       a.descale_v.buffer->f32()[2] = std::numeric_limits<float>::quiet_NaN();
     },
     kValue, "descale_v: nan of sequence 1, head 0 is not finite and more than 0", TEGULA_E4M3},
    {"descale_inf", kDense,
     [](A& a) {
       a.add_descales();
       a.descale_v.buffer->f32()[3] = INFINITY;
     },
     kValue, "descale_v: inf of sequence 1, head 1 is not finite and more than 0", TEGULA_E5M2},
    {"v_new_device", kDense, [](A& a) { a.v_new.tensor.device_kind = TEGULA_CUDA; }, kType,
     "v_new: device cuda:0 differs from k_new: device cpu"},
    {"cuda", kDense,
     [](A& a) {
       for (Operand* o : {&a.k_new, &a.v_new, &a.k_cache, &a.v_cache}) {
         o->tensor.device_kind = TEGULA_CUDA;
       }
       a.seqused_k.index.tensor.device_kind = TEGULA_CUDA;
     },
     kUnsupported, "append_kv: device cuda:0 is not supported by this build, cpu is"},
    {"k_cache_null_data", kDense, [](A& a) { a.k_cache.tensor.data = nullptr; }, kValue,
     "k_cache: data is NULL, but shape[0] is 2"},
    {"caches_same", kDense,
     [](A& a) {
       a.v_new.set(TEGULA_F32, {2, 2, 2, 8});
       a.v_cache.set(TEGULA_F32, {2, 8, 2, 8});
       a.v_cache.tensor.data = a.k_cache.tensor.data;
     },
     kValue, "v_cache: has the address of k_cache"},
    {"capacity", kDense, [](A& a) { a.seqused_k.buffer->i32()[1] = 7; }, kValue,
     "seqused_k: 7 of sequence 1 and 2 new tokens are more than its capacity 8"},
    {"capacity_pages", kPaged, [](A& a) { a.seqused_k.buffer->i32()[0] = 2147483647; }, kValue,
     "seqused_k: 2147483647 of sequence 0 and 2 new tokens are more than its capacity 8"},
    {"capacity_row", kIndices, [](A& a) { a.page_indptr.buffer->i32()[1] = 1; }, kValue,
     "seqused_k: 3 of sequence 0 and 2 new tokens are more than its capacity 4"},
    {"seqused_negative", kDense, [](A& a) { a.seqused_k.buffer->i32()[0] = -1; }, kValue,
     "seqused_k: -1 of sequence 0 is less than 0"},
    {"cu_seqlens_new_decreasing", kRagged, [](A& a) { a.cu_seqlens_new.buffer->i32()[2] = 2; },
     kValue, "cu_seqlens_new: entry 2 is 2, less than 3 before it"},
    {"cu_seqlens_new_long", kRagged, [](A& a) { a.cu_seqlens_new.buffer->i32()[2] = 5; }, kValue,
     "cu_seqlens_new: entry 2 is 5, more than k_new: total_new 4"},
    // Sequence 0 writes positions 3 and 4: pages 0 and 1 of its row.
    {"page_id", kPaged, [](A& a) { a.page_table.buffer->i32()[1] = 5; }, kValue,
     "page_table: page 1 of sequence 0 is 5, not within 0 and num_pages 5 - 1"},
    {"page_id_negative", kPaged, [](A& a) { a.page_table.buffer->i32()[0] = -1; }, kValue,
     "page_table: page 0 of sequence 0 is -1, not within 0 and num_pages 5 - 1"},
    {"slot", kPaged,
     [](A& a) {
       a.use_slots();
       a.slot_mapping.buffer->i64()[1] = 20;
     },
     kValue, "slot_mapping: entry 1 is 20, not less than num_pages 5 x page_size 4"},
    {"position_past_cos", kDense,
     [](A& a) {
       a.add_rotary();
       a.cos.set(TEGULA_F32, {7, 4});
       a.sin.set(TEGULA_F32, {7, 4});
     },
     kValue, "cos: shape[0] 7 is not more than 7, a position of sequence 1"},
    {"positions_value", kDense,
     [](A& a) {
       a.add_rotary();
       a.add_positions();
       a.positions.buffer->i32()[2] = 8;
     },
     kValue, "positions: entry 2 is 8, not within 0 and cos: shape[0] 8 - 1"},
    {"positions_negative", kDense,
     [](A& a) {
       a.add_rotary();
       a.add_positions();
       a.positions.buffer->i32()[0] = -1;
     },
     kValue, "positions: entry 0 is -1, not within 0 and cos: shape[0] 8 - 1"},
};

class BadAppends : public testing::TestWithParam<BadAppend> {};

TEST_P(BadAppends, AreRefused) {
  A a(GetParam().layout, TEGULA_F32, GetParam().cache_dtype);
  GetParam().spoil(a);
  EXPECT_EQ(tegula_append_kv(&a.args, nullptr), GetParam().status);
  EXPECT_STREQ(tegula_last_error(), GetParam().text);
  EXPECT_TRUE(a.outputs_untouched());
}

INSTANTIATE_TEST_SUITE_P(Table, BadAppends, testing::ValuesIn(kAppends),
                         [](const auto& test) { return "a_" + std::string(test.param.id); });

}  // namespace
