// SPDX-License-Identifier: Apache-2.0
// What the generic code and the objects compiled per instruction set share: plain data and function
// pointers only. Nothing here may be an inline function: the linker could then keep the AVX-512
// copy for every machine (AGENTS.md, Rules that a test checks).
#pragma once

#include <cstddef>
#include <cstdint>

#include <tegula/tegula.h>

namespace tegula::cpu {

// Rows of k or v of one sequence and one head: row n lies at
//   contiguous: base + n * token_stride
//   paged:      base + pages[(n / page_size) * pages_stride] * page_stride + (n % page_size) *
//   token_stride
// with all strides but pages_stride in bytes.
struct KvRows {
  const char* base;
  int64_t token_stride;
  int64_t page_stride;
  const int32_t* pages;  // nullptr: contiguous
  int64_t pages_stride;
  int64_t page_size;
};

// Room behind a list of rows, and behind the scores of a block: tiles read and compute some rows
// more.
inline constexpr int64_t kRowPad = 8;

// Where the parts of one worker's scratch lie, in bytes from its begin. Made by forward_layout().
struct ForwardLayout {
  int64_t panel_rows;  // packed query rows of a panel: lanes x panel_vectors
  int64_t
      q_steps;  // 32-bit units of a query row: head_dim, or pairs of it for the bf16 dot product
  int64_t o_stride;  // floats between rows of the accumulator: head_dim_v rounded up to a vector
  int64_t q_t;       // [panels][q_steps][panel_rows] 32-bit
  int64_t scores;    // [tile_n + kRowPad][panel_rows] f32; becomes P in place
  int64_t p_pairs;   // [tile_n / 2][panel_rows] bf16 pairs; unused without the bf16 dot product
  int64_t acc_o;     // [panels][panel_rows][o_stride] f32
  int64_t rows;  // per-row state: 5 arrays of [panels * panel_rows], then 4 of [panel_rows], 32-bit
  int64_t bias_t;    // [tile_n][panel_rows] f32; only with bias
  int64_t k_block;   // [tile_n][q_steps] 32-bit: k converted or copied
  int64_t v_block;   // [tile_n][o_stride] f32, or [tile_n / 2][o_stride] bf16 pairs
  int64_t pointers;  // lists of rows: [6][tile_n + kRowPad] (RowList in kernels/block.hpp)
  int64_t zero_row;  // max(q_steps, o_stride) zeros
  int64_t narrow;  // few rows: [narrow_heads] states of narrow_bytes bytes, each a packed q and at
  int64_t narrow_acc_o;  // these bytes of it an accumulator
  int64_t narrow_rows;   // and per-row state
  int64_t narrow_bytes;
  int64_t widen;  // two rows of 512 + 64 floats, for conversions
  int64_t bytes;  // whole size, a multiple of 64
};

inline constexpr int64_t kMaxTileRows = 1024;  // packed query rows of an item, at most

// Matrix tiles: packed rows of a sequence from which they pay (below: the narrow kernel), up to
// which k and v are read as they lie, and keys packed at a time.
inline constexpr int64_t kLeastTileRows = 8;
inline constexpr int64_t kFewTileRows = 32;
inline constexpr int64_t kMaxTileBlock = 4096;

// Parts of a worker's scratch that the kernels on matrix tiles use; bytes from its begin. Made by
// tile_layout(). A value is q_parts (kv_parts) bf16 numbers: two for fp16, else one.
struct TileLayout {
  int64_t q_parts, kv_parts;
  int64_t head_dim, head_dim_v;  // rounded up to 32
  int64_t block;                 // keys packed at a time, a multiple of 64
  int64_t q;                     // [rows / 32][q_parts][32][head_dim] bf16
  int64_t k;                     // [kv_parts][block / 16][head_dim / 32] tiles
  int64_t v;                     // [kv_parts][block / 32][head_dim_v / 16] tiles
  int64_t k_part_bytes, v_part_bytes;
  int64_t scores;            // two of [32][64] f32
  int64_t p;                 // two of [q_parts][32][64] bf16; few rows: twice that
  int64_t o;                 // [rows / 32][head_dim_v / 16][32][16] f32
  int64_t row_max, row_sum;  // [2][rows] f32 (and shifts); [rows / 32][2][32][lanes] f32
  int64_t stage;             // [64][kv_parts][max(head_dim, head_dim_v)] bf16
  int64_t zero_row, zero_row_bytes;
  int64_t few;                         // few rows: [narrow_heads] states of few_bytes bytes, each
  int64_t few_o, few_rows, few_bytes;  // packed q, at these bytes of it O and per-row state
  int64_t packed;                      // PackedBlock: what k and v hold
};

// Which keys a worker has packed: the next item of the same head may use them again.
struct PackedBlock {
  int64_t head;               // ForwardTask::head, -1: none
  int64_t first, begin, end;  // keys [begin, end) of the block that begins at `first`
};

// One forward call, the same for all of its tasks.
struct ForwardParams {
  tegula_dtype q_dtype, kv_dtype, o_dtype, bias_dtype;
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t qheads_per_kvhead;
  int64_t tile_n;
  float softcap;
  bool pairs;            // bf16 dot product
  int64_t narrow_heads;  // kv heads of an item of few rows, at most
  bool
      cooked;  // softcap, bias or ALiBi: scores are brought to natural-log units before the softmax
  bool use_tiles;  // matrix tiles; few rows: still the narrow kernel
  ForwardLayout layout;
  TileLayout tiles;
};

// Packed rows [row_begin, row_end) of one sequence and one kv head against keys of [key_begin,
// key_end). Packed row r is token r / qheads_per_kvhead and head r % qheads_per_kvhead of the
// group: contract.md's packed GQA. Strides in bytes unless noted.
struct ForwardTask {
  const char* q;  // token 0, first head of the group
  int64_t q_token_stride, q_head_stride;
  char* o;
  int64_t o_token_stride, o_head_stride;
  float* lse;  // nullptr: not wanted; strides in floats
  int64_t lse_token_stride, lse_head_stride;
  KvRows k, v;
  int64_t head;  // of the call: sequence x num_heads_kv + kv head
  int64_t row_begin, row_end;
  int64_t seqlen_q, seqlen_k;
  int64_t key_begin, key_end;  // of the split; blocks of tile_n start at key_begin
  const int64_t* range_begin;  // keys that each token sees, from the first token of the task:
                               // [range_begin[t], range_end[t])
  const int64_t* range_end;
  float scale;        // softmax_scale x descale_q x descale_k
  bool cooked;        // the call's, or a scale that cannot wait until after the maximum
  float v_scale;      // descale_v
  const float* sink;  // first head of the group; nullptr: none; stride in floats
  int64_t sink_stride;
  const float* alibi_slopes;
  int64_t alibi_stride;
  const char* bias;  // token 0, key 0, first head of the group
  int64_t bias_head_stride, bias_token_stride, bias_key_stride;
  float* o_partial;  // not nullptr: a split; normalised f32 o [row][head_dim_v] and lse [row], rows
                     // from row_begin
  float* lse_partial;
};

// One row of combine: o = sum_s exp(lse_s - lse) o_s.
struct CombineRow {
  tegula_dtype partial_dtype, o_dtype;
  int64_t num_splits, head_dim_v;
  const char* o_partial;
  int64_t o_split_stride;  // bytes
  const float* lse_partial;
  int64_t lse_split_stride;  // floats
  const float* sink;         // of the row's head; nullptr: none
  char* o;
  float* lse;  // nullptr: not wanted
};

// One row of append_kv: to = round(rotate(from) / descale).
struct AppendRow {
  tegula_dtype from_dtype, to_dtype, rotary_dtype;
  int64_t dim;
  const char* from;
  char* to;
  int64_t rotary_dim;  // 0: none
  bool interleaved;
  const char* cos;  // rotary_dim / 2 values each
  const char* sin;
  float descale;  // used for 8-bit rows only
};

// A kernel family: one object per instruction set.
struct KernelFamily {
  tegula_isa isa;
  const char* name;
  int64_t lanes;          // floats of a vector
  int64_t panel_vectors;  // vectors of packed rows in a panel
  int64_t narrow_rows;    // sequences of so many packed rows or fewer go to the narrow kernel,
  int64_t narrow_tile;    // in blocks of so many keys
  bool has_pairs;         // has the bf16 dot product
  bool has_tiles;         // has matrix tiles
  // tasks: of `heads` kv heads of one sequence, alike in everything but the head; more than one
  // only for few rows, and at most params.narrow_heads.
  void (*forward)(const ForwardParams& params, const ForwardTask* tasks, int64_t heads,
                  char* scratch);
  void (*combine)(const CombineRow& row);
  void (*append)(const AppendRow& row);
};

}  // namespace tegula::cpu

namespace tegula::isa_scalar {
extern const cpu::KernelFamily kFamily;
}
namespace tegula::isa_avx2 {
extern const cpu::KernelFamily kFamily;
}
namespace tegula::isa_avx512 {
extern const cpu::KernelFamily kFamily;
}
namespace tegula::isa_avx512bf16 {
extern const cpu::KernelFamily kFamily;
}
namespace tegula::isa_amx {
extern const cpu::KernelFamily kFamily;
}
namespace tegula::isa_amx_model {
extern const cpu::KernelFamily kFamily;
}
