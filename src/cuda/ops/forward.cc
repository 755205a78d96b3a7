// SPDX-License-Identifier: Apache-2.0
// A launch of the forward kernel: tensor maps, parameters, and before it what sets its tile
// counter.
#include "src/cuda/ops/forward.hpp"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cstring>
#include <new>

#include "src/core/dtype.hpp"
#include "src/core/integer.hpp"
#include "src/cuda/jit/jit.hpp"
#include "src/cuda/ops/counter_slots.hpp"

namespace tegula::cuda {
namespace {

using device::ForwardParams;
using device::ForwardSpec;
using device::ListParams;
using device::Load;
using device::Schedule;

static_assert(sizeof(device::TensorMap) == sizeof(CUtensorMap));

constexpr double kLog2e = 1.4426950408889634;
constexpr int64_t kL2Share = int64_t{32} << 20;  // of k and v that heads visited together may fill

// ---- Kernels

KernelText text_of(const ForwardSpec& spec) {
  return {
      name_of(spec), source_of(spec), "tegula_forward", 90, true, device::smem_plan(spec).bytes};
}
KernelText list_text() {
  return {"forward list",
          "#include \"device/sm90/forward_list.hpp\"\n"
          "using namespace tegula::device;\n"
          "extern \"C\" __global__ void __launch_bounds__(kListThreads, 1)\n"
          "tegula_forward_list(const __grid_constant__ ListParams params) {\n"
          "  list_forward_tiles(params);\n}\n",
          "tegula_forward_list", 90, false};
}

// Kernels that this process has loaded, by spec, so that a call need not make and hash their text.
// Entries are never removed.
struct Loaded {
  int device;
  bool list;
  ForwardSpec spec;
  const Kernel* kernel;
  const Loaded* next;
};
constinit std::atomic<const Loaded*> loaded{nullptr};

const Kernel* find_loaded(int device, bool list, const ForwardSpec& spec) {
  for (const Loaded* entry = loaded.load(std::memory_order_acquire); entry != nullptr;
       entry = entry->next) {
    if (entry->device == device && entry->list == list && entry->spec == spec) return entry->kernel;
  }
  return nullptr;
}

// With the device's context current.
Status load(const Driver& driver, int device, bool list, const ForwardSpec& spec,
            const Kernel*& kernel) {
  kernel = find_loaded(device, list, spec);
  if (kernel != nullptr) return {};
  TEGULA_RETURN_IF_ERROR(load_kernel(device, list ? list_text() : text_of(spec), kernel));
  if (!list) {
    TEGULA_RETURN_IF_ERROR(check(
        driver.cuFuncSetAttribute(kernel->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                  device::smem_plan(spec).bytes),
        "forward: shared memory of the kernel"));
  }
  auto* const entry = new (std::nothrow) Loaded{device, list, spec, kernel, nullptr};
  if (entry == nullptr) return {};  // the next call asks again
  entry->next = loaded.load(std::memory_order_relaxed);
  while (!loaded.compare_exchange_weak(entry->next, entry, std::memory_order_release,
                                       std::memory_order_relaxed)) {
  }
  return {};
}

Status launch(const Driver& driver, const Kernel& kernel, unsigned blocks, unsigned threads,
              size_t smem, void* stream, const void* params, const char* what) {
  CUlaunchConfig config{};
  config.gridDimX = blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = threads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(smem);
  config.hStream = static_cast<CUstream>(stream);
  void* arguments[] = {const_cast<void*>(params)};
  return check(driver.cuLaunchKernelEx(&config, kernel.function, arguments, nullptr), what);
}

// ---- Operands

struct Shape {
  int64_t columns, rows, heads, batch;
};

device::Rows rows_of(const TokenView& view) {
  return {view.data, view.batch_stride, view.token_stride, view.head_stride};
}

bool aligned(const TokenView& view, int64_t bytes) {
  const auto size = static_cast<int64_t>(dtype_size(view.dtype));
  const auto fits = [&](int64_t stride) { return stride * size % bytes == 0; };
  return reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(bytes) == 0 &&
         fits(view.batch_stride) && fits(view.token_stride) && fits(view.head_stride);
}

// Strides of dimensions of size 1 do not matter, and may be what no map takes.
Status make_map(const Driver& driver, const char* name, const TokenView& view, const Shape& shape,
                int box_rows, device::TensorMap& map) {
  const auto size = static_cast<uint64_t>(dtype_size(view.dtype));
  const auto stride = [&](int64_t extent, int64_t given) {
    return extent <= 1 ? uint64_t{16} : static_cast<uint64_t>(given) * size;
  };
  const uint64_t sizes[] = {static_cast<uint64_t>(shape.columns), static_cast<uint64_t>(shape.rows),
                            static_cast<uint64_t>(shape.heads), static_cast<uint64_t>(shape.batch)};
  const uint64_t strides[] = {stride(shape.rows, view.token_stride),
                              stride(shape.heads, view.head_stride),
                              stride(shape.batch, view.batch_stride)};
  const uint32_t box[] = {device::kPanelColumns, static_cast<uint32_t>(box_rows), 1, 1};
  const uint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap encoded;
  const CUresult result = driver.cuTensorMapEncodeTiled(
      &encoded,
      view.dtype == TEGULA_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      4, view.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) return check(result, name);
  std::memcpy(map.bytes, &encoded, sizeof encoded);
  return {};
}

device::Ints ints_of(const IndexView& view) {
  if (!view.present()) return {nullptr, 0};
  return {reinterpret_cast<const int*>(view.data), view.strides[0]};
}

device::Floats floats_of(const StridedView& view, int64_t batch, int64_t head, int64_t row) {
  if (!view.present()) return {nullptr, 0, 0, 0};
  return {reinterpret_cast<float*>(view.data), batch, head, row};
}

device::Lengths lengths_of(const ForwardCall& call, const Execution& execution) {
  device::Lengths lengths{};
  lengths.cu_seqlens_q = ints_of(call.cu_seqlens_q);
  lengths.cu_seqlens_k = ints_of(call.cu_seqlens_k);
  lengths.seqused_q = ints_of(call.seqused_q);
  lengths.seqused_k = ints_of(call.seqused_k);
  lengths.leftpad_k = ints_of(call.leftpad_k);
  lengths.cu_seqlens_new = ints_of(call.cu_seqlens_new);
  lengths.seqlen_q = static_cast<int>(call.seqlen_q);
  lengths.seqlen_k = static_cast<int>(call.seqlen_k);
  lengths.total_q = static_cast<int>(call.total_q);
  lengths.total_k = static_cast<int>(call.total_k);
  lengths.seqlen_new = static_cast<int>(std::min<int64_t>(call.seqlen_new, device::kMaxLength));
  lengths.error_word = execution.error_word;
  return lengths;
}

// A positive value as a float that neither underflows nor overflows.
float positive(double value) {
  return static_cast<float>(std::clamp<double>(value, FLT_MIN, FLT_MAX));
}

void set_scales(const tegula_problem& problem, const ForwardSpec& spec, ForwardParams& params) {
  const double scale = problem.softmax_scale;
  params.softcap = spec.softcap ? positive(problem.softcap) : 0;
  params.inner_scale = positive(spec.softcap ? scale / problem.softcap : scale);
  params.score_scale = positive(spec.alibi     ? kLog2e
                                : spec.softcap ? problem.softcap * kLog2e
                                               : scale * kLog2e);
}

void set_operands(const ForwardPlan& plan, const ForwardCall& call, const Execution& execution,
                  ForwardParams& params) {
  const tegula_problem& problem = *call.problem;
  params.q = rows_of(call.q);
  params.k = rows_of(call.k);
  params.v = rows_of(call.v);
  params.o = rows_of(call.o);
  params.lse = floats_of(call.lse, call.lse.strides[0], call.lse.strides[1], call.lse.strides[2]);
  params.sink = floats_of(call.sink, 0, call.sink.strides[0], 0);
  params.alibi_slopes =
      floats_of(call.alibi_slopes, call.alibi_slopes.strides[0], call.alibi_slopes.strides[1], 0);
  params.lengths = lengths_of(call, execution);
  params.mask = plan.mask;
  params.batch = static_cast<int>(call.batch);
  params.num_heads_q = static_cast<int>(problem.num_heads_q);
  params.qheads_per_kvhead = static_cast<int>(problem.num_heads_q / problem.num_heads_kv);
  params.head_dim = static_cast<int>(problem.head_dim);
  params.head_dim_v = static_cast<int>(problem.head_dim_v);
  params.q_width = aligned(call.q, 16) ? 16 : 2;
  params.kv_width = aligned(call.k, 16) && aligned(call.v, 16) ? 16 : 2;
  params.o_aligned = aligned(call.o, 16) ? 1 : 0;
}

// Heads whose tiles are handed out together: as many as the L2 holds k and v of, in whole groups of
// a kv head; but at least four tiles for each SM, or the group's heavy tiles leave SMs idle at the
// end (head_dim 256 causal, 16k: 762 TFLOP/s with 2 heads, 789 with 4, though 64 MB miss the L2).
int heads_of_group(const tegula_problem& problem, int64_t seqlen_k, int64_t m_blocks, int num_sms,
                   int64_t heads) {
  const int64_t head_bytes =
      std::max<int64_t>(1, seqlen_k) * 2 * (problem.head_dim + problem.head_dim_v);
  const int64_t ratio = problem.num_heads_q / problem.num_heads_kv;
  const int64_t kv_heads = std::max(kL2Share / head_bytes, 4 * num_sms / (m_blocks * ratio));
  return static_cast<int>(std::clamp<int64_t>(kv_heads * ratio, ratio, heads));
}

}  // namespace

Status prepare_forward(std::span<const ForwardPlan* const> plans, int device_index) {
  const Driver* driver = nullptr;
  TEGULA_RETURN_IF_ERROR(find_driver(driver));
  std::vector<KernelText> texts;
  for (const ForwardPlan* plan : plans) {
    texts.push_back(text_of(spec_of(*plan)));
    if (plan->spec.schedule == Schedule::kList) texts.push_back(list_text());
  }
  TEGULA_RETURN_IF_ERROR(load_kernels(device_index, texts));
  ContextGuard context;
  TEGULA_RETURN_IF_ERROR(context.enter(device_index));
  for (const ForwardPlan* plan : plans) {
    const Kernel* kernel = nullptr;
    if (plan->spec.schedule == Schedule::kList) {
      TEGULA_RETURN_IF_ERROR(load(*driver, device_index, true, {}, kernel));
    } else if (plan->spec.schedule == Schedule::kDynamic) {
      TEGULA_RETURN_IF_ERROR(prepare_counter_slots(*driver, device_index));
    }
    TEGULA_RETURN_IF_ERROR(load(*driver, device_index, false, spec_of(*plan), kernel));
  }
  return {};
}

std::vector<KernelText> kernels_of(const ForwardPlan& plan) {
  std::vector<KernelText> texts = {text_of(plan.spec), text_of(plan.plain_spec)};
  if (plan.spec.schedule == Schedule::kList) texts.push_back(list_text());
  return texts;
}

Status forward(const ForwardPlan& plan, const ForwardCall& call, const Execution& execution,
               int device_index) {
  const tegula_problem& problem = *call.problem;
  const bool ragged_q = problem.layout_q == TEGULA_RAGGED;
  const bool ragged_k = problem.layout_k == TEGULA_RAGGED;
  const int64_t rows_q = ragged_q ? call.total_q : call.seqlen_q;
  if (call.batch == 0 || rows_q == 0 || problem.num_heads_q == 0) return {};
  const int64_t rows_k = ragged_k ? call.total_k : call.seqlen_k;

  const Shape q_shape = {problem.head_dim, rows_q, problem.num_heads_q, ragged_q ? 1 : call.batch};
  const Shape k_shape = {problem.head_dim, rows_k, problem.num_heads_kv, ragged_k ? 1 : call.batch};
  const Shape v_shape = {problem.head_dim_v, rows_k, problem.num_heads_kv, k_shape.batch};
  const bool keys = rows_k > 0;  // without them nothing is loaded
  const ForwardSpec& spec = spec_of(plan);

  const Driver* driver = nullptr;
  const DeviceInfo* info = nullptr;
  TEGULA_RETURN_IF_ERROR(find_driver(driver));
  TEGULA_RETURN_IF_ERROR(device_info(device_index, info));
  ContextGuard context;
  TEGULA_RETURN_IF_ERROR(context.enter(device_index));
  const Kernel* kernel = nullptr;
  TEGULA_RETURN_IF_ERROR(load(*driver, device_index, false, spec, kernel));

  ForwardParams params{};
  set_scales(problem, spec, params);
  set_operands(plan, call, execution, params);
  if (spec.load == Load::kTma && keys) {
    TEGULA_RETURN_IF_ERROR(
        make_map(*driver, "q: tensor map", call.q, q_shape, spec.tile_m, params.q_map));
    TEGULA_RETURN_IF_ERROR(
        make_map(*driver, "k: tensor map", call.k, k_shape, spec.tile_n, params.k_map));
    TEGULA_RETURN_IF_ERROR(
        make_map(*driver, "v: tensor map", call.v, v_shape, spec.tile_n, params.v_map));
  }

  const bool list = spec.schedule == Schedule::kList;
  const int64_t heads = list ? problem.num_heads_q : call.batch * problem.num_heads_q;
  const int64_t blocks = list ? plan.list_capacity : ceil_div(rows_q, spec.tile_m);
  const int64_t tiles = blocks * heads;
  if (tiles > device::kMaxLength) {
    return fail(TEGULA_UNSUPPORTED, "q: %lld tiles of %d rows are more than %d",
                static_cast<long long>(tiles), spec.tile_m, device::kMaxLength);
  }
  params.m_blocks = static_cast<int>(blocks);
  params.num_tiles = static_cast<int>(tiles);
  const int64_t longest_q = std::min(problem.max_seqlen_q, rows_q);
  params.group =
      heads_of_group(problem, list ? problem.max_seqlen_k : call.seqlen_k,
                     std::max<int64_t>(1, ceil_div(longest_q, spec.tile_m)), info->num_sms, heads);
  if (plan.scratch_bytes > 0) {
    if (execution.workspace == nullptr || execution.workspace_size < plan.scratch_bytes) {
      return fail(TEGULA_OUT_OF_MEMORY, "workspace: %zu bytes are less than the plan's %zu",
                  execution.workspace == nullptr ? size_t{0} : execution.workspace_size,
                  plan.scratch_bytes);
    }
    params.counter = static_cast<device::TileCounter*>(execution.workspace);
    params.list = reinterpret_cast<const device::ListEntry*>(params.counter + 1);
  }

  if (list) {
    const Kernel* list_kernel = nullptr;
    TEGULA_RETURN_IF_ERROR(load(*driver, device_index, true, {}, list_kernel));
    const ListParams list_params = {params.lengths, params.mask,
                                    params.batch,   spec.tile_m,
                                    spec.tile_n,    static_cast<int>(plan.list_capacity),
                                    params.counter, const_cast<device::ListEntry*>(params.list)};
    TEGULA_RETURN_IF_ERROR(launch(*driver, *list_kernel, 1, device::kListThreads, 0,
                                  execution.stream, &list_params, "forward: launch of the list"));
  } else if (spec.schedule == Schedule::kDynamic) {
    TEGULA_RETURN_IF_ERROR(counter_slot(*driver, device_index,
                                        static_cast<CUstream>(execution.stream), params.counter));
  }
  const auto grid = static_cast<unsigned>(std::min<int64_t>(info->num_sms, tiles));
  return launch(*driver, *kernel, grid, static_cast<unsigned>(device::num_threads(spec)),
                static_cast<size_t>(device::smem_plan(spec).bytes), execution.stream, &params,
                "forward: launch");
}

}  // namespace tegula::cuda
