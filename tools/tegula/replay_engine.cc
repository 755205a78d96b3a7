// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/replay_engine.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

namespace tegula::program {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Both parts of an operand, converted with one rounding.
std::vector<std::byte> convert(const TraceRows& rows, std::int64_t decode_rows, Dtype from,
                               Dtype to) {
  const std::size_t from_size = size_of(from);
  const std::size_t to_size = size_of(to);
  const std::size_t prefill = static_cast<std::size_t>(rows.prefill->elements());
  std::size_t decode = 0;
  if (decode_rows > 0) {
    const std::int64_t row = rows.decode->elements() / rows.decode->shape[0];
    decode = static_cast<std::size_t>(decode_rows * row);
  }
  std::vector<std::byte> out((prefill + decode) * to_size);
  const auto part = [&](const io::Array& array, std::size_t count, std::byte* to_data) {
    if (from == to) {
      if (count > 0) std::memcpy(to_data, array.data, count * to_size);
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      oracle::store(format_of(to), to_data + i * to_size,
                    oracle::load(format_of(from), array.data + i * from_size));
    }
  };
  part(*rows.prefill, prefill, out.data());
  part(*rows.decode, decode, out.data() + prefill * to_size);
  return out;
}

// Touched at once: a page fault inside a timed call would count as ours.
void grow(Buffer& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return;
  buffer = Buffer(bytes);
  std::memset(buffer.data(), 0xff, buffer.size());
}

double largest_finite(Dtype dtype) { return dtype == Dtype::kE4m3 ? 448.0 : 57344.0; }

}  // namespace

struct ReplayEngine::Sequence {
  std::size_t prompt = 0;     // as counted in the setup
  std::int64_t end = 0;       // tokens at which it is done
  std::int64_t length = 0;    // rows in the cache
  std::vector<std::int32_t> pages;
  std::vector<LayerResult>* results = nullptr;  // [layer]
};

// What the calls of all layers share in one step.
struct ReplayEngine::Call {
  const std::vector<Sequence>& sequences;
  bool prefill;
  std::int64_t total;                // new rows
  std::vector<std::int32_t> before;  // [batch] lengths
  std::vector<std::int32_t> begin;   // [batch + 1] first new row of each sequence
  std::vector<std::int32_t> table;   // [batch, pages_per_row]; -1 beyond a sequence's pages
};

ReplayEngine::ReplayEngine(const Trace& trace, const ReplaySetup& setup, Machine& machine)
    : trace_(trace), setup_(setup), machine_(machine), prefill_plans_(setup.layers.size()),
      decode_plans_(setup.layers.size()) {
  for (std::size_t p = 0; p < setup_.prompts.size(); ++p) {
    pages_per_row_ = std::max(pages_per_row_, pages_for(tokens(p)));
    num_pages_ += pages_for(tokens(p));
    inputs_.emplace_back();
    for (const std::size_t l : setup_.layers) {
      const auto read = [&](char operand) {
        return convert(trace.rows(setup_.prompts[p], l, operand), steps(p), trace.dtype(), setup_.dtype);
      };
      inputs_.back().push_back({read('q'), read('k'), read('v')});
    }
  }
  if (setup_.prompts.size() == 1) num_pages_ *= setup_.slots();
  set_descales();
}

std::int64_t ReplayEngine::pages_for(std::int64_t tokens) const {
  return (tokens + setup_.page_size - 1) / setup_.page_size;
}

std::int64_t ReplayEngine::steps(std::size_t p) const {
  return std::min(setup_.steps, trace_.prompts()[setup_.prompts[p]].steps);
}

