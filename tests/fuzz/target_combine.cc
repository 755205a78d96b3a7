// SPDX-License-Identifier: Apache-2.0
// combine: a legal small call, some of it spoiled.
#include "tests/fuzz/call.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tegula::fuzz;
  static Arena arena;
  Input input(data, size);
  Call call(input, arena);
  const std::int64_t spoiled = input.one_in(2) ? input.below(4) : 0;

  const std::int64_t splits = 1 + (input.one_in(8) ? input.below(1030) : input.below(5));
  const std::int64_t batch = input.below(4);
  const std::int64_t tokens = input.below(6);
  const std::int64_t heads = 1 + input.below(4);
  const std::int64_t dim = input.pick<std::int64_t>({8, 1, 2, 5, 16, 17, 33, 64});
  const std::initializer_list<std::int32_t> dtypes = {TEGULA_F32, TEGULA_BF16, TEGULA_F16};
  const std::int32_t partial = input.pick(dtypes);
  const std::int32_t merged = input.pick(dtypes);

  tegula_combine_args args;
  tegula_combine_args_init(&args);
  if (input.one_in(3)) {
    args.o_partial = call.tensor(partial, {splits, tokens, heads, dim});
    args.lse_partial = call.tensor(TEGULA_F32, {splits, heads, tokens});
    args.o = call.tensor(merged, {tokens, heads, dim}, Role::kOutput);
    if (input.one_in(2)) args.lse = call.tensor(TEGULA_F32, {heads, tokens}, Role::kOutput);
  } else {
    args.o_partial = call.tensor(partial, {splits, batch, tokens, heads, dim});
    args.lse_partial = call.tensor(TEGULA_F32, {splits, batch, heads, tokens});
    args.o = call.tensor(merged, {batch, tokens, heads, dim}, Role::kOutput);
    if (input.one_in(2)) args.lse = call.tensor(TEGULA_F32, {batch, heads, tokens}, Role::kOutput);
  }
  if (input.one_in(3)) args.sink = call.tensor(TEGULA_F32, {heads});

  for (std::int64_t i = 0; i < spoiled; ++i) call.spoil();
  call.back();
  tegula_executor executor = inline_executor(1 + static_cast<std::int32_t>(input.below(8)));
  tegula_execution execution;
  tegula_execution_init(&execution);
  execution.executor = &executor;
  call.spoil_size(args.struct_size);
  call.spoil_size(execution.struct_size);
  call.check(tegula_combine(call.guarded(args), call.guarded(execution)));
  return 0;
}
