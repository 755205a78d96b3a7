// SPDX-License-Identifier: Apache-2.0
// The C++ layer over the C ABI.
#include <gtest/gtest.h>
#include <tegula/tegula.hpp>

#include <array>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

enum class MyBfloat16 : uint16_t {};
template <>
inline constexpr tegula::Dtype tegula::dtype_of<MyBfloat16> = tegula::Dtype::kBf16;

namespace {

using tegula::Dtype;
using tegula::Error;
using tegula::Extents;
using tegula::Index;
using tegula::Tensor;

template <class F>
void expect_error(F&& f, tegula_status status, const std::string& text) {
  try {
    f();
    ADD_FAILURE() << "no error; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status);
    EXPECT_EQ(std::string(error.what()), text);
  }
}

TEST(CxxTensor, FromRangesAndPointers) {
  std::vector<float> values(24);
  const Tensor from_vector(values, {2, 3, 4});
  EXPECT_TRUE(from_vector.present());
  EXPECT_EQ(from_vector.data(), values.data());
  EXPECT_EQ(from_vector.ndim(), 3);
  EXPECT_EQ(from_vector.size(1), 3);
  EXPECT_EQ(from_vector.stride(0), 12);
  EXPECT_EQ(from_vector.num_elements(), 24);
  EXPECT_EQ(from_vector.c_or_null()->type_code, 2);

  const std::vector<float>& constant = values;
  EXPECT_EQ(Tensor(constant, {24}).data(), values.data());
  EXPECT_EQ(Tensor(std::span(values), {24}).data(), values.data());
  EXPECT_EQ(Tensor(values.data() + 4, {2, 3}, {12, 1}).stride(0), 12);
  EXPECT_EQ(Tensor(static_cast<const float*>(values.data()), {24}).size(0), 24);

  std::array<uint16_t, 6> raw{};
  const Tensor halves(raw, Dtype::kF16, {2, 3});
  EXPECT_EQ(halves.c_or_null()->type_bits, 16);
  std::vector<MyBfloat16> mine(6);
  EXPECT_EQ(Tensor(mine, {6}).c_or_null()->type_code, 4);
  const bool mask[2] = {true, false};
  EXPECT_EQ(Tensor(mask, {2}).c_or_null()->type_code, 6);
}

TEST(CxxTensor, Absent) {
  Tensor none;
  EXPECT_FALSE(none.present());
  EXPECT_EQ(none.c_or_null(), nullptr);
  EXPECT_EQ(Index().c_or_null(), nullptr);
  EXPECT_TRUE(Tensor(nullptr, Dtype::kF32, {0, 4}).present()) << "empty is not absent";
}

TEST(CxxTensor, Errors) {
  std::vector<float> values(23);
  expect_error([&] { Tensor(values, {2, 3, 4}); }, TEGULA_INVALID_ARGUMENT,
               "tensor: 92 bytes are less than the 96 that its shape needs");
  expect_error([&] { Tensor(values, {1, 1, 1, 1, 1, 1}); }, TEGULA_INVALID_ARGUMENT,
               "tensor: ndim 6 is more than 5");
  expect_error([&] { Tensor(values.data(), {2, 3}, {1}); }, TEGULA_INVALID_ARGUMENT,
               "tensor: 1 strides differ from 2 sizes");
  expect_error([&] { Tensor(values.data(), {-1}); }, TEGULA_INVALID_ARGUMENT,
               "tensor: shape[0] -1 is less than 0");
  expect_error([&] { Tensor(values.data(), Dtype::kNone, {1}); }, TEGULA_WRONG_TYPE,
               "tensor: dtype 0 is not within 1 (f32) and 8 (i64)");
}

TEST(CxxIndex, Forms) {
  const std::vector<int32_t> offsets{0, 2, 5};
  const Index from_vector = offsets;
  EXPECT_EQ(from_vector.c_or_null()->tensor.data, offsets.data());
  EXPECT_EQ(from_vector.c_or_null()->tensor.shape[0], 3);
  const std::array<int32_t, 4> table{0, 1, 2, 3};
  EXPECT_EQ(Index(table, {2, 2}).c_or_null()->tensor.ndim, 2);
  const std::vector<int64_t> slots{1, 2};
  EXPECT_EQ(Index(slots).c_or_null()->tensor.type_bits, 64);
  Index copied(Tensor(table, {4}), offsets.data());
  EXPECT_EQ(copied.c().host, offsets.data());
}

// 2 heads, 3 queries, 4 keys, head_dim 8.
struct Values {
  std::vector<float> q, k, v, o;
  Extents q_shape{1, 3, 2, 8}, k_shape{1, 4, 2, 8};

