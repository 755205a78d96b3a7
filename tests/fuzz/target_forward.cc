// SPDX-License-Identifier: Apache-2.0
// describe, plan, explain and forward: a legal small call, spoiled before or after planning.
#include <algorithm>
#include <numeric>

#include "tests/fuzz/call.hpp"

namespace {

using namespace tegula::fuzz;

struct Shape {
  std::int64_t batch, seqlen_q, seqlen_k, num_heads_q, num_heads_kv, head_dim, head_dim_v;
};

// Lengths of `count` sequences whose sum is at most `total`, as offsets from 0.
std::vector<std::int64_t> offsets(Input& input, std::int64_t count, std::int64_t total) {
  std::vector<std::int64_t> values{0};
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(values.back() + input.below(total - values.back() + 1));
  return values;
}

std::vector<std::int64_t> lengths(Input& input, std::int64_t count, std::int64_t most) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(input.below(most + 1));
  return values;
}

void add_keys(Call& call, const Shape& shape, std::int32_t dtype, tegula_forward_args& args) {
  Input& input = call.input();
  const auto kv = [&](std::int64_t outer, std::int64_t inner, std::int64_t dim) {
    return call.tensor(dtype, {outer, inner, shape.num_heads_kv, dim});
  };
  const auto total = shape.batch * shape.seqlen_k;
  std::int64_t capacity = shape.seqlen_k;
  switch (input.below(4)) {
    case 0:
      args.k = kv(shape.batch, shape.seqlen_k, shape.head_dim);
      args.v = kv(shape.batch, shape.seqlen_k, shape.head_dim_v);
      break;
    case 1:
      args.k = call.tensor(dtype, {total, shape.num_heads_kv, shape.head_dim});
      args.v = call.tensor(dtype, {total, shape.num_heads_kv, shape.head_dim_v});
      args.cu_seqlens_k = call.index({shape.batch + 1}, offsets(input, shape.batch, total));
      capacity = 0;
      break;
    default: {
      const std::int64_t page_size = input.pick<std::int64_t>({1, 2, 3, 4, 16, 64});
      const std::int64_t pages = (shape.seqlen_k + page_size - 1) / page_size;
      const std::int64_t num_pages = shape.batch * pages + input.below(3);
      args.k = kv(num_pages, page_size, shape.head_dim);
      args.v = kv(num_pages, page_size, shape.head_dim_v);
      std::vector<std::int64_t> ids(static_cast<std::size_t>(shape.batch * pages));
      std::iota(ids.rbegin(), ids.rend(), 0);
      if (input.one_in(3)) {
        std::vector<std::int64_t> rows;
        for (std::int64_t b = 0; b <= shape.batch; ++b) rows.push_back(b * pages);
        args.page_indices = call.index({shape.batch * pages}, ids);
        args.page_indptr = call.index({shape.batch + 1}, rows);
      } else {
        args.page_table = call.index({shape.batch, pages}, ids);
      }
      args.seqused_k = call.index({shape.batch}, lengths(input, shape.batch, shape.seqlen_k));
      if (input.one_in(4)) args.seqlen_new = input.below(3);
      break;
    }
  }
  if (args.seqused_k == nullptr && input.one_in(4))
    args.seqused_k = call.index({shape.batch}, lengths(input, shape.batch, capacity));
  if (input.one_in(4))
    args.leftpad_k = call.index({shape.batch}, lengths(input, shape.batch, shape.seqlen_k));
}

void add_queries(Call& call, const Shape& shape, std::int32_t q, std::int32_t o,
                 tegula_forward_args& args) {
  Input& input = call.input();
  const std::int64_t total = shape.batch * shape.seqlen_q;
  if (input.one_in(3)) {
    args.q = call.tensor(q, {total, shape.num_heads_q, shape.head_dim});
    args.o = call.tensor(o, {total, shape.num_heads_q, shape.head_dim_v}, Role::kOutput);
    if (input.one_in(2))
      args.lse = call.tensor(TEGULA_F32, {shape.num_heads_q, total}, Role::kOutput);
    args.cu_seqlens_q = call.index({shape.batch + 1}, offsets(input, shape.batch, total));
  } else {
    args.q = call.tensor(q, {shape.batch, shape.seqlen_q, shape.num_heads_q, shape.head_dim});
    args.o = call.tensor(o, {shape.batch, shape.seqlen_q, shape.num_heads_q, shape.head_dim_v},
                         Role::kOutput);
    if (input.one_in(2))
      args.lse =
          call.tensor(TEGULA_F32, {shape.batch, shape.num_heads_q, shape.seqlen_q}, Role::kOutput);
    if (input.one_in(4))
      args.seqused_q = call.index({shape.batch}, lengths(input, shape.batch, shape.seqlen_q));
  }
}

