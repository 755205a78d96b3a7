// SPDX-License-Identifier: Apache-2.0
// What the forward kernel takes, and the variant for it: the committed table of tiles.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <span>

#include "src/core/dtype.hpp"
#include "src/core/integer.hpp"
#include "src/cuda/ops/forward.hpp"

namespace tegula::cuda {
namespace {

using device::Dtype;
using device::ForwardSpec;
using device::Load;
using device::MaskKind;
using device::Schedule;

static_assert(static_cast<int>(Dtype::kF32) == TEGULA_F32 &&
              static_cast<int>(Dtype::kF16) == TEGULA_F16 &&
              static_cast<int>(Dtype::kBf16) == TEGULA_BF16 &&
              static_cast<int>(Dtype::kE4m3) == TEGULA_E4M3 &&
              static_cast<int>(Dtype::kE5m2) == TEGULA_E5M2);

// Whether lengths may differ between sequences, told by tensors on the device.
bool has_lengths(const tegula_problem& problem) {
  return problem.layout_q == TEGULA_RAGGED || problem.layout_k == TEGULA_RAGGED ||
         (problem.operands & (TEGULA_HAS_SEQUSED_Q | TEGULA_HAS_SEQUSED_K)) != 0;
}

struct Tile {
  int head_dim, head_dim_v;  // the smallest entry that holds both is taken
  int tile_m, tile_n, num_stages, q_stages;
  bool q_in_registers, ping_pong;
};

// In rising order. Why these: docs/design/forward_sm90.md.
constexpr Tile kTiles[] = {
    {64, 64, 192, 128, 3, 2, false, true},   {96, 96, 128, 128, 2, 1, true, true},
    {128, 128, 128, 128, 2, 1, true, true},  {192, 128, 128, 128, 2, 1, false, false},
    {192, 192, 128, 96, 2, 1, false, false}, {256, 256, 128, 64, 2, 1, false, false},
};
// Scores that take more registers than a mask: q stays in shared memory.
constexpr Tile kScoreTiles[] = {
    {64, 64, 128, 128, 3, 2, false, true},   {96, 96, 128, 128, 2, 1, false, true},
    {128, 128, 128, 128, 2, 1, false, true}, {192, 128, 128, 96, 2, 1, false, false},
    {192, 192, 128, 80, 2, 1, false, false}, {256, 256, 128, 64, 2, 1, false, false},
};

// Causal rows of few keys: shorter blocks waste less beside the diagonal (+3 % at 512, -1 to -3 %
// at 1k). Only without lengths: elsewhere the longest sequence says little about the others.
constexpr int64_t kFewKeys = 512;
constexpr Tile kShortTiles[] = {
    {64, 64, 192, 64, 3, 2, false, true},
    {128, 128, 128, 64, 4, 1, true, true},
};

const Tile* find_tile(std::span<const Tile> tiles, const tegula_problem& problem) {
  for (const Tile& tile : tiles) {
    if (problem.head_dim <= tile.head_dim && problem.head_dim_v <= tile.head_dim_v) return &tile;
  }
  return nullptr;
}

const Tile& tile_of(const tegula_problem& problem, const ForwardSpec& spec, bool lengths) {
  if (spec.softcap || spec.alibi) return *find_tile(kScoreTiles, problem);
  const Tile* const usual = find_tile(kTiles, problem);
  if (spec.mask == MaskKind::kRight && !lengths && problem.max_seqlen_k <= kFewKeys) {
    const Tile* const few = find_tile(kShortTiles, problem);
    if (few != nullptr && few->head_dim == usual->head_dim) return *few;
  }
  return *usual;
}

int cut(int64_t value) {
  return static_cast<int>(std::min<int64_t>(value, device::kMaxLength));
}

}  // namespace

void refuse_forward(const tegula_problem& problem, const DeviceInfo& device, Refusal& why) {
  if (device.compute_capability != 90) {
    return refuse(why, "compute capability %d.%d: the kernels are for 9.0",
                  device.compute_capability / 10, device.compute_capability % 10);
  }
  if (problem.q_dtype != TEGULA_BF16 && problem.q_dtype != TEGULA_F16) {
    return refuse(why, "q is %s: f16 and bf16 are taken", dtype_name(problem.q_dtype));
  }
  if (problem.kv_dtype != problem.q_dtype) {
    return refuse(why, "k and v are %s, q is %s: one type is taken", dtype_name(problem.kv_dtype),
                  dtype_name(problem.q_dtype));
  }
  for (const auto& [name, size] :
       {std::pair{"head_dim", problem.head_dim}, std::pair{"head_dim_v", problem.head_dim_v}}) {
    if (size % 8 != 0 || size > 256 || size < 8) {
      return refuse(why, "%s %" PRId64 ": multiples of 8 up to 256 are taken", name, size);
    }
  }
  if (problem.layout_k == TEGULA_PAGED) return refuse(why, "k and v are paged: not yet");
  if (problem.num_splits > 1)
    return refuse(why, "num_splits %" PRId64 ": not yet", problem.num_splits);
  if (problem.fixed_split > 0) {
    return refuse(why, "fixed_split %" PRId64 ": not yet", problem.fixed_split);
  }
  if (problem.bias_dtype != TEGULA_DTYPE_NONE) return refuse(why, "a bias tensor: not yet");
  for (const auto& [name, size] :
       {std::pair{"seqlen_q", problem.seqlen_q}, std::pair{"seqlen_k", problem.seqlen_k},
        std::pair{"total_q", problem.total_q}, std::pair{"total_k", problem.total_k},
        std::pair{"batch", problem.batch}, std::pair{"num_heads_q", problem.num_heads_q}}) {
    if (size > device::kMaxLength) {
      return refuse(why, "%s %" PRId64 " is more than %d", name, size, device::kMaxLength);
    }
  }
}

ForwardPlan plan_forward(const tegula_problem& problem) {
  ForwardPlan plan;
  const auto window = [](int64_t given) { return given < 0 ? device::kMaxLength : cut(given); };
  plan.mask = {window(problem.window_left), problem.causal ? 0 : window(problem.window_right),
               cut(problem.attention_chunk)};
  const bool leftpad = (problem.operands & TEGULA_HAS_LEFTPAD_K) != 0;

  ForwardSpec& spec = plan.spec;
  spec.dtype = static_cast<Dtype>(problem.q_dtype);
  spec.kv_dtype = static_cast<Dtype>(problem.kv_dtype);
  spec.o_dtype = static_cast<Dtype>(problem.o_dtype);
  const bool interval = leftpad || problem.window_left >= 0 || problem.attention_chunk > 0;
  spec.mask = interval                                      ? MaskKind::kInterval
              : problem.causal || problem.window_right >= 0 ? MaskKind::kRight
                                                            : MaskKind::kLength;
  spec.softcap = problem.softcap > 0;
  spec.alibi = (problem.operands & TEGULA_HAS_ALIBI) != 0;
  const bool lengths = has_lengths(problem);
  const Tile& tile = tile_of(problem, spec, lengths);
  spec.head_dim = tile.head_dim;
  spec.head_dim_v = tile.head_dim_v;
  spec.tile_m = tile.tile_m;
  spec.tile_n = tile.tile_n;
  spec.num_stages = tile.num_stages;
  spec.q_stages = tile.q_stages;
  spec.q_in_registers = tile.q_in_registers;
  spec.ping_pong = tile.ping_pong;
  spec.zero_v = interval || lengths;
  spec.schedule = lengths                          ? Schedule::kList
                  : spec.mask == MaskKind::kLength ? Schedule::kStatic
                                                   : Schedule::kDynamic;
  constexpr uint32_t kLoaded = TEGULA_UNALIGNED_Q | TEGULA_UNALIGNED_K | TEGULA_UNALIGNED_V;
  plan.plain = (problem.unaligned & kLoaded) != 0;
  plan.plain_spec = spec;
  plan.plain_spec.load = Load::kPlain;
  // Loads by threads take registers that three consumer warpgroups do not leave.
  if (spec.tile_m > 128) plan.plain_spec.tile_m = 128;
  plan.plain_spec.zero_v = false;  // its loads bring nothing from outside

  if (spec.schedule == Schedule::kList) {
    const int tile_m = plan.plain_spec.tile_m;  // the lower of both
    plan.list_capacity = problem.layout_q == TEGULA_RAGGED
                             ? problem.total_q / tile_m + problem.batch
                             : problem.batch * ceil_div(problem.seqlen_q, tile_m);
    plan.scratch_bytes = sizeof(device::TileCounter) +
                         static_cast<size_t>(plan.list_capacity) * sizeof(device::ListEntry);
  }
  return plan;
}

std::string name_of(const ForwardSpec& spec) {
  constexpr const char* kMasks[] = {"", " right", " interval"};
  constexpr const char* kSchedules[] = {"", " dynamic", " list"};
  char text[160];
  std::snprintf(text, sizeof text, "forward %s %d/%d %dx%dx%d/%d%s%s%s%s%s%s%s%s%s%s",
                dtype_name(static_cast<int>(spec.dtype)), spec.head_dim, spec.head_dim_v,
                spec.tile_m, spec.tile_n, spec.num_stages, spec.q_stages,
                kMasks[static_cast<int>(spec.mask)], spec.softcap ? " softcap" : "",
                spec.alibi ? " alibi" : "", spec.o_dtype == spec.dtype ? "" : " o ",
                spec.o_dtype == spec.dtype ? "" : dtype_name(static_cast<int>(spec.o_dtype)),
                spec.zero_v ? " zero_v" : "", spec.load == Load::kPlain ? " plain" : "",
                kSchedules[static_cast<int>(spec.schedule)], spec.q_in_registers ? " q_reg" : "",
                spec.ping_pong ? " ping_pong" : "");
  return text;
}

std::string source_of(const ForwardSpec& spec) {
  char text[1024];
  const auto dtype = [](Dtype value) {
    return value == Dtype::kF32 ? "kF32" : value == Dtype::kF16 ? "kF16" : "kBf16";
  };
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  constexpr const char* kMasks[] = {"kLength", "kRight", "kInterval"};
  constexpr const char* kSchedules[] = {"kStatic", "kDynamic", "kList"};
  std::snprintf(text, sizeof text,
                "#include \"device/sm90/forward.hpp\"\n"
                "using namespace tegula::device;\n"
                "constexpr ForwardSpec kSpec = {\n"
                "    .dtype = Dtype::%s,\n    .kv_dtype = Dtype::%s,\n    .o_dtype = Dtype::%s,\n"
                "    .head_dim = %d,\n    .head_dim_v = %d,\n    .tile_m = %d,\n    .tile_n = %d,\n"
                "    .num_stages = %d,\n    .q_stages = %d,\n    .q_in_registers = %s,\n    "
                ".ping_pong = %s,\n"
                "    .mask = MaskKind::%s,\n    .softcap = %s,\n    .alibi = %s,\n"
                "    .zero_v = %s,\n    .load = Load::%s,\n    .schedule = Schedule::%s};\n"
                "extern \"C\" __global__ void __launch_bounds__(num_threads(kSpec), 1)\n"
                "tegula_forward(const __grid_constant__ ForwardParams params) {\n"
                "  forward<kSpec>(params);\n}\n",
                dtype(spec.dtype), dtype(spec.kv_dtype), dtype(spec.o_dtype), spec.head_dim,
                spec.head_dim_v, spec.tile_m, spec.tile_n, spec.num_stages, spec.q_stages,
                flag(spec.q_in_registers), flag(spec.ping_pong),
                kMasks[static_cast<int>(spec.mask)], flag(spec.softcap), flag(spec.alibi),
                flag(spec.zero_v), spec.load == Load::kTma ? "kTma" : "kPlain",
                kSchedules[static_cast<int>(spec.schedule)]);
  return text;
}

}  // namespace tegula::cuda
