// SPDX-License-Identifier: Apache-2.0
// Plays a trace as a serving engine would: requests wait for a place in the batch and for pages; those admitted
// together are prefilled in one call (append, then forward), then every running one gets a token a step. Each prompt
// is asked more than once, and all but the last time it is cut short, by another number of steps for each: so pages
// come back while their neighbours go on, and the next request takes them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tegula/tegula.hpp>

#include "tools/tegula/library.hpp"
#include "tools/tegula/paged_cache.hpp"
#include "tools/tegula/trace.hpp"

namespace tegula::program {

struct ReplaySetup {
  Dtype dtype = Dtype::kBf16;        // of q, o and the new rows of k and v
  Dtype cache_dtype = Dtype::kBf16;  // of the pages
  std::int64_t page_size = 16;
  std::int64_t steps = 0;                  // decode steps of each prompt at most
  std::uint64_t seed = 1;
  std::vector<std::size_t> layers = {};    // indices into the trace's layers
  std::vector<std::size_t> prompts = {};   // and into its prompts

  // Requests at once, and how often each prompt is asked: with a single prompt, it keeps itself company.
  std::int64_t slots() const { return std::max<std::int64_t>(2, static_cast<std::int64_t>(prompts.size())); }
  int waves() const { return prompts.size() > 1 ? 2 : 4; }
};

// What one layer of one request computed: rows of the prompt, then of the decode steps.
struct LayerResult {
  std::vector<std::byte> o;        // [tokens, num_heads_q, head_dim_v] of the setup's dtype
  std::vector<float> lse;          // [tokens, num_heads_q]
  std::vector<std::byte> k_rows;   // as they lay in the cache at the sequence's end
  std::vector<std::byte> v_rows;

  bool operator==(const LayerResult&) const = default;
};

// Rows [first, first + rows) of a prompt's tokens, in one call of each layer.
struct ScheduledRows {
  std::size_t prompt;
  std::int64_t first, rows;
};

struct ScheduledStep {
  bool prefill;
  std::vector<ScheduledRows> sequences;
};

struct Seconds {
  double append = 0.0;
  double attention = 0.0;
};

struct Round {
  Seconds prefill, decode;
  std::vector<ScheduledStep> schedule;
  std::int64_t pages_peak = 0, pages_reused = 0;
  // [wave][prompt][layer], counted as in the setup. The last wave is whole, earlier ones may be cut short.
  std::vector<std::vector<std::vector<LayerResult>>> results;
};

// One prompt and layer of the trace in the setup's dtype, prefill and decode rows together.
struct LayerInput {
  std::vector<std::byte> q, k, v;
};

class ReplayEngine {
 public:
  ReplayEngine(const Trace& trace, const ReplaySetup& setup, Machine& machine);

  // `round` shuffles the pages anew; the results must not notice.
  Round play(int round);

  const ReplaySetup& setup() const { return setup_; }
  const TraceLayer& layer(std::size_t l) const { return trace_.layers()[setup_.layers[l]]; }
  std::int64_t prompt_tokens(std::size_t p) const { return trace_.prompts()[setup_.prompts[p]].prompt_tokens; }
  std::int64_t steps(std::size_t p) const;
  std::int64_t tokens(std::size_t p) const { return prompt_tokens(p) + steps(p); }
  const LayerInput& input(std::size_t p, std::size_t l) const { return inputs_[p][l]; }
  // [num_heads_kv]; empty unless the cache has 8 bits.
  const std::vector<float>& descale_k(std::size_t l) const { return descale_k_[l]; }
  const std::vector<float>& descale_v(std::size_t l) const { return descale_v_[l]; }

  std::int64_t num_pages() const { return num_pages_; }
  // Bytes of K and V of one token, all layers played.
  std::size_t cache_bytes_per_token() const;
  // The most scratch that a plan asked for; the plans are made by the first round.
  std::size_t scratch_bytes() const;
  std::string implementation() const;

 private:
  struct Sequence;
  struct Call;

  std::int64_t pages_for(std::int64_t tokens) const;
  std::vector<Sequence> requests(Round& round) const;
  void set_descales();
  // Appends the next rows of every sequence and attends to them, layer by layer.
  void step(std::vector<Sequence>& batch, PageAllocator& pages, std::vector<LayerCache>& caches, Round& round);
  void run_layer(const Call& call, std::size_t layer, LayerCache& cache, std::optional<Plan>& plan,
                 Seconds& seconds);
  Problem problem_of(const Call& call, std::size_t layer, const ForwardArgs& args) const;
  // Keeps the cached rows of those that are done, takes their pages back, and removes them from the batch.
  void retire(std::vector<Sequence>& batch, PageAllocator& pages, const std::vector<LayerCache>& caches) const;

  const Trace& trace_;
  ReplaySetup setup_;
  Machine& machine_;
  std::vector<std::vector<LayerInput>> inputs_;  // [prompt][layer]
  std::vector<std::vector<float>> descale_k_, descale_v_;
  std::int64_t num_pages_ = 0;
  std::int64_t pages_per_row_ = 0;  // width of the page table
  std::vector<std::optional<Plan>> prefill_plans_, decode_plans_;  // [layer]
  Buffer q_, k_, v_, o_, lse_;                      // of one call, large enough for any
};

}  // namespace tegula::program
