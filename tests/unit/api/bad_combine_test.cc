// SPDX-License-Identifier: Apache-2.0
// Bad calls of combine: status, exact text, outputs untouched.
#include "tests/unit/api/call_fixture.hpp"

namespace {

using namespace tegula_test;

constexpr tegula_status kValue = TEGULA_INVALID_ARGUMENT;
constexpr tegula_status kType = TEGULA_WRONG_TYPE;
constexpr tegula_status kUnsupported = TEGULA_UNSUPPORTED;
constexpr Layout kDense = Layout::kDense;
constexpr Layout kRagged = Layout::kRagged;

struct BadCombine {
  const char* id;
  Layout layout;
  void (*spoil)(CombineFixture&);
  tegula_status status;
  const char* text;
};

void PrintTo(const BadCombine& bad, std::ostream* out) {
  *out << bad.id;
}

using C = CombineFixture;
const BadCombine kCombines[] = {
    {"o_partial_null", kDense, [](C& c) { c.args.o_partial = nullptr; }, kValue,
     "o_partial: is NULL"},
    {"lse_partial_null", kDense, [](C& c) { c.args.lse_partial = nullptr; }, kValue,
     "lse_partial: is NULL"},
    {"o_null", kDense, [](C& c) { c.args.o = nullptr; }, kValue, "o: is NULL"},
    {"o_partial_dtype", kDense, [](C& c) { c.o_partial.set(TEGULA_E4M3, {3, 2, 3, 4, 8}); }, kType,
     "o_partial: dtype e4m3 is not one of f32, f16, bf16"},
    {"o_dtype", kDense, [](C& c) { c.o.set(TEGULA_I32, {2, 3, 4, 8}); }, kType,
     "o: dtype i32 is not one of f32, f16, bf16"},
    {"lse_partial_dtype", kDense, [](C& c) { c.lse_partial.set(TEGULA_F16, {3, 2, 4, 3}); }, kType,
     "lse_partial: dtype f16 is not f32"},
    {"o_rank", kDense, [](C& c) { c.o.set(TEGULA_F32, {6, 32}); }, kValue,
     "o: rank 2 is not 4 (dense) or 3 (ragged)"},
    {"o_partial_rank", kDense, [](C& c) { c.o_partial.set(TEGULA_F32, {3, 6, 4, 8}); }, kValue,
     "o_partial: rank 4 is not 5"},
    {"splits_0", kDense, [](C& c) { c.o_partial.set(TEGULA_F32, {0, 2, 3, 4, 8}); }, kValue,
     "o_partial: num_splits 0 is not within 1 and 1024"},
    {"splits_1025", kDense, [](C& c) { c.o_partial.tensor.shape[0] = 1025; }, kValue,
     "o_partial: num_splits 1025 is not within 1 and 1024"},
    {"batch", kDense, [](C& c) { c.o.set(TEGULA_F32, {1, 3, 4, 8}); }, kValue,
     "o_partial: batch 2 differs from o: batch 1"},
    {"total", kRagged, [](C& c) { c.o.set(TEGULA_F32, {6, 4, 8}); }, kValue,
     "o_partial: total_q 5 differs from o: total_q 6"},
    {"seqlen", kDense, [](C& c) { c.o.set(TEGULA_F32, {2, 4, 4, 8}); }, kValue,
     "o_partial: seqlen_q 3 differs from o: seqlen_q 4"},
    {"heads", kDense, [](C& c) { c.o.set(TEGULA_F32, {2, 3, 2, 8}); }, kValue,
     "o_partial: num_heads_q 4 differs from o: num_heads_q 2"},
    {"head_dim_v", kRagged, [](C& c) { c.o.set(TEGULA_F32, {5, 4, 16}); }, kValue,
     "o_partial: head_dim_v 8 differs from o: head_dim_v 16"},
    {"head_dim_v_large", kRagged,
     [](C& c) {
       c.o_partial.set(TEGULA_F32, {1, 1, 1, 513});
       c.lse_partial.set(TEGULA_F32, {1, 1, 1});
       c.o.set(TEGULA_F32, {1, 1, 513});
     },
     kUnsupported, "o: head_dim_v 513 is more than the supported 512"},
    {"lse_partial_splits", kDense, [](C& c) { c.lse_partial.set(TEGULA_F32, {2, 2, 4, 3}); },
     kValue, "lse_partial: num_splits 2 differs from o_partial: num_splits 3"},
    {"lse_partial_heads", kDense, [](C& c) { c.lse_partial.set(TEGULA_F32, {3, 2, 3, 4}); }, kValue,
     "lse_partial: num_heads_q 3 differs from o: num_heads_q 4"},
    {"lse_total", kRagged, [](C& c) { c.lse.set(TEGULA_F32, {4, 6}); }, kValue,
     "lse: total_q 6 differs from o: total_q 5"},
    {"sink", kDense, [](C& c) { c.sink.set(TEGULA_F32, {2}); }, kValue,
     "sink: shape[0] 2 differs from o: num_heads_q 4"},
    {"o_overlap", kDense, [](C& c) { c.o.tensor.strides[2] = 4; }, kValue,
     "o: strides[2] 4 is less than 8, so that the output overlaps itself"},
    {"lse_overlap", kDense, [](C& c) { c.lse.tensor.strides[0] = 0; }, kValue,
     "lse: strides[0] 0 is less than 1, so that the output overlaps itself"},
    {"lse_is_o", kDense, [](C& c) { c.lse.tensor.data = c.o.tensor.data; }, kValue,
     "lse: has the address of o"},
    {"device", kDense, [](C& c) { c.o.tensor.device_kind = TEGULA_CUDA; }, kType,
     "o: device cuda:0 differs from o_partial: device cpu"},
    {"misaligned", kDense, [](C& c) { c.lse_partial.tensor.byte_offset = 2; }, kValue,
     "lse_partial: the address is 2 past a multiple of 4 bytes, the size of f32"},
};

class BadCombines : public testing::TestWithParam<BadCombine> {};

TEST_P(BadCombines, AreRefused) {
  C c(GetParam().layout);
  GetParam().spoil(c);
  EXPECT_EQ(tegula_combine(&c.args, nullptr), GetParam().status);
  EXPECT_STREQ(tegula_last_error(), GetParam().text);
  EXPECT_TRUE(c.outputs_untouched());
}

INSTANTIATE_TEST_SUITE_P(Table, BadCombines, testing::ValuesIn(kCombines),
                         [](const auto& test) { return "c_" + std::string(test.param.id); });

}  // namespace