// One scale for each kv head, from the largest magnitude in the trace: what a calibration would find.
void ReplayEngine::set_descales() {
  descale_k_.resize(setup_.layers.size());
  descale_v_.resize(setup_.layers.size());
  if (!is_8bit(setup_.cache_dtype)) return;
  const std::size_t size = size_of(setup_.dtype);
  const double top = largest_finite(setup_.cache_dtype);
  for (std::size_t l = 0; l < setup_.layers.size(); ++l) {
    const auto fill = [&](std::vector<float>& scales, std::vector<std::byte> LayerInput::*operand,
                          std::int64_t dim) {
      const auto heads = static_cast<std::size_t>(layer(l).num_heads_kv);
      scales.assign(heads, 0.0F);
      for (const auto& prompt : inputs_) {
        const std::vector<std::byte>& values = prompt[l].*operand;
        for (std::size_t i = 0; i * size < values.size(); ++i) {
          const double x = std::fabs(oracle::load(format_of(setup_.dtype), values.data() + i * size));
          float& scale = scales[i / static_cast<std::size_t>(dim) % heads];
          if (x / top > scale) scale = static_cast<float>(x / top);
        }
      }
      for (float& scale : scales) scale = scale > 0 && std::isfinite(scale) ? scale : 1.0F;
    };
    fill(descale_k_[l], &LayerInput::k, layer(l).head_dim);
    fill(descale_v_[l], &LayerInput::v, layer(l).head_dim_v);
  }
}

// In the order in which they are admitted; each wave begins with another prompt.
std::vector<ReplayEngine::Sequence> ReplayEngine::requests(Round& round) const {
  const std::size_t prompts = setup_.prompts.size();
  const auto waves = static_cast<std::size_t>(setup_.waves());
  round.results.resize(waves);
  std::vector<Sequence> requests;
  for (std::size_t wave = 0; wave < waves; ++wave) {
    round.results[wave].resize(prompts);
    for (std::size_t i = 0; i < prompts; ++i) {
      const std::size_t p = (i + wave) % prompts;
      auto& results = round.results[wave][p];
      results.resize(setup_.layers.size());
      // 1 / slots of the steps, 2 / slots, ... and all of them.
      const std::int64_t share = static_cast<std::int64_t>(requests.size()) % setup_.slots() + 1;
      const std::int64_t cut = (steps(p) * share + setup_.slots() - 1) / setup_.slots();
      requests.push_back({p, prompt_tokens(p) + (wave + 1 == waves ? steps(p) : cut), 0, {}, &results});
    }
  }
  return requests;
}

Round ReplayEngine::play(int number) {
  Round round;
  PageAllocator pages(num_pages_, setup_.seed + static_cast<std::uint64_t>(number));
  std::vector<LayerCache> caches;
  for (std::size_t l = 0; l < setup_.layers.size(); ++l) {
    caches.emplace_back(num_pages_, setup_.page_size, layer(l).num_heads_kv, layer(l).head_dim,
                        layer(l).head_dim_v, setup_.cache_dtype);
  }
  const std::vector<Sequence> waiting = requests(round);
  std::vector<Sequence> running;
  for (std::size_t next = 0; next < waiting.size() || !running.empty();) {
    // Pages are taken as a sequence grows, but promised when it is admitted: nobody has to be thrown out.
    std::int64_t free = pages.num_free();
    for (const Sequence& sequence : running) {
      free -= pages_for(sequence.end) - static_cast<std::int64_t>(sequence.pages.size());
    }
    std::vector<Sequence> admitted;
    while (next < waiting.size() && pages_for(waiting[next].end) <= free &&
           static_cast<std::int64_t>(running.size() + admitted.size()) < setup_.slots()) {
      free -= pages_for(waiting[next].end);
      admitted.push_back(waiting[next++]);
    }
    if (!admitted.empty()) {
      step(admitted, pages, caches, round);
      running.insert(running.end(), admitted.begin(), admitted.end());
      retire(running, pages, caches);
    }
    if (running.empty()) continue;
    step(running, pages, caches, round);
    retire(running, pages, caches);
  }
  round.pages_peak = pages.peak();
  round.pages_reused = pages.reused();
  return round;
}