  Values() : q(48), k(64), v(64), o(48, -7.0f) {
    for (size_t i = 0; i < 64; ++i) {
      if (i < 48) q[i] = std::sin(static_cast<float>(i));
      k[i] = std::cos(static_cast<float>(i));
      v[i] = static_cast<float>(i);
    }
  }
  tegula::ForwardArgs args() {
    return {.q = {q, q_shape}, .k = {k, k_shape}, .v = {v, k_shape}, .o = {o, q_shape}};
  }
};

TEST(CxxForward, PlannedAndNotAgree) {
  Values direct, planned;
  std::vector<float> lse(6);
  tegula::forward(direct.args(), {.causal = true});

  tegula::ForwardArgs args = planned.args();
  args.lse = {lse, {1, 2, 3}};
  const tegula::Problem problem(args, {.causal = true});
  EXPECT_EQ(problem.c().causal, 1);
  EXPECT_EQ(problem.c().seqlen_k, 4);
  EXPECT_EQ(problem.c().operands, uint32_t{TEGULA_HAS_LSE});
  tegula::Plan plan(problem);
  plan.prepare();
  plan.forward(args);
  EXPECT_EQ(direct.o, planned.o);

  // The first query sees keys 0 and 1: lse = log(sum exp(scale q.k)).
  double sum = 0;
  for (size_t j = 0; j < 2; ++j) {
    double score = 0;
    for (size_t d = 0; d < 8; ++d) score += double{planned.q[d]} * planned.k[j * 16 + d];
    sum += std::exp(score / std::sqrt(8.0));
  }
  EXPECT_NEAR(lse[0], std::log(sum), 1e-5);

  tegula::Plan moved = std::move(plan);
  EXPECT_NE(moved.c(), nullptr);
  EXPECT_NE(moved.explain().find(moved.info().implementation), std::string::npos);
  std::vector<std::byte> workspace(moved.workspace_size());
  moved.forward(args, {.workspace = workspace});
  EXPECT_EQ(direct.o, planned.o);
}

TEST(CxxForward, Options) {
  Values values;
  const tegula::Problem problem(values.args(), {.window_left = 3,
                                                .window_right = 2,
                                                .attention_chunk = 16,
                                                .softmax_scale = 0.5,
                                                .softcap = 20,
                                                .num_splits = 4,
                                                .max_seqlen_q = 3,
                                                .max_seqlen_k = 4,
                                                .fast_accumulate = true});
  const tegula_problem& p = problem.c();
  EXPECT_EQ(p.causal, 0);
  EXPECT_EQ(p.window_left, 3);
  EXPECT_EQ(p.window_right, 2);
  EXPECT_EQ(p.attention_chunk, 16);
  EXPECT_EQ(p.softmax_scale, 0.5);
  EXPECT_EQ(p.softcap, 20);
  EXPECT_EQ(p.num_splits, 4);
  EXPECT_EQ(p.fixed_split, 0);
  EXPECT_EQ(p.max_seqlen_q, 3);
  EXPECT_EQ(p.max_seqlen_k, 4);
  EXPECT_EQ(p.fast_accumulate, 1);
}

TEST(CxxForward, ErrorsCarryStatusAndText) {
  Values values;
  tegula::ForwardArgs args = values.args();
  args.v = {values.v, {1, 2, 4, 8}};
  expect_error([&] { tegula::forward(args); }, TEGULA_INVALID_ARGUMENT,
               "v: seqlen_k 2 differs from k: seqlen_k 4");
  expect_error([&] { tegula::forward(values.args(), {.causal = true, .window_right = 1}); },
               TEGULA_INVALID_ARGUMENT, "window_right: 1 is more than 0, but causal is 1");
  expect_error([&] { tegula::forward({}); }, TEGULA_INVALID_ARGUMENT, "q: is NULL");
  EXPECT_EQ(values.o, std::vector<float>(48, -7.0f));
}

class CountingExecutor : public tegula::Executor {
 public:
  using Executor::Executor;
  void parallel_for(int64_t count, tegula::Task task) noexcept override {
    ++calls;
    for (int64_t t = 0; t < count; ++t) task(t, static_cast<int32_t>(t % num_workers()));
  }
  int calls = 0;
};

TEST(CxxExecutor, RunsTheCall) {
  // Long enough for more than one task: one alone may run without an executor.
  constexpr int64_t kLong = 300;
  std::vector<float> q(kLong * 32), o(kLong * 32), expected(kLong * 32);
  for (size_t i = 0; i < q.size(); ++i) q[i] = std::sin(static_cast<float>(i));
  const Extents shape{1, kLong, 4, 8};
  tegula::ForwardArgs args{.q = {q, shape}, .k = {q, shape}, .v = {q, shape}, .o = {o, shape}};
  tegula::Device device;
  device.set_num_workers(2);
  const tegula::Plan plan(tegula::Problem(args), device);
  CountingExecutor executor(2);
  plan.forward(args, {.executor = &executor});
  EXPECT_GE(executor.calls, 1);
  args.o = {expected, shape};
  plan.forward(args);
  EXPECT_EQ(o, expected);
  CountingExecutor wide(3);
  expect_error([&] { plan.forward(args, {.executor = &wide}); }, TEGULA_INVALID_ARGUMENT,
               "execution.executor: num_workers 3 is more than the plan's 2");
}

TEST(CxxCache, AppendThenForward) {
  // One sequence, one head, head_dim 4, pages of 2 keys; 3 rows appended to none.
  std::vector<float> k_cache(4 * 2 * 4, NAN), v_cache(k_cache);
  const Extents pages{4, 2, 1, 4};
  const std::vector<float> k_new(12, 0.0f);
  std::vector<float> v_new(12);
  for (size_t i = 0; i < 12; ++i) v_new[i] = static_cast<float>(i);
  const std::vector<int32_t> table{2, 0, -1, -1}, seqused{0};
  tegula::append_kv({.k_new = {k_new, {1, 3, 1, 4}},
                     .v_new = {v_new, {1, 3, 1, 4}},
                     .k_cache = {k_cache, pages},
                     .v_cache = {v_cache, pages},
                     .seqused_k = seqused,
                     .page_table = {table, {1, 4}}});
  const std::vector<float> q(4, 1.0f);
  std::vector<float> o(4);
  tegula::forward({.q = {q, {1, 1, 1, 4}},
                   .k = {k_cache, pages},
                   .v = {v_cache, pages},
                   .o = {o, {1, 1, 1, 4}},
                   .seqused_k = seqused,
                   .page_table = {table, {1, 4}},
                   .seqlen_new = 3});
  for (size_t d = 0; d < 4; ++d) EXPECT_NEAR(o[d], 4 + static_cast<float>(d), 1e-5f);
  expect_error([&] { tegula::append_kv({}); }, TEGULA_INVALID_ARGUMENT, "k_new: is NULL");
}

TEST(CxxCombine, TwoHalves) {
  const std::vector<float> o_partial{1, 2, 3, 4}, lse_partial{0.0f, std::log(3.0f)};
  std::vector<float> o(2), lse(1);
  tegula::combine({.o_partial = {o_partial, {2, 1, 1, 2}},
                   .lse_partial = {lse_partial, {2, 1, 1}},
                   .o = {o, {1, 1, 2}},
                   .lse = {lse, {1, 1}}});
  EXPECT_NEAR(o[0], (1 + 3 * 3) / 4.0, 1e-6);
  EXPECT_NEAR(o[1], (2 + 3 * 4) / 4.0, 1e-6);
  EXPECT_NEAR(lse[0], std::log(4.0), 1e-6);
  expect_error([&] { tegula::combine({}); }, TEGULA_INVALID_ARGUMENT, "o_partial: is NULL");
}

TEST(CxxLibrary, Queries) {
  EXPECT_EQ(tegula::version(), tegula_version());
  EXPECT_EQ(tegula::capability("forward"), 1);
  EXPECT_EQ(tegula::capability("combine", tegula::Device::cuda(0, 90, 132)), 0);
  EXPECT_THROW(tegula::capability("nothing"), Error);
  tegula::trim_memory();
  EXPECT_EQ(tegula::trim_memory(), 0u);
  EXPECT_STREQ(tegula::name(Dtype::kE5m2), "e5m2");
  EXPECT_EQ(tegula::size_of(Dtype::kBf16), 2u);
}

TEST(CxxDevice, Gpu) {
  const tegula::Device device = tegula::Device::cuda(3, 90, 132);
  EXPECT_TRUE(device.is_cuda());
  EXPECT_EQ(device.c().index, 3);
  const std::vector<uint16_t> storage(64);
  const tegula::Tensor on_cpu(storage, Dtype::kBf16, {1, 4, 1, 16});
  const tegula::Tensor q = on_cpu.on_cuda(3);
  EXPECT_FALSE(on_cpu.is_cuda());
  EXPECT_TRUE(q.is_cuda());
  EXPECT_EQ(q.device_index(), 3);
  const tegula::Plan plan(tegula::Problem({.q = q, .k = q, .v = q, .o = q}), device);
  EXPECT_STREQ(plan.info().implementation, "cuda_forward_sm90");
  expect_error([&] { plan.forward({.q = on_cpu, .k = on_cpu, .v = on_cpu, .o = on_cpu}); },
               TEGULA_WRONG_TYPE, "q: device cpu differs from the call's cuda:3");
}

}  // namespace