void add_extras(Call& call, const Shape& shape, std::int32_t q, std::int32_t kv,
                tegula_forward_args& args) {
  Input& input = call.input();
  const unsigned wanted = input.byte();
  if (wanted & 1) args.sink = call.tensor(TEGULA_F32, {shape.num_heads_q});
  if (wanted & 2) args.alibi_slopes = call.tensor(TEGULA_F32, {shape.num_heads_q});
  if (wanted & 4)
    args.bias = call.tensor(input.pick<std::int32_t>({q, TEGULA_F32, TEGULA_BOOL}),
                            {shape.batch, shape.num_heads_q, shape.seqlen_q, shape.seqlen_k});
  if ((q == TEGULA_E4M3 || q == TEGULA_E5M2) && (wanted & 8))
    args.descale_q = call.head_scale(shape.batch, shape.num_heads_kv);
  if ((kv == TEGULA_E4M3 || kv == TEGULA_E5M2) && (wanted & 16)) {
    args.descale_k = call.head_scale(shape.batch, shape.num_heads_kv);
    args.descale_v = call.head_scale(shape.batch, shape.num_heads_kv);
  }
}

void set_problem(Input& input, tegula_problem& problem) {
  const unsigned wanted = input.byte();
  if (wanted & 1) problem.causal = 1;
  if (wanted & 2) problem.window_left = input.below(20) - 1;
  if (wanted & 4) problem.window_right = input.below(20) - 1;
  if (wanted & 8) problem.attention_chunk = input.below(9);
  if (wanted & 16) problem.softcap = static_cast<double>(input.below(50));
  if (wanted & 32) problem.num_splits = input.below(6);
  if (wanted & 64) problem.fixed_split = input.below(200);
  if (wanted & 128) problem.softmax_scale = 0.125 * static_cast<double>(1 + input.below(16));
}

// Any field of the problem, by its place: every one is an int32, an int64 or a double.
void spoil_problem(Input& input, tegula_problem& problem) {
  std::int64_t* fields[] = {
      &problem.batch,        &problem.seqlen_q,        &problem.seqlen_k,     &problem.total_q,
      &problem.total_k,      &problem.num_heads_q,     &problem.num_heads_kv, &problem.head_dim,
      &problem.head_dim_v,   &problem.num_pages,       &problem.page_size,    &problem.max_seqlen_q,
      &problem.max_seqlen_k, &problem.window_left,     &problem.window_right, &problem.num_splits,
      &problem.fixed_split,  &problem.attention_chunk,
  };
  std::int32_t* small_fields[] = {
      &problem.operation, &problem.q_dtype,    &problem.kv_dtype,
      &problem.o_dtype,   &problem.bias_dtype, &problem.layout_q,
      &problem.layout_k,  &problem.causal,     &problem.fast_accumulate,
  };
  switch (input.below(4)) {
    case 0:
      *small_fields[input.below(std::size(small_fields))] =
          static_cast<std::int32_t>(input.odd_number());
      break;
    case 1: problem.operands ^= 1u << (input.byte() % 32); break;
    case 2: {
      const std::uint64_t bits = static_cast<std::uint64_t>(input.odd_number());
      std::memcpy(input.one_in(2) ? &problem.softcap : &problem.softmax_scale, &bits, sizeof bits);
      break;
    }
    default: *fields[input.below(std::size(fields))] = input.odd_number(); break;
  }
}

void check_explanation(Call& call, const tegula_plan* plan) {
  char text[128];
  const auto size = static_cast<std::size_t>(call.input().below(sizeof text + 1));
  std::size_t needed = 0;
  const tegula_status status = tegula_explain(plan, size == 0 ? nullptr : text, size, &needed);
  call.check(status);
  if (status != TEGULA_OK) return;
  require(needed > 1);
  if (size > 0) require(std::memchr(text, '\0', size) != nullptr);
}