void ReplayEngine::step(std::vector<Sequence>& batch, PageAllocator& pages, std::vector<LayerCache>& caches,
                        Round& round) {
  Call call{batch, batch.front().length == 0, 0, {}, {0}, {}};
  call.table.assign(batch.size() * static_cast<std::size_t>(pages_per_row_), -1);
  ScheduledStep scheduled{call.prefill, {}};
  for (std::size_t b = 0; b < batch.size(); ++b) {
    Sequence& sequence = batch[b];
    const std::int64_t rows = call.prefill ? prompt_tokens(sequence.prompt) : 1;
    while (static_cast<std::int64_t>(sequence.pages.size()) < pages_for(sequence.length + rows)) {
      sequence.pages.push_back(pages.take());
    }
    std::copy(sequence.pages.begin(), sequence.pages.end(),
              call.table.begin() + static_cast<std::ptrdiff_t>(b) * pages_per_row_);
    call.before.push_back(static_cast<std::int32_t>(sequence.length));
    call.total += rows;
    call.begin.push_back(static_cast<std::int32_t>(call.total));
    scheduled.sequences.push_back({sequence.prompt, sequence.length, rows});
  }
  round.schedule.push_back(std::move(scheduled));
  auto& plans = call.prefill ? prefill_plans_ : decode_plans_;
  Seconds& seconds = call.prefill ? round.prefill : round.decode;
  for (std::size_t l = 0; l < caches.size(); ++l) run_layer(call, l, caches[l], plans[l], seconds);
  for (std::size_t b = 0; b < batch.size(); ++b) batch[b].length += call.begin[b + 1] - call.begin[b];
}

// Of the largest call there can be: its plan serves all of them.
Problem ReplayEngine::problem_of(const Call& call, std::size_t l, const ForwardArgs& args) const {
  const TraceLayer& shape = layer(l);
  Problem problem(args, {.causal = true,
                         .window_left = shape.window_left,
                         .softmax_scale = shape.softmax_scale,
                         .softcap = shape.softcap});
  problem.c().batch = setup_.slots();
  if (call.prefill) {
    problem.c().total_q = 0;
    for (std::size_t p = 0; p < setup_.prompts.size(); ++p) problem.c().total_q += prompt_tokens(p);
    if (setup_.prompts.size() == 1) problem.c().total_q *= setup_.slots();
  }
  return problem;
}

