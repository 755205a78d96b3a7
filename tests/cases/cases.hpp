// SPDX-License-Identifier: Apache-2.0
// The case table: what one line of tests/cases/table/*.jsonl says. Fields have docs/contract.md's
// names; a field that a line leaves out has the default below.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tegula/tegula.h>

namespace tegula::cases {

enum class Op { kForward, kAppendKv, kCombine };
enum class LayoutK { kDense, kRagged, kPageTable, kPageIndices };
enum class NewTokens { kNone, kNumber, kCu };
enum class PerHead { kNone, kOne, kHeads, kBatchHeads };

// Where the elements of a tensor [batch or pages, tokens, heads, dim] lie.
enum class Strides {
  kPacked,
  kPadded,           // gaps after every head, token and batch
  kHeadMajor,        // heads outside tokens: BHSD, HND pages
  kSliced,           // the middle third of a fused row
  kShifted,          // packed, one element past an aligned address, by byte_offset
  kBroadcastBatch,   // stride 0 over batch or pages (inputs)
  kBroadcastHeads,   // stride 0 over heads (inputs)
  kBroadcastTokens,  // stride 0 over tokens (inputs)
};

enum class Values {
  kRandom,
  kLarge,    // scores up to some thousands
  kHuge,     // scores beyond 2^18 (f32 and bf16 only)
  kGrowing,  // every key row scores higher than those before it: the running maximum moves
  kZeroQ,    // q = 0, v = 1: o counts keys
  kHeads,    // v = the number of its kv head + 1
  kNanQ,     // one row of q is NaN: that row is NaN, no other changes
  kSpecial,  // append_kv: NaN, infinities, denormals and denormal descales among the new rows
  kNanK,     // one visible row of k is NaN: that sequence's rows of that kv head are not judged
};

struct Case {
  std::string id;
  std::vector<std::string> tags;
  Op op = Op::kForward;
  std::uint64_t seed = 0;

  tegula_dtype q_dtype = TEGULA_F32;
  tegula_dtype kv_dtype = TEGULA_F32;
  tegula_dtype v_dtype = TEGULA_DTYPE_NONE;  // only for the refusal of k and v of different types
  tegula_dtype o_dtype = TEGULA_F32;
  std::int64_t num_heads_q = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t head_dim = 64;
  std::int64_t head_dim_v = 64;

  bool ragged_q = false;
  LayoutK layout_k = LayoutK::kDense;
  std::vector<std::int64_t> seqlens_q;  // used lengths, one a sequence
  std::vector<std::int64_t> seqlens_k;  // used lengths, new tokens included
  bool seqused_q = false;               // lengths inside longer slots
  bool seqused_k = false;               // paged: always
  std::int64_t slack_q = 0;             // rows of a slot past the longest used length
  std::int64_t slack_k = 0;
  NewTokens new_tokens = NewTokens::kNone;
  std::vector<std::int64_t> seqlens_new;  // included in seqlens_k; kNumber: all the same
  std::int64_t page_size = 0;
  bool short_table = false;   // the last row of the table ends after its last used entry
  bool shared_pages = false;  // sequences share their first page

  bool causal = false;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  std::int64_t attention_chunk = 0;
  double softmax_scale = 0.0;  // 0 = default
  double softcap = 0.0;
  bool sink = false;
  PerHead alibi = PerHead::kNone;               // kHeads or kBatchHeads
  tegula_dtype bias_dtype = TEGULA_DTYPE_NONE;  // q's, f32 or bool
  std::string bias_broadcast;                   // of "bhqk": dimensions of stride 0
  std::vector<std::int64_t> leftpad_k;          // one a sequence, or empty
  PerHead descale = PerHead::kNone;
  bool descale_expanded = false;  // stride 0
  bool lse = true;
  std::int64_t num_splits = 0;
  std::int64_t fixed_split = 0;

  Strides strides_q = Strides::kPacked;
  Strides strides_k = Strides::kPacked;
  Strides strides_v = Strides::kPacked;
  Strides strides_o = Strides::kPacked;
  Strides strides_lse = Strides::kPacked;  // kPacked or kPadded
  Values values = Values::kRandom;

  // append_kv: seqlens_k = lengths after, seqlens_new = new rows, kv_dtype = the cache's.
  tegula_dtype new_dtype = TEGULA_F32;
  bool slot_mapping = false;
  bool skip_slots = false;  // every third new row has slot -1
  std::int64_t rotary_dim = 0;
  bool interleaved = false;
  bool rotary_f32 = true;  // type of cos, sin: f32, else new_dtype
  bool positions = false;
  std::string rotate_q;  // "", "in_place" or "out"

  // combine: num_splits partials of type q_dtype; seqlens_q rows.
  std::string empty_partials;  // "", "some", "all", "plus_inf"

  std::int64_t batch() const { return static_cast<std::int64_t>(seqlens_q.size()); }
  bool paged() const { return layout_k == LayoutK::kPageTable || layout_k == LayoutK::kPageIndices; }
  bool has_tag(const std::string& tag) const;
};

// Throws std::runtime_error naming file, line and field: unknown fields and values are errors.
Case parse_case(const std::string& json_line);
std::vector<Case> load_table(const std::string& file_or_folder);

// The committed table of this source tree.
std::string default_folder();

}  // namespace tegula::cases
