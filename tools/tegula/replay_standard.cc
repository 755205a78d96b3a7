// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/replay_standard.hpp"

#include <chrono>

namespace tegula::program {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<float> widen(const std::vector<std::byte>& values, Dtype dtype) {
  const std::size_t size = size_of(dtype);
  std::vector<float> wide(values.size() / size);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    wide[i] = static_cast<float>(oracle::load(format_of(dtype), values.data() + i * size));
  }
  return wide;
}

// [tokens, heads, dim] -> [heads, tokens, dim], descaled.
std::vector<float> by_head(const std::vector<float>& rows, std::int64_t heads, std::int64_t dim,
                           const std::vector<float>& descale) {
  std::vector<float> out(rows.size());
  const std::int64_t tokens = static_cast<std::int64_t>(rows.size()) / (heads * dim);
  std::size_t from = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const float scale = descale.empty() ? 1.0F : descale[static_cast<std::size_t>(h)];
      for (std::int64_t i = 0; i < dim; ++i) {
        out[static_cast<std::size_t>((h * tokens + t) * dim + i)] = rows[from++] * scale;
      }
    }
  }
  return out;
}

}  // namespace

StandardReplay::StandardReplay(const ReplayEngine& engine, const Round& round, Workers& workers)
    : engine_(engine), attention_(workers) {
  const ReplaySetup& setup = engine.setup();
  for (std::size_t p = 0; p < setup.prompts.size(); ++p) {
    inputs_.emplace_back();
    for (std::size_t l = 0; l < setup.layers.size(); ++l) {
      const TraceLayer& layer = engine.layer(l);
      const LayerResult& result = round.results.back()[p][l];
      Input input;
      input.q = widen(engine.input(p, l).q, setup.dtype);
      input.k = by_head(widen(result.k_rows, setup.cache_dtype), layer.num_heads_kv, layer.head_dim,
                        engine.descale_k(l));
      input.v = by_head(widen(result.v_rows, setup.cache_dtype), layer.num_heads_kv, layer.head_dim_v,
                        engine.descale_v(l));
      input.o.assign(static_cast<std::size_t>(engine.tokens(p) * layer.num_heads_q * layer.head_dim_v), 0.0F);
      inputs_.back().push_back(std::move(input));
    }
  }
}

StandardReplay::Times StandardReplay::play(const std::vector<ScheduledStep>& schedule) {
  Times times;
  for (const ScheduledStep& step : schedule) {
    for (std::size_t l = 0; l < engine_.setup().layers.size(); ++l) {
      const TraceLayer& layer = engine_.layer(l);
      StandardShape shape;
      shape.num_heads_q = layer.num_heads_q;
      shape.num_heads_kv = layer.num_heads_kv;
      shape.head_dim = layer.head_dim;
      shape.head_dim_v = layer.head_dim_v;
      shape.softmax_scale = static_cast<float>(layer.softmax_scale);
      shape.softcap = static_cast<float>(layer.softcap);
      shape.causal = true;
      shape.window_left = layer.window_left;
      shape.sink = layer.sink.empty() ? nullptr : layer.sink.data();
      std::vector<StandardSequence> batch;
      for (const ScheduledRows& rows : step.sequences) {
        Input& input = inputs_[rows.prompt][l];
        batch.push_back({input.q.data() + rows.first * layer.num_heads_q * layer.head_dim, input.k.data(),
                         input.v.data(), input.o.data() + rows.first * layer.num_heads_q * layer.head_dim_v,
                         rows.rows, rows.first + rows.rows, engine_.tokens(rows.prompt)});
      }
      const Clock::time_point begin = Clock::now();
      attention_.forward(shape, batch);
      (step.prefill ? times.prefill : times.decode) +=
          std::chrono::duration<double>(Clock::now() - begin).count();
    }
  }
  return times;
}

}  // namespace tegula::program