void run_forward(Call& call, const tegula_plan* plan, tegula_forward_args args) {
  constexpr std::size_t kMaxScratch = std::size_t{8} << 20;
  Input& input = call.input();
  tegula_plan_info info;
  tegula_plan_info_init(&info);
  const tegula_status status = tegula_plan_get_info(plan, &info);
  call.check(status);
  require(status == TEGULA_OK && info.num_workers >= 1 && info.implementation != nullptr);
  // A legal plan may ask for more than the fuzzer's share of memory; it need not run here.
  if (info.scratch_bytes > kMaxScratch) return;

  call.back();
  static tegula_executor executor;
  executor = inline_executor(
      1 + static_cast<std::int32_t>(input.below(info.num_workers > 8 ? 8 : info.num_workers)));
  if (input.one_in(32)) executor.num_workers = static_cast<std::int32_t>(input.odd_number());
  tegula_execution execution;
  tegula_execution_init(&execution);
  execution.executor = &executor;
  std::vector<std::byte> workspace;
  if (input.one_in(3)) {
    workspace.resize(info.scratch_bytes);
    execution.workspace = workspace.data();
    execution.workspace_size = info.scratch_bytes;
    if (input.one_in(4)) execution.workspace_size = static_cast<std::size_t>(input.below(65536));
    execution.workspace_size = std::min(execution.workspace_size, info.scratch_bytes);
  }
  call.spoil_size(args.struct_size);
  call.spoil_size(execution.struct_size);
  call.check(tegula_forward(plan, call.guarded(args), call.guarded(execution)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Arena arena;
  Input input(data, size);
  Call call(input, arena);

  // Decisions about what to spoil come first: later bytes may then change without moving them.
  const std::int64_t spoiled_before = input.one_in(3) ? input.below(3) : 0;
  const std::int64_t spoiled_after = input.one_in(3) ? input.below(3) : 0;
  const bool problem_is_spoiled = input.one_in(6);

  Shape shape;
  shape.batch = input.below(4);
  shape.seqlen_q = input.below(10);
  shape.seqlen_k = input.one_in(4) ? input.below(200) : input.below(24);
  shape.num_heads_kv = 1 + input.below(2);
  shape.num_heads_q = shape.num_heads_kv * input.pick<std::int64_t>({1, 2, 3, 5});
  const std::initializer_list<std::int64_t> dims = {8, 1, 2, 3, 5, 16, 17, 31, 32, 33, 40, 64};
  shape.head_dim = input.pick(dims);
  shape.head_dim_v = input.pick(dims);

  const std::initializer_list<std::int32_t> dtypes = {TEGULA_F32, TEGULA_BF16, TEGULA_F16,
                                                      TEGULA_E4M3, TEGULA_E5M2};
  const std::int32_t q = input.pick(dtypes);
  const std::int32_t kv = input.one_in(3) ? input.pick(dtypes) : q;
  const bool narrow = q == TEGULA_E4M3 || q == TEGULA_E5M2;
  const std::int32_t o = input.one_in(4)
                             ? input.pick<std::int32_t>({TEGULA_F32, TEGULA_F16, TEGULA_BF16})
                             : (narrow ? TEGULA_BF16 : q);

  tegula_forward_args args;
  tegula_forward_args_init(&args);
  add_queries(call, shape, q, o, args);
  add_keys(call, shape, kv, args);
  add_extras(call, shape, q, kv, args);
  if (input.one_in(4)) args.cu_seqlens_new = nullptr;

  for (std::int64_t i = 0; i < spoiled_before; ++i) call.spoil();
  call.back();
  tegula_problem problem;
  tegula_problem_init(&problem);
  const tegula_status described = tegula_describe_forward(&args, &problem);
  call.check(described);
  if (described != TEGULA_OK) return 0;
  set_problem(input, problem);
  if (problem_is_spoiled) spoil_problem(input, problem);

  tegula_device device;
  tegula_device_init(&device);
  if (input.one_in(2)) device.isa = static_cast<std::int32_t>(input.below(5));
  if (input.one_in(4)) device.num_workers = static_cast<std::int32_t>(1 + input.below(9));
  if (input.one_in(32)) device.num_workers = static_cast<std::int32_t>(input.odd_number());
  if (input.one_in(64)) device.kind = static_cast<std::int32_t>(input.below(4));
  if (input.one_in(64)) device.index = static_cast<std::int32_t>(input.odd_number());
  call.spoil_size(device.struct_size);
  call.spoil_size(problem.struct_size);

  tegula_plan* plan = nullptr;
  const tegula_status planned =
      tegula_plan_create(call.guarded(problem), call.guarded(device), &plan);
  call.check(planned);
  require((plan != nullptr) == (planned == TEGULA_OK));
  if (plan == nullptr) return 0;
  check_explanation(call, plan);
  call.check(tegula_prepare(plan));
  for (std::int64_t i = 0; i < spoiled_after; ++i) call.spoil();
  run_forward(call, plan, args);
  tegula_plan_destroy(plan);
  return 0;
}
