// SPDX-License-Identifier: Apache-2.0
// Problems, devices, executions and structures that are refused: status and exact text.
#include <cmath>

#include "tests/unit/api/call_fixture.hpp"

namespace {

using namespace tegula_test;

constexpr tegula_status kValue = TEGULA_INVALID_ARGUMENT;
constexpr tegula_status kType = TEGULA_WRONG_TYPE;
constexpr tegula_status kUnsupported = TEGULA_UNSUPPORTED;

struct BadProblem {
  const char* id;
  void (*spoil)(tegula_problem&);
  tegula_status status;
  const char* text;
};

void PrintTo(const BadProblem& bad, std::ostream* out) {
  *out << bad.id;
}

using P = tegula_problem;
const BadProblem kProblems[] = {
    {"backward", [](P& p) { p.operation = TEGULA_OP_BACKWARD; }, kUnsupported,
     "operation: backward is not supported by version 0.1"},
    {"append_kv", [](P& p) { p.operation = TEGULA_OP_APPEND_KV; }, kValue,
     "operation: append_kv takes no plan; call tegula_append_kv"},
    {"combine", [](P& p) { p.operation = TEGULA_OP_COMBINE; }, kValue,
     "operation: combine takes no plan; call tegula_combine"},
    {"operation", [](P& p) { p.operation = 9; }, kValue, "operation: 9 is not within 0 and 3"},
    {"layout_q", [](P& p) { p.layout_q = TEGULA_PAGED; }, kValue,
     "layout_q: 2 is not TEGULA_DENSE (0) or TEGULA_RAGGED (1)"},
    {"layout_k", [](P& p) { p.layout_k = 3; }, kValue,
     "layout_k: 3 is not within TEGULA_DENSE (0) and TEGULA_PAGED (2)"},
    {"q_dtype", [](P& p) { p.q_dtype = TEGULA_I32; }, kType,
     "q: dtype i32 is not one of f32, f16, bf16, e4m3, e5m2"},
    {"q_dtype_unknown", [](P& p) { p.q_dtype = 77; }, kType,
     "q: dtype ? is not one of f32, f16, bf16, e4m3, e5m2"},
    {"kv_dtype", [](P& p) { p.kv_dtype = TEGULA_BOOL; }, kType,
     "k, v: dtype bool is not one of f32, f16, bf16, e4m3, e5m2"},
    {"f32_on_8bit", [](P& p) { p.kv_dtype = TEGULA_E4M3; }, kUnsupported,
     "q: dtype f32 with k, v: dtype e4m3 is not supported"},
    {"bf16_on_f32", [](P& p) { p.q_dtype = TEGULA_BF16; }, kUnsupported,
     "q: dtype bf16 with k, v: dtype f32 is not supported"},
    {"8bit_on_16bit",
     [](P& p) {
       p.q_dtype = TEGULA_E5M2;
       p.kv_dtype = TEGULA_F16;
     },
     kUnsupported, "q: dtype e5m2 with k, v: dtype f16 is not supported"},
    {"o_dtype", [](P& p) { p.o_dtype = TEGULA_E4M3; }, kType,
     "o: dtype e4m3 is not one of f32, f16, bf16"},
    {"bias_dtype_alone", [](P& p) { p.bias_dtype = TEGULA_F32; }, kValue,
     "bias: dtype f32, but operands says no bias"},
    {"bias_operand_alone", [](P& p) { p.operands |= TEGULA_HAS_BIAS; }, kValue,
     "bias: dtype none, but operands says TEGULA_HAS_BIAS"},
    {"bias_dtype",
     [](P& p) {
       p.operands |= TEGULA_HAS_BIAS;
       p.bias_dtype = TEGULA_F16;
     },
     kType, "bias: dtype f16 is not bool, f32 or q: dtype f32"},
    {"bias_8bit",
     [](P& p) {
       p.q_dtype = p.kv_dtype = p.bias_dtype = TEGULA_E4M3;
       p.o_dtype = TEGULA_BF16;
       p.operands |= TEGULA_HAS_BIAS;
     },
     kUnsupported, "bias: dtype e4m3 is not supported (f32 or bool with q: dtype e4m3)"},
    {"operands_unknown", [](P& p) { p.operands = 1u << 12; }, kUnsupported,
     "operands: 0x1000 has bits beyond the known 0xfff"},
    {"paged_without_seqused",
     [](P& p) {
       p.layout_k = TEGULA_PAGED;
       p.num_pages = p.page_size = 4;
     },
     kValue, "seqused_k: absent, but k: layout is paged"},
    {"new_tokens_without_seqused", [](P& p) { p.operands |= TEGULA_HAS_NEW_TOKENS; }, kValue,
     "seqused_k: absent, but new tokens are to be added to it"},
    {"indptr_dense", [](P& p) { p.operands |= TEGULA_HAS_PAGE_INDPTR; }, kValue,
     "page_indptr: present, but k: layout is not paged"},
    {"descale_q_f32", [](P& p) { p.operands |= TEGULA_HAS_DESCALE_Q; }, kType,
     "descale_q: present, but q: dtype f32 is not e4m3 or e5m2"},
    {"descale_k_f32", [](P& p) { p.operands |= TEGULA_HAS_DESCALE_K; }, kType,
     "descale_k: present, but k: dtype f32 is not e4m3 or e5m2"},
    {"descale_v_f32", [](P& p) { p.operands |= TEGULA_HAS_DESCALE_V; }, kType,
     "descale_v: present, but v: dtype f32 is not e4m3 or e5m2"},
    {"batch_negative", [](P& p) { p.batch = -1; }, kValue, "batch: -1 is not within 0 and 2^40"},
    {"seqlen_huge", [](P& p) { p.seqlen_k = INT64_MAX; }, kValue,
     "seqlen_k: 9223372036854775807 is not within 0 and 2^40"},
    {"heads_0", [](P& p) { p.num_heads_q = 0; }, kValue, "num_heads_q: 0 is not within 1 and 2^40"},
    {"heads_kv_0", [](P& p) { p.num_heads_kv = 0; }, kValue,
     "num_heads_kv: 0 is not within 1 and 2^40"},
    {"head_dim_0", [](P& p) { p.head_dim = 0; }, kValue, "head_dim: 0 is not within 1 and 2^40"},
    {"page_size_0",
     [](P& p) {
       p.layout_k = TEGULA_PAGED;
       p.operands |= TEGULA_HAS_SEQUSED_K;
       p.page_size = 0;
     },
     kValue, "page_size: 0 is not within 1 and 2^40"},
    {"ratio",
     [](P& p) {
       p.num_heads_q = 16;
       p.num_heads_kv = 3;
     },
     kValue, "k: num_heads_kv 3 does not divide q: num_heads_q 16"},
    {"head_dim_large", [](P& p) { p.head_dim = 513; }, kUnsupported,
     "q, k: head_dim 513 is more than the supported 512"},
    {"head_dim_v_large", [](P& p) { p.head_dim_v = 520; }, kUnsupported,
     "v: head_dim_v 520 is more than the supported 512"},
    {"rows_huge",
     [](P& p) {
       p.batch = int64_t{1} << 40;
       p.seqlen_q = 1000;
     },
     kValue,
     "q: 1000 tokens a sequence, batch 1099511627776 and num_heads_q 4 are more than 2^47 rows"},
    {"causal", [](P& p) { p.causal = 2; }, kValue, "causal: 2 is not 0 or 1"},
    {"window_left", [](P& p) { p.window_left = -2; }, kValue,
     "window_left: -2 is less than -1 (unlimited)"},
    {"window_right", [](P& p) { p.window_right = -5; }, kValue,
     "window_right: -5 is less than -1 (unlimited)"},
    {"causal_window_right",
     [](P& p) {
       p.causal = 1;
       p.window_right = 3;
     },
     kValue, "window_right: 3 is more than 0, but causal is 1"},
    {"chunk", [](P& p) { p.attention_chunk = -1; }, kValue,
     "attention_chunk: -1 is less than 0 (none)"},
    {"scale_negative", [](P& p) { p.softmax_scale = -0.125; }, kValue,
     "softmax_scale: -0.125 is not within 1.17549e-38 and 3.40282e+38"},
    {"scale_inf", [](P& p) { p.softmax_scale = INFINITY; }, kValue,
     "softmax_scale: inf is not within 1.17549e-38 and 3.40282e+38"},
    {"scale_nan", [](P& p) { p.softmax_scale = std::nan(""); }, kValue,
     "softmax_scale: nan is not within 1.17549e-38 and 3.40282e+38"},
    {"scale_tiny", [](P& p) { p.softmax_scale = 1e-40; }, kValue,
     "softmax_scale: 1e-40 is not within 1.17549e-38 and 3.40282e+38"},
    {"softcap_negative", [](P& p) { p.softcap = -50; }, kValue,
     "softcap: -50 is not 0 (none) or within 1.17549e-38 and 3.40282e+38"},
    {"softcap_inf", [](P& p) { p.softcap = INFINITY; }, kValue,
     "softcap: inf is not 0 (none) or within 1.17549e-38 and 3.40282e+38"},
    {"fast_accumulate", [](P& p) { p.fast_accumulate = -1; }, kValue,
     "fast_accumulate: -1 is not 0 or 1"},
    {"num_splits_large", [](P& p) { p.num_splits = 1025; }, kValue,
     "num_splits: 1025 is not within 0 (automatic) and 1024"},
    {"num_splits_negative", [](P& p) { p.num_splits = -1; }, kValue,
     "num_splits: -1 is not within 0 (automatic) and 1024"},
    {"fixed_split_negative", [](P& p) { p.fixed_split = -64; }, kValue,
     "fixed_split: -64 is not within 0 (off) and 2^40"},
    {"both_splits",
     [](P& p) {
       p.num_splits = 1;
       p.fixed_split = 512;
     },
     kValue, "num_splits: 1 beside fixed_split: 512; at most one may be given"},
    {"fixed_split_count",
     [](P& p) {
       p.fixed_split = 1;  // rounded up to 64
       p.seqlen_k = 64 * 1024 + 1;
     },
     kValue, "fixed_split: 64 cuts seqlen_k 65537 into 1025 splits, more than 1024"},
    {"partials_huge",
     [](P& p) {
       p.num_splits = 1024;
       p.batch = int64_t{1} << 40;
     },
     kValue,
     "num_splits: 1024 partial results of 13194139533312 rows with head_dim_v 16 are more than "
     "2^47 bytes"},
    {"max_seqlen_q", [](P& p) { p.max_seqlen_q = -1; }, kValue,
     "max_seqlen_q: -1 is not within 0 and 2^40"},
    {"struct_size_0", [](P& p) { p.struct_size = 0; }, kValue,
     "problem: struct_size 0 is less than 208 (begin with its *_init function)"},
    {"struct_size_garbage", [](P& p) { p.struct_size = size_t{1} << 60; }, kValue,
     "problem: struct_size 1152921504606846976 is more than 4096 (begin with its *_init function)"},
};

class BadProblems : public testing::TestWithParam<BadProblem> {};

TEST_P(BadProblems, AreRefused) {
  ForwardFixture f(Layout::kDense);
  ASSERT_EQ(f.describe(), TEGULA_OK) << tegula_last_error();
  GetParam().spoil(f.problem);
  tegula_plan* const before = reinterpret_cast<tegula_plan*>(&f);
  tegula_plan* plan = before;
  EXPECT_EQ(tegula_plan_create(&f.problem, nullptr, &plan), GetParam().status);
  EXPECT_STREQ(tegula_last_error(), GetParam().text);
  EXPECT_EQ(plan, before) << "the output changed";
}

INSTANTIATE_TEST_SUITE_P(Table, BadProblems, testing::ValuesIn(kProblems),
                         [](const auto& test) { return "p_" + std::string(test.param.id); });

// ---- Structures
// -----------------------------------------------------------------------------------

TEST(Structs, SizesBelongToTheAbi) {
  // A change here is a change of the ABI: fields are only ever added at the end, and then `least`
  // in read_struct and init must name the first release's size.
  EXPECT_EQ(sizeof(tegula_tensor), 112u);
  EXPECT_EQ(sizeof(tegula_index), 120u);
  EXPECT_EQ(sizeof(tegula_problem), 216u);
  EXPECT_EQ(sizeof(tegula_device), 40u);
  EXPECT_EQ(sizeof(tegula_executor), 32u);
  EXPECT_EQ(sizeof(tegula_execution), 48u);
  EXPECT_EQ(sizeof(tegula_forward_args), 176u);
  EXPECT_EQ(sizeof(tegula_plan_info), 72u);
  EXPECT_EQ(sizeof(tegula_append_kv_args), 152u);
  EXPECT_EQ(sizeof(tegula_combine_args), 48u);
}

template <class T>
struct Newer {  // of a later release: one more field
  T known;
  int64_t added;
};

TEST(Structs, AbsentFieldsOfANewerCallerAreTaken) {
  ForwardFixture f(Layout::kDense);
  Newer<tegula_problem> newer;
  ASSERT_EQ(tegula_problem_init_sized(&newer.known, sizeof newer), TEGULA_OK);
  EXPECT_EQ(newer.known.struct_size, sizeof newer);
  EXPECT_EQ(newer.added, 0);
  EXPECT_EQ(newer.known.window_left, -1);
  Newer<tegula_forward_args> args{f.args, 0};
  args.known.struct_size = sizeof args;
  EXPECT_EQ(tegula_describe_forward(&args.known, &newer.known), TEGULA_OK) << tegula_last_error();
  EXPECT_EQ(newer.known.struct_size, sizeof newer);
  tegula_plan* plan = nullptr;
  ASSERT_EQ(tegula_plan_create(&newer.known, nullptr, &plan), TEGULA_OK) << tegula_last_error();
  EXPECT_EQ(tegula_forward(plan, &args.known, nullptr), TEGULA_OK) << tegula_last_error();
  tegula_plan_destroy(plan);
}

TEST(Structs, PresentFieldsOfANewerCallerAreRefused) {
  ForwardFixture f(Layout::kDense);
  Newer<tegula_forward_args> args{f.args, 0x0100};
  args.known.struct_size = sizeof args;
  EXPECT_EQ(tegula_describe_forward(&args.known, &f.problem), TEGULA_UNSUPPORTED);
  EXPECT_STREQ(tegula_last_error(),
               "args: struct_size 184 is more than the 176 that this library knows, and byte 177 "
               "is not 0");
}

TEST(Structs, NullAndUninitialised) {
  ForwardFixture f(Layout::kDense);
  EXPECT_EQ(tegula_describe_forward(nullptr, &f.problem), kValue);
  EXPECT_STREQ(tegula_last_error(), "args: is NULL");
  EXPECT_EQ(tegula_describe_forward(&f.args, nullptr), kValue);
  EXPECT_STREQ(tegula_last_error(), "problem: is NULL");
  f.args.struct_size = 8;
  EXPECT_EQ(f.describe(), kValue);
  EXPECT_STREQ(tegula_last_error(),
               "args: struct_size 8 is less than 176 (begin with its *_init function)");
  EXPECT_EQ(tegula_problem_init(nullptr), kValue);
  EXPECT_STREQ(tegula_last_error(), "problem: is NULL");
  EXPECT_EQ(tegula_problem_init_sized(&f.problem, 16), kValue);
  EXPECT_STREQ(tegula_last_error(), "problem: struct_size 16 is not within 208 and 4096");
  EXPECT_EQ(tegula_plan_create(&f.problem, nullptr, nullptr), kValue);
  EXPECT_STREQ(tegula_last_error(), "plan: is NULL");
  EXPECT_EQ(tegula_forward(nullptr, &f.args, nullptr), kValue);
  EXPECT_STREQ(tegula_last_error(), "plan: is NULL");
  EXPECT_EQ(tegula_prepare(nullptr), kValue);
  EXPECT_EQ(tegula_append_kv(nullptr, nullptr), kValue);
  EXPECT_STREQ(tegula_last_error(), "args: is NULL");
  EXPECT_EQ(tegula_combine(nullptr, nullptr), kValue);
  EXPECT_STREQ(tegula_last_error(), "args: is NULL");
  tegula_plan_destroy(nullptr);
}

TEST(Structs, TensorInit) {
  tegula_tensor tensor;
  const int64_t shape[] = {2, 0, 3};
  ASSERT_EQ(tegula_tensor_init(&tensor, nullptr, TEGULA_BF16, 3, shape), TEGULA_OK);
  EXPECT_EQ(tensor.type_code, 4);
  EXPECT_EQ(tensor.type_bits, 16);
  EXPECT_EQ(tensor.type_lanes, 1);
  EXPECT_EQ(tensor.device_kind, TEGULA_CPU);
  EXPECT_EQ(tensor.strides[0], 3);
  EXPECT_EQ(tensor.strides[2], 1);
  EXPECT_EQ(tegula_tensor_init(nullptr, nullptr, TEGULA_F32, 0, nullptr), kValue);
  EXPECT_EQ(tegula_tensor_init(&tensor, nullptr, TEGULA_DTYPE_NONE, 3, shape), kType);
  EXPECT_STREQ(tegula_last_error(), "tensor: dtype 0 is not within 1 (f32) and 8 (i64)");
  EXPECT_EQ(tegula_tensor_init(&tensor, nullptr, TEGULA_F32, 6, shape), kValue);
  EXPECT_STREQ(tegula_last_error(), "tensor: ndim 6 is not within 0 and 5");
  EXPECT_EQ(tegula_tensor_init(&tensor, nullptr, TEGULA_F32, 3, nullptr), kValue);
  EXPECT_STREQ(tegula_last_error(), "shape: is NULL");
  const int64_t huge[] = {int64_t{1} << 40, int64_t{1} << 22};
  EXPECT_EQ(tegula_tensor_init(&tensor, nullptr, TEGULA_F32, 2, huge), kValue);
  EXPECT_STREQ(tegula_last_error(), "tensor: shape[0] 1099511627776 is beyond 64-bit offsets");
  const int64_t negative[] = {2, -1};
  EXPECT_EQ(tegula_tensor_init(&tensor, nullptr, TEGULA_F32, 2, negative), kValue);
  EXPECT_STREQ(tegula_last_error(), "tensor: shape[1] -1 is less than 0");
}

// ---- Devices and executions
// -----------------------------------------------------------------------

TEST(BadDevice, IsRefused) {
  ForwardFixture f(Layout::kDense);
  ASSERT_EQ(f.describe(), TEGULA_OK);
  const struct {
    void (*spoil)(tegula_device&);
    tegula_status status;
    const char* text;
  } table[] = {
      {[](tegula_device& d) { d.kind = 3; }, kValue,
       "device.kind: 3 is not TEGULA_CPU (1) or TEGULA_CUDA (2)"},
      {[](tegula_device& d) { d.index = -1; }, kValue, "device.index: -1 is less than 0"},
      {[](tegula_device& d) { d.isa = 7; }, kValue,
       "device.isa: 7 is not within 0 (auto) and 6 (amx_model)"},
      {[](tegula_device& d) { d.num_workers = 0; }, kValue, "device.num_workers: 0 is less than 1"},
      {[](tegula_device& d) { d.tuning = &d; }, kUnsupported,
       "device.tuning: is not NULL; calibrated tables are not supported by version 0.1"},
      {[](tegula_device& d) { d.struct_size = 31; }, kValue,
       "device: struct_size 31 is less than 32 (begin with its *_init function)"},
  };
  for (const auto& bad : table) {
    tegula_device device;
    ASSERT_EQ(tegula_device_init(&device), TEGULA_OK) << tegula_last_error();
    bad.spoil(device);
    tegula_plan* plan = nullptr;
    EXPECT_EQ(tegula_plan_create(&f.problem, &device, &plan), bad.status);
    EXPECT_STREQ(tegula_last_error(), bad.text);
    EXPECT_EQ(plan, nullptr);
  }
}

TEST(BadDevice, CudaIsRefusedByName) {
  ForwardFixture f(Layout::kDense);
  ASSERT_EQ(f.describe(), TEGULA_OK);
  tegula_device device;
  ASSERT_EQ(tegula_device_init(&device), TEGULA_OK);
  device.kind = TEGULA_CUDA;
  tegula_plan* plan = nullptr;
  EXPECT_EQ(tegula_plan_create(&f.problem, &device, &plan), TEGULA_UNSUPPORTED);
  EXPECT_NE(std::string(tegula_last_error()).find("cuda"), std::string::npos)
      << tegula_last_error();
}

void inline_loop(void*, int64_t count, tegula_task_fn fn, void* argument) {
  for (int64_t t = 0; t < count; ++t) fn(argument, t, 0);
}

TEST(BadExecution, IsRefused) {
  ForwardFixture f(Layout::kDense);
  ASSERT_EQ(f.describe(), TEGULA_OK);
  tegula_device device;
  ASSERT_EQ(tegula_device_init(&device), TEGULA_OK);
  device.num_workers = 2;
  const PlanHandle plan = make_plan(f.problem, &device);
  tegula_plan_info info;
  ASSERT_EQ(tegula_plan_info_init(&info), TEGULA_OK);
  ASSERT_EQ(tegula_plan_get_info(plan.get(), &info), TEGULA_OK);
  ASSERT_GT(info.scratch_bytes, 16u);

  struct Parts {
    tegula_execution execution;
    tegula_executor executor;
  };
  alignas(16) static unsigned char workspace[64];
  const std::string too_small =
      "execution.workspace_size: 16 is less than the plan's scratch_bytes " +
      std::to_string(info.scratch_bytes);
  const struct {
    void (*spoil)(Parts&);
    tegula_status status;
    const char* text;
  } table[] = {
      {[](Parts& p) { p.execution.struct_size = 0; }, kValue,
       "execution: struct_size 0 is less than 48 (begin with its *_init function)"},
      {[](Parts& p) { p.executor.struct_size = 1; }, kValue,
       "execution.executor: struct_size 1 is less than 32 (begin with its *_init function)"},
      {[](Parts& p) { p.executor.parallel_for = nullptr; }, kValue,
       "execution.executor: parallel_for is NULL"},
      {[](Parts& p) { p.executor.num_workers = 0; }, kValue,
       "execution.executor: num_workers 0 is less than 1"},
      {[](Parts& p) { p.executor.num_workers = 3; }, kValue,
       "execution.executor: num_workers 3 is more than the plan's 2"},
      {[](Parts& p) { p.execution.workspace_size = 4096; }, kValue,
       "execution.workspace: is NULL, but workspace_size is 4096"},
      {[](Parts& p) {
         p.execution.workspace = workspace + 8;
         p.execution.workspace_size = 16;
       },
       kValue, "execution.workspace: the address is 8 past a multiple of 16 bytes"},
      {[](Parts& p) {
         p.execution.workspace = workspace;
         p.execution.workspace_size = 16;
       },
       TEGULA_OUT_OF_MEMORY, too_small.c_str()},
  };
  for (const auto& bad : table) {
    Parts parts;
    ASSERT_EQ(tegula_execution_init(&parts.execution), TEGULA_OK);
    ASSERT_EQ(tegula_executor_init(&parts.executor), TEGULA_OK);
    parts.executor.parallel_for = inline_loop;
    parts.executor.num_workers = 1;
    parts.execution.executor = &parts.executor;
    bad.spoil(parts);
    EXPECT_EQ(tegula_forward(plan.get(), &f.args, &parts.execution), bad.status);
    EXPECT_STREQ(tegula_last_error(), bad.text);
    EXPECT_TRUE(f.outputs_untouched());
  }
}

}  // namespace
