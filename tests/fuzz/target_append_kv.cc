// SPDX-License-Identifier: Apache-2.0
// append_kv: a legal small call, some of it spoiled.
#include <numeric>

#include "tests/fuzz/call.hpp"

namespace {

using namespace tegula::fuzz;

bool is_narrow(std::int32_t dtype) {
  return dtype == TEGULA_E4M3 || dtype == TEGULA_E5M2;
}

// Where the rows go: a dense cache, pages behind a table or ragged rows, or slots.
void add_cache(Call& call, std::int32_t dtype, std::int64_t batch, std::int64_t total_new,
               std::int64_t heads, std::int64_t dim, std::int64_t dim_v,
               tegula_append_kv_args& args) {
  Input& input = call.input();
  const std::int64_t capacity = 1 + input.below(24);
  const auto caches = [&](std::int64_t outer, std::int64_t inner) {
    args.k_cache = call.tensor(dtype, {outer, inner, heads, dim}, Role::kOutput);
    args.v_cache = call.tensor(dtype, {outer, inner, heads, dim_v}, Role::kOutput);
  };
  std::vector<std::int64_t> before;
  for (std::int64_t b = 0; b < batch; ++b) before.push_back(input.below(capacity));
  const std::int64_t kind = input.below(4);
  if (kind != 3 || input.one_in(2)) args.seqused_k = call.index({batch}, before);
  if (kind == 0) {
    caches(batch, capacity);
    return;
  }
  const std::int64_t page_size = input.pick<std::int64_t>({1, 2, 4, 16});
  const std::int64_t pages = (capacity + page_size - 1) / page_size;
  const std::int64_t num_pages = batch * pages + input.below(3);
  caches(num_pages, page_size);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(batch * pages));
  std::iota(ids.rbegin(), ids.rend(), 0);
  if (kind == 1) {
    args.page_table = call.index({batch, pages}, ids);
  } else if (kind == 2) {
    std::vector<std::int64_t> rows;
    for (std::int64_t b = 0; b <= batch; ++b) rows.push_back(b * pages);
    args.page_indices = call.index({batch * pages}, ids);
    args.page_indptr = call.index({batch + 1}, rows);
  } else {
    std::vector<std::int64_t> slots;
    for (std::int64_t t = 0; t < total_new; ++t)
      slots.push_back(input.below(num_pages * page_size + 1) - 1);
    args.slot_mapping = call.index({total_new}, slots, TEGULA_I64);
  }
}

void add_rotary(Call& call, std::int32_t dtype, std::int64_t batch, std::int64_t seqlen_new,
                bool ragged, std::int64_t heads, std::int64_t dim, tegula_append_kv_args& args) {
  Input& input = call.input();
  const std::int64_t positions = 1 + input.below(40);
  const std::int64_t pairs = 1 + input.below(dim / 2);
  const std::int32_t table = input.one_in(2) ? dtype : static_cast<std::int32_t>(TEGULA_F32);
  args.cos = call.tensor(table, {positions, pairs});
  args.sin = call.tensor(table, {positions, pairs});
  args.rotary_style = static_cast<std::int32_t>(input.below(2));
  if (input.one_in(32)) args.rotary_style = static_cast<std::int32_t>(input.odd_number());
  const std::int64_t total = batch * seqlen_new;
  if (input.one_in(3)) {
    std::vector<std::int64_t> values;
    for (std::int64_t t = 0; t < total; ++t) values.push_back(input.below(positions));
    args.positions = call.index({total}, values);
  }
  if (input.one_in(2)) {
    const std::int64_t heads_q = heads * input.pick<std::int64_t>({1, 2, 3});
    std::vector<std::int64_t> shape{batch, seqlen_new, heads_q, dim};
    if (ragged) shape = {total, heads_q, dim};
    args.q = call.tensor(dtype, shape);
    args.q_out = call.tensor(dtype, shape, Role::kOutput);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Arena arena;
  Input input(data, size);
  Call call(input, arena);
  const std::int64_t spoiled = input.one_in(2) ? input.below(4) : 0;

  const std::int64_t batch = input.below(4);
  const std::int64_t seqlen_new = input.below(6);
  const std::int64_t heads = 1 + input.below(3);
  const std::initializer_list<std::int64_t> dims = {8, 1, 2, 5, 16, 32, 33, 64};
  const std::int64_t dim = input.pick(dims);
  const std::int64_t dim_v = input.pick(dims);
  const std::initializer_list<std::int32_t> dtypes = {TEGULA_F32, TEGULA_BF16, TEGULA_F16,
                                                      TEGULA_E4M3, TEGULA_E5M2};
  const std::int32_t row = input.pick(dtypes);
  const std::int32_t cache = input.one_in(2) ? input.pick(dtypes) : row;
  const bool ragged = input.one_in(3);
  const std::int64_t total = batch * seqlen_new;

  tegula_append_kv_args args;
  tegula_append_kv_args_init(&args);
  if (ragged) {
    args.k_new = call.tensor(row, {total, heads, dim});
    args.v_new = call.tensor(row, {total, heads, dim_v});
    std::vector<std::int64_t> offsets{0};
    for (std::int64_t b = 0; b < batch; ++b)
      offsets.push_back(offsets.back() + input.below(total - offsets.back() + 1));
    if (!input.one_in(8)) args.cu_seqlens_new = call.index({batch + 1}, offsets);
  } else {
    args.k_new = call.tensor(row, {batch, seqlen_new, heads, dim});
    args.v_new = call.tensor(row, {batch, seqlen_new, heads, dim_v});
  }
  add_cache(call, cache, batch, total, heads, dim, dim_v, args);
  if (dim >= 2 && !is_narrow(row) && input.one_in(2))
    add_rotary(call, row, batch, seqlen_new, ragged, heads, dim, args);
  if (is_narrow(cache) && input.one_in(2)) {
    args.descale_k = call.head_scale(batch, heads);
    args.descale_v = call.head_scale(batch, heads);
  }

  for (std::int64_t i = 0; i < spoiled; ++i) call.spoil();
  call.back();
  tegula_executor executor = inline_executor(1 + static_cast<std::int32_t>(input.below(8)));
  tegula_execution execution;
  tegula_execution_init(&execution);
  execution.executor = &executor;
  call.spoil_size(args.struct_size);
  call.spoil_size(execution.struct_size);
  call.check(tegula_append_kv(call.guarded(args), call.guarded(execution)));
  return 0;
}