void ReplayEngine::run_layer(const Call& call, std::size_t l, LayerCache& cache, std::optional<Plan>& plan,
                             Seconds& seconds) {
  const TraceLayer& shape = layer(l);
  const auto batch = static_cast<std::int64_t>(call.sequences.size());
  const std::int64_t heads = shape.num_heads_q, kv_heads = shape.num_heads_kv;
  const std::int64_t d = shape.head_dim, dv = shape.head_dim_v;
  const std::size_t size = size_of(setup_.dtype);
  const auto bytes = [&](std::int64_t rows, std::int64_t h, std::int64_t dim) {
    return static_cast<std::size_t>(rows * h * dim) * size;
  };

  // The projections of a model would leave q, k and v like this.
  grow(q_, bytes(call.total, heads, d));
  grow(k_, bytes(call.total, kv_heads, d));
  grow(v_, bytes(call.total, kv_heads, dv));
  grow(o_, bytes(call.total, heads, dv));
  grow(lse_, static_cast<std::size_t>(call.total * heads) * sizeof(float));
  for (std::size_t b = 0; b < call.sequences.size(); ++b) {
    const LayerInput& from = inputs_[call.sequences[b].prompt][l];
    const std::int64_t first = call.before[b], at = call.begin[b], rows = call.begin[b + 1] - at;
    const auto copy = [&](Buffer& to, const std::vector<std::byte>& values, std::int64_t h, std::int64_t dim) {
      std::memcpy(to.data() + bytes(at, h, dim), values.data() + bytes(first, h, dim), bytes(rows, h, dim));
    };
    copy(q_, from.q, heads, d);
    copy(k_, from.k, kv_heads, d);
    copy(v_, from.v, kv_heads, dv);
  }

  // Prompts are ragged, decode steps dense: [total, ...] or [batch, 1, ...].
  const auto rows_tensor = [&](const Buffer& data, std::int64_t h, std::int64_t dim) {
    return call.prefill ? Tensor(data.data(), setup_.dtype, {call.total, h, dim})
                        : Tensor(data.data(), setup_.dtype, {batch, 1, h, dim});
  };
  const auto* const lse_data = reinterpret_cast<const float*>(lse_.data());
  const Index before(call.before);
  const Index begin = call.prefill ? Index(call.begin) : Index();
  const Index table(call.table, {batch, pages_per_row_});

  AppendKvArgs append;
  append.k_new = rows_tensor(k_, kv_heads, d);
  append.v_new = rows_tensor(v_, kv_heads, dv);
  append.k_cache = cache.k();
  append.v_cache = cache.v();
  append.cu_seqlens_new = begin;
  append.seqused_k = before;
  append.page_table = table;
  if (is_8bit(setup_.cache_dtype)) {
    append.descale_k = Tensor(descale_k_[l], {kv_heads});
    append.descale_v = Tensor(descale_v_[l], {kv_heads});
  }

  ForwardArgs args;
  args.q = rows_tensor(q_, heads, d);
  args.k = append.k_cache;
  args.v = append.v_cache;
  args.o = rows_tensor(o_, heads, dv);
  args.lse = call.prefill ? Tensor(lse_data, {heads, call.total}) : Tensor(lse_data, {batch, heads, 1});
  args.cu_seqlens_q = begin;
  args.cu_seqlens_new = begin;
  args.seqlen_new = call.prefill ? 0 : 1;
  args.seqused_k = before;
  args.page_table = table;
  if (!shape.sink.empty()) args.sink = Tensor(shape.sink, {heads});
  args.descale_k = append.descale_k;
  args.descale_v = append.descale_v;

  if (!plan) plan.emplace(problem_of(call, l, args), machine_.device());
  const Clock::time_point first = Clock::now();
  append_kv(append, machine_.execution());
  seconds.append += seconds_since(first);
  const Clock::time_point second = Clock::now();
  plan->forward(args, machine_.execution());
  seconds.attention += seconds_since(second);

  for (std::size_t b = 0; b < call.sequences.size(); ++b) {
    LayerResult& result = (*call.sequences[b].results)[l];
    const std::int64_t at = call.begin[b], rows = call.begin[b + 1] - at;
    result.o.insert(result.o.end(), o_.data() + bytes(at, heads, dv),
                    o_.data() + bytes(at + rows, heads, dv));
    for (std::int64_t i = at; i < at + rows; ++i) {
      for (std::int64_t h = 0; h < heads; ++h) {  // [heads, total], or [batch, heads, 1]
        result.lse.push_back(lse_data[call.prefill ? h * call.total + i : i * heads + h]);
      }
    }
  }
}

void ReplayEngine::retire(std::vector<Sequence>& batch, PageAllocator& pages,
                          const std::vector<LayerCache>& caches) const {
  std::erase_if(batch, [&](const Sequence& sequence) {
    if (sequence.length < sequence.end) return false;
    for (std::size_t l = 0; l < caches.size(); ++l) {
      const LayerCache& cache = caches[l];
      LayerResult& result = (*sequence.results)[l];
      for (std::int64_t i = 0; i < sequence.length; ++i) {
        const std::byte* k = cache.k_row(sequence.pages, i);
        const std::byte* v = cache.v_row(sequence.pages, i);
        result.k_rows.insert(result.k_rows.end(), k, k + cache.k_row_bytes);
        result.v_rows.insert(result.v_rows.end(), v, v + cache.v_row_bytes);
      }
    }
    pages.give_back(sequence.pages);
    return true;
  });
}

std::size_t ReplayEngine::cache_bytes_per_token() const {
  std::size_t bytes = 0;
  for (std::size_t l = 0; l < setup_.layers.size(); ++l) {
    bytes += static_cast<std::size_t>(layer(l).num_heads_kv * (layer(l).head_dim + layer(l).head_dim_v)) *
             size_of(setup_.cache_dtype);
  }
  return bytes;
}

std::size_t ReplayEngine::scratch_bytes() const {
  std::size_t most = 0;
  for (const auto* plans : {&prefill_plans_, &decode_plans_}) {
    for (const std::optional<Plan>& plan : *plans) {
      if (plan) most = std::max(most, plan->workspace_size());
    }
  }
  return most;
}

std::string ReplayEngine::implementation() const { return prefill_plans_.front()->info().implementation; }

}  // namespace tegula::program
