// SPDX-License-Identifier: Apache-2.0
// Bad calls of forward that only the call tells: against its plan, by addresses, by index values.
#include "tests/unit/api/bad_forward.hpp"

namespace {

using namespace tegula_test;

const BadForward kCalls[] = {
    // Against the plan.
    {"plan_q_dtype", kDense, [](F& f) { f.q.set(TEGULA_F16, {2, 3, 4, 8}); }, kType,
     "q: dtype f16 differs from the plan's f32", false},
    {"plan_kv_dtype", kDense,
     [](F& f) {
       f.k.set(TEGULA_F16, {2, 6, 2, 8});
       f.v.set(TEGULA_F16, {2, 6, 2, 16});
     },
     kType, "k, v: dtype f16 differs from the plan's f32", false},
    {"plan_o_dtype", kDense, [](F& f) { f.o.set(TEGULA_BF16, {2, 3, 4, 16}); }, kType,
     "o: dtype bf16 differs from the plan's f32", false},
    {"plan_bias_dtype", kDense, [](F& f) { f.add_bias(TEGULA_BOOL); }, kType,
     "bias: dtype bool differs from the plan's f32", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.add_bias(TEGULA_F32); }},
    {"plan_layout_q", kRagged,
     [](F& f) {
       f.q.set(TEGULA_F32, {2, 2, 4, 8});
       f.o.set(TEGULA_F32, {2, 2, 4, 16});
       f.lse.set(TEGULA_F32, {2, 4, 2});
       f.args.cu_seqlens_q = nullptr;
     },
     kValue, "q: layout dense differs from the plan's ragged", false},
    {"plan_layout_k", kDense,
     [](F& f) {
       f.page_table.set({2, 1}, {0, 1});
       f.seqused_k.set({2}, {1, 1});
       f.args.page_table = &f.page_table.index;
       f.args.seqused_k = &f.seqused_k.index;
     },
     kValue, "k: layout paged differs from the plan's dense", false},
    {"plan_has_lse", kDense, [](F& f) { f.args.lse = nullptr; }, kValue,
     "lse: absent in the call, but present in the plan's problem", false},
    {"plan_has_no_sink", kDense, [](F& f) { f.add_sink(); }, kValue,
     "sink: present in the call, but absent in the plan's problem", false},
    {"plan_has_no_new_tokens", kPaged, [](F& f) { f.args.seqlen_new = 1; }, kValue,
     "new tokens: present in the call, but absent in the plan's problem", false},
    {"plan_heads", kDense,
     [](F& f) {
       f.q.set(TEGULA_F32, {2, 3, 2, 8});
       f.o.set(TEGULA_F32, {2, 3, 2, 16});
       f.lse.set(TEGULA_F32, {2, 2, 3});
     },
     kValue, "q: num_heads_q 2 differs from the plan's 4", false},
    {"plan_heads_kv", kDense,
     [](F& f) {
       f.k.set(TEGULA_F32, {2, 6, 4, 8});
       f.v.set(TEGULA_F32, {2, 6, 4, 16});
     },
     kValue, "k: num_heads_kv 4 differs from the plan's 2", false},
    {"plan_head_dim", kDense,
     [](F& f) {
       f.q.set(TEGULA_F32, {2, 3, 4, 7});
       f.k.set(TEGULA_F32, {2, 6, 2, 7});
     },
     kValue, "q: head_dim 7 differs from the plan's 8", false},
    {"plan_page_size", kPaged,
     [](F& f) {
       f.k.set(TEGULA_F32, {5, 3, 2, 8});
       f.v.set(TEGULA_F32, {5, 3, 2, 16});
     },
     kValue, "k: page_size 3 differs from the plan's 4", false},
    {"plan_batch", kDense,
     [](F& f) {
       f.q.set(TEGULA_F32, {3, 3, 4, 8});
       f.o.set(TEGULA_F32, {3, 3, 4, 16});
       f.lse.set(TEGULA_F32, {3, 4, 3});
       f.k.set(TEGULA_F32, {3, 6, 2, 8});
       f.v.set(TEGULA_F32, {3, 6, 2, 16});
     },
     kValue, "q: batch 3 is more than the plan's 2", false},
    {"plan_seqlen_q", kDense,
     [](F& f) {
       f.q.set(TEGULA_F32, {2, 4, 4, 8});
       f.o.set(TEGULA_F32, {2, 4, 4, 16});
       f.lse.set(TEGULA_F32, {2, 4, 4});
     },
     kValue, "q: seqlen_q 4 is more than the plan's 3", false},
    {"plan_seqlen_k", kDense,
     [](F& f) {
       f.k.set(TEGULA_F32, {2, 7, 2, 8});
       f.v.set(TEGULA_F32, {2, 7, 2, 16});
     },
     kValue, "k: seqlen_k 7 is more than the plan's 6", false},
    {"plan_total_q", kRagged,
     [](F& f) {
       f.q.set(TEGULA_F32, {6, 4, 8});
       f.o.set(TEGULA_F32, {6, 4, 16});
       f.lse.set(TEGULA_F32, {4, 6});
     },
     kValue, "q: total_q 6 is more than the plan's 5", false},
    {"plan_pages", kPaged,
     [](F& f) {
       f.k.set(TEGULA_F32, {6, 4, 2, 8});
       f.v.set(TEGULA_F32, {6, 4, 2, 16});
     },
     kValue, "k: num_pages 6 is more than the plan's 5", false},
    {"plan_capacity", kPaged, [](F& f) { f.page_table.set({2, 3}, {3, 1, 2, 0, 4, 2}); }, kValue,
     "page_table: seqlen_k 12 is more than the plan's 8", false},
    {"device", kDense,
     [](F& f) {
       for (Operand* operand : {&f.q, &f.k, &f.v, &f.o, &f.lse}) {
         operand->tensor.device_kind = TEGULA_CUDA;
       }
     },
     kType, "q: device cuda:0 differs from the call's cpu", false},
    // Addresses.
    {"q_data_null", kDense, [](F& f) { f.q.tensor.data = nullptr; }, kValue,
     "q: data is NULL, but shape[0] is 2", false},
    {"seqused_k_data_null", kPaged, [](F& f) { f.seqused_k.index.tensor.data = nullptr; }, kValue,
     "seqused_k: data is NULL, but shape[0] is 2", false},
    {"q_misaligned", kDense, [](F& f) { f.q.tensor.byte_offset = 2; }, kValue,
     "q: the address is 2 past a multiple of 4 bytes, the size of f32", false},
    {"o_misaligned", kDense, [](F& f) { f.o.tensor.byte_offset = 1; }, kValue,
     "o: the address is 1 past a multiple of 2 bytes, the size of bf16", false, TEGULA_BF16,
     TEGULA_BF16},
    {"page_table_misaligned", kPaged, [](F& f) { f.page_table.index.tensor.byte_offset = 3; },
     kValue, "page_table: the address is 3 past a multiple of 4 bytes, the size of i32", false},
    {"o_is_q", kDense, [](F& f) { f.o.tensor.data = f.q.tensor.data; }, kValue,
     "o: has the address of q", false},
    {"o_is_k", kDense, [](F& f) { f.o.tensor.data = f.k.tensor.data; }, kValue,
     "o: has the address of k", false},
    {"o_is_v", kDense, [](F& f) { f.o.tensor.data = f.v.tensor.data; }, kValue,
     "o: has the address of v", false},
    {"lse_is_o", kDense, [](F& f) { f.lse.tensor.data = f.o.tensor.data; }, kValue,
     "lse: has the address of o", false},
    // Lengths.
    {"cu_seqlens_q_first", kRagged, [](F& f) { f.cu_seqlens_q.buffer->i32()[0] = 1; }, kValue,
     "cu_seqlens_q: entry 0 is 1, not 0", false},
    {"cu_seqlens_q_decreasing", kRagged, [](F& f) { f.cu_seqlens_q.buffer->i32()[1] = 6; }, kValue,
     "cu_seqlens_q: entry 2 is 5, less than 6 before it", false},
    {"cu_seqlens_q_negative", kRagged, [](F& f) { f.cu_seqlens_q.buffer->i32()[1] = -1; }, kValue,
     "cu_seqlens_q: entry 1 is -1, less than 0 before it", false},
    {"cu_seqlens_q_long", kRagged, [](F& f) { f.cu_seqlens_q.buffer->i32()[2] = 6; }, kValue,
     "cu_seqlens_q: entry 2 is 6, more than q: total_q 5", false},
    {"cu_seqlens_k_decreasing", kRagged, [](F& f) { f.cu_seqlens_k.buffer->i32()[2] = 1; }, kValue,
     "cu_seqlens_k: entry 2 is 1, less than 2 before it", false},
    {"cu_seqlens_k_long", kRagged, [](F& f) { f.cu_seqlens_k.buffer->i32()[2] = 9; }, kValue,
     "cu_seqlens_k: entry 2 is 9, more than k: total_k 8", false},
    {"seqused_q_long", kDense, [](F& f) { f.seqused_q.buffer->i32()[1] = 4; }, kValue,
     "seqused_q: 4 of sequence 1 is not within 0 and seqlen_q 3", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.add_seqused_q(); }},
    {"seqused_q_slot", kRagged, [](F& f) { f.seqused_q.buffer->i32()[0] = 2; }, kValue,
     "seqused_q: 2 of sequence 0 is not within 0 and seqlen_q 1", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.add_seqused_q(); }},
    {"seqused_q_negative", kDense, [](F& f) { f.seqused_q.buffer->i32()[0] = -1; }, kValue,
     "seqused_q: -1 of sequence 0 is not within 0 and seqlen_q 3", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.add_seqused_q(); }},
    {"seqused_k_negative", kPaged, [](F& f) { f.seqused_k.buffer->i32()[1] = -2; }, kValue,
     "seqused_k: -2 of sequence 1 is less than 0", false},
    {"seqused_k_dense", kDense, [](F& f) { f.seqused_k.buffer->i32()[1] = 7; }, kValue,
     "seqused_k: 7 of sequence 1 is more than its capacity 6", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.add_seqused_k(); }},
    {"seqused_k_slot", kRagged, [](F& f) { f.seqused_k.buffer->i32()[0] = 3; }, kValue,
     "seqused_k: 3 of sequence 0 is more than its capacity 2", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.add_seqused_k(); }},
    {"seqused_k_pages", kPaged, [](F& f) { f.seqused_k.buffer->i32()[0] = 9; }, kValue,
     "seqused_k: 9 of sequence 0 is more than its capacity 8", false},
    {"seqused_k_new", kPaged, [](F& f) { f.args.seqlen_new = 3; }, kValue,
     "seqused_k: 6 of sequence 0 and 3 new tokens are more than its capacity 8", false, TEGULA_F32,
     TEGULA_F32, [](F& f) { f.args.seqlen_new = 1; }},
    {"seqlen_new_huge", kPaged, [](F& f) { f.args.seqlen_new = INT64_MAX; }, kValue,
     "seqlen_new: 9223372036854775807 is more than the capacity 8", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.args.seqlen_new = 1; }},
    {"cu_seqlens_new_decreasing", kPaged, [](F& f) { f.cu_seqlens_new.buffer->i32()[2] = -1; },
     kValue, "cu_seqlens_new: entry 2 is -1, less than 0 before it", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.add_cu_seqlens_new(); }},
    {"cu_seqlens_new_long", kPaged, [](F& f) { f.cu_seqlens_new.buffer->i32()[2] = 1; }, kValue,
     "seqused_k: 8 of sequence 1 and 1 new tokens are more than its capacity 8", false, TEGULA_F32,
     TEGULA_F32, [](F& f) { f.add_cu_seqlens_new(); }},
    {"seqused_k_row", kIndices, [](F& f) { f.page_indptr.buffer->i32()[1] = 1; }, kValue,
     "seqused_k: 6 of sequence 0 is more than its capacity 4", false},
    {"page_indptr_decreasing", kIndices, [](F& f) { f.page_indptr.buffer->i32()[2] = 1; }, kValue,
     "page_indptr: entries 2 and 1 of sequence 1 decrease", false},
    {"page_indptr_negative", kIndices, [](F& f) { f.page_indptr.buffer->i32()[0] = -1; }, kValue,
     "page_indptr: entries -1 and 2 of sequence 0 decrease", false},
    {"page_indptr_long", kIndices, [](F& f) { f.page_indptr.buffer->i32()[2] = 5; }, kValue,
     "page_indptr: entry 2 is 5, more than page_indices: shape[0] 4", false},
    {"leftpad_negative", kDense, [](F& f) { f.leftpad_k.buffer->i32()[0] = -1; }, kValue,
     "leftpad_k: -1 of sequence 0 is not within 0 and its capacity 6", false, TEGULA_F32,
     TEGULA_F32, [](F& f) { f.add_leftpad(); }},
    {"leftpad_long", kDense, [](F& f) { f.leftpad_k.buffer->i32()[1] = 7; }, kValue,
     "leftpad_k: 7 of sequence 1 is not within 0 and its capacity 6", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.add_leftpad(); }},
    {"max_seqlen_q", kRagged, [](F&) {}, kValue,
     "max_seqlen_q: 3 is less than 4, the length of sequence 1", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.problem.max_seqlen_q = 3; }},
    {"max_seqlen_k", kPaged, [](F&) {}, kValue,
     "max_seqlen_k: 7 is less than 8, the length of sequence 1", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.problem.max_seqlen_k = 7; }},
    {"bias_ragged_q", kRagged, [](F& f) { f.bias.tensor.shape[2] = 3; }, kValue,
     "bias: shape[2] 3 is less than 4, seqlen_q of sequence 1", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.add_bias(); }},
    {"bias_paged_k", kPaged, [](F& f) { f.bias.tensor.shape[3] = 7; }, kValue,
     "bias: shape[3] 7 is less than 8, seqlen_k of sequence 1", false, TEGULA_F32, TEGULA_F32,
     [](F& f) { f.add_bias(); }},
    // Pages.
    {"page_id_negative", kPaged, [](F& f) { f.page_table.buffer->i32()[1] = -1; }, kValue,
     "page_table: page 1 of sequence 0 is -1, not within 0 and num_pages 5 - 1", false},
    {"page_id_large", kPaged, [](F& f) { f.page_table.buffer->i32()[2] = 5; }, kValue,
     "page_table: page 0 of sequence 1 is 5, not within 0 and num_pages 5 - 1", false},
    {"page_index_large", kIndices, [](F& f) { f.page_indices.buffer->i32()[3] = 1000; }, kValue,
     "page_indices: page 1 of sequence 1 is 1000, not within 0 and num_pages 5 - 1", false},
    {"page_id_at_window_edge", kPaged, [](F& f) { f.page_table.buffer->i32()[2] = -1; }, kValue,
     "page_table: page 0 of sequence 1 is -1, not within 0 and num_pages 5 - 1", false, TEGULA_F32,
     TEGULA_F32,
     // Queries at 5, 6, 7 of 8 keys: the window of the first one begins with key 3, on page 0.
     [](F& f) { f.problem.window_left = 2; }},
};

class BadForwardCall : public testing::TestWithParam<BadForward> {};

TEST_P(BadForwardCall, IsRefused) {
  expect_refused(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Table, BadForwardCall, testing::ValuesIn(kCalls),
                         [](const auto& test) { return std::string(test.param.id); });

}  // namespace
