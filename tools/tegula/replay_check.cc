// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/replay_check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

#include "tests/oracle/oracle.hpp"
#include "tools/tegula/progress.hpp"

namespace tegula::program {
namespace {

std::vector<double> widen(const std::vector<std::byte>& values, Dtype dtype) {
  const std::size_t size = size_of(dtype);
  std::vector<double> wide(values.size() / size);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    wide[i] = oracle::load(format_of(dtype), values.data() + i * size);
  }
  return wide;
}

void descale(std::vector<double>& rows, const std::vector<float>& scales, std::int64_t dim) {
  if (scales.empty()) return;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] *= scales[i / static_cast<std::size_t>(dim) % scales.size()];
  }
}

// A replay is one causal attention over all rows of the sequence: what a decode step sees is what its row of
// a longer prefill would see.
oracle::Attention reference_of(const ReplayEngine& engine, const Round& round, std::size_t p, std::size_t l) {
  const ReplaySetup& setup = engine.setup();
  const TraceLayer& layer = engine.layer(l);
  const LayerResult& result = round.results.back()[p][l];
  oracle::Attention call;
  call.seqlen_q = call.seqlen_k = engine.tokens(p);
  call.num_heads_q = layer.num_heads_q;
  call.num_heads_kv = layer.num_heads_kv;
  call.head_dim = layer.head_dim;
  call.head_dim_v = layer.head_dim_v;
  call.q = widen(engine.input(p, l).q, setup.dtype);
  call.k = widen(result.k_rows, setup.cache_dtype);
  call.v = widen(result.v_rows, setup.cache_dtype);
  descale(call.k, engine.descale_k(l), layer.head_dim);
  descale(call.v, engine.descale_v(l), layer.head_dim_v);
  call.softmax_scale = layer.softmax_scale;
  call.softcap = layer.softcap;
  call.causal = true;
  call.window_left = layer.window_left;
  call.sink.assign(layer.sink.begin(), layer.sink.end());
  call.p_underflow = oracle::limits_for(oracle::DeviceClass::kCpu, format_of(setup.dtype)).p_underflow;
  return call;
}

class Checker {
 public:
  Checker(const Trace& trace, const ReplayEngine& engine, const Round& round, const StandardReplay* standard)
      : trace_(trace), engine_(engine), round_(round), standard_(standard), setup_(engine.setup()),
        limits_(oracle::limits_for(oracle::DeviceClass::kCpu, format_of(setup_.dtype))),
        format_(format_of(setup_.dtype)) {
    errors_.has_recorded = setup_.dtype == trace.dtype() && setup_.cache_dtype == trace.dtype();
    errors_.has_standard = standard != nullptr;
  }

  void check_cache(std::size_t p, std::size_t l) {
    const TraceLayer& layer = engine_.layer(l);
    const LayerInput& input = engine_.input(p, l);
    const auto one = [&](const char* name, const std::vector<std::byte>& given,
                         std::vector<std::byte> LayerResult::*stored, const std::vector<float>& scales,
                         std::int64_t dim) {
      const std::vector<std::byte> want = stored_rows(given, scales, dim);
      const std::size_t row =
          static_cast<std::size_t>(layer.num_heads_kv * dim) * size_of(setup_.cache_dtype);
      for (std::size_t wave = 0; wave < round_.results.size(); ++wave) {
        const std::vector<std::byte>& have = round_.results[wave][p][l].*stored;
        for (std::size_t at = 0; at < have.size(); at += row) {
          ++errors_.cache_rows;
          if (std::memcmp(want.data() + at, have.data() + at, row) == 0) continue;
          ++errors_.wrong_cache_rows;
          note(fmt::format("{} row {} in the cache is not what append_kv has to store (wave {}, {})", name,
                           at / row, wave + 1, place(p, l)));
        }
      }
    };
    one("k", input.k, &LayerResult::k_rows, engine_.descale_k(l), layer.head_dim);
    one("v", input.v, &LayerResult::v_rows, engine_.descale_v(l), layer.head_dim_v);
  }

  void check_row(const oracle::Attention& call, std::size_t p, std::size_t l, std::int64_t i) {
    const TraceLayer& layer = engine_.layer(l);
    const std::size_t phase = i < engine_.prompt_tokens(p) ? kPrefill : kDecode;
    PhaseErrors errors;
    for (std::int64_t head = 0; head < layer.num_heads_q; ++head) {
      const oracle::Row row = oracle::attend_row(call, i, head);
      const std::int64_t at = i * layer.num_heads_q + head;
      for (std::size_t wave = 0; wave < round_.results.size(); ++wave) {
        const LayerResult& result = round_.results[wave][p][l];
        if (at >= static_cast<std::int64_t>(result.lse.size())) continue;  // a request that was cut short
        const auto lse = static_cast<double>(result.lse[static_cast<std::size_t>(at)]);
        judge(errors.lse, oracle::lse_ratio(limits_, row, lse), 1.0, [&] {
          return fmt::format("lse {} where the reference has {} (wave {}, {}, row {}, head {})", lse, row.lse,
                             wave + 1, place(p, l), i, head);
        });
        for (std::int64_t d = 0; d < layer.head_dim_v; ++d) {
          const double o = load(result.o, at * layer.head_dim_v + d);
          judge(errors.o, oracle::o_ratio(limits_, row, d, format_, o), 1.0, [&] {
            return fmt::format("o {} where the reference has {} (wave {}, {}, row {}, head {}, dim {})", o,
                               row.o[static_cast<std::size_t>(d)], wave + 1, place(p, l), i, head, d);
          });
        }
        errors.elements += 1 + layer.head_dim_v;
      }
      if (errors_.has_recorded) check_recorded(errors, row, p, l, i, head);
      if (standard_ != nullptr) check_standard(errors, row, p, l, i, head);
    }
    merge(errors, phase);
  }

  ReplayErrors take() { return std::move(errors_); }

 private:
  std::string place(std::size_t p, std::size_t l) const {
    return fmt::format("prompt {}, layer {}", setup_.prompts[p], engine_.layer(l).number);
  }

  double load(const std::vector<std::byte>& values, std::int64_t i) const {
    return oracle::load(format_,
                        values.data() + static_cast<std::size_t>(i) * size_of(setup_.dtype));
  }

  std::vector<std::byte> stored_rows(const std::vector<std::byte>& given, const std::vector<float>& scales,
                                     std::int64_t dim) const {
    if (setup_.dtype == setup_.cache_dtype) return given;
    const std::size_t from = size_of(setup_.dtype), to = size_of(setup_.cache_dtype);
    std::vector<std::byte> out(given.size() / from * to);
    for (std::size_t i = 0; i * from < given.size(); ++i) {
      const auto x = static_cast<float>(oracle::load(format_, given.data() + i * from));
      const float scale =
          scales.empty() ? 1.0F : scales[i / static_cast<std::size_t>(dim) % scales.size()];
      const std::uint32_t bits = oracle::cache_bits(format_of(setup_.cache_dtype), x, scale);
      std::memcpy(out.data() + i * to, &bits, to);  // little-endian, as all formats here
    }
    return out;
  }

  void check_recorded(PhaseErrors& errors, const oracle::Row& row, std::size_t p, std::size_t l,
                      std::int64_t i, std::int64_t head) {
    const TraceLayer& layer = engine_.layer(l);
    const TraceRows both = trace_.rows(setup_.prompts[p], setup_.layers[l], 'o');
    const bool prefill = i < engine_.prompt_tokens(p);
    const io::Array& array = prefill ? *both.prefill : *both.decode;
    const std::int64_t recorded_row = prefill ? i : i - engine_.prompt_tokens(p);
    const std::size_t size = size_of(setup_.dtype);
    for (std::int64_t d = 0; d < layer.head_dim_v; ++d) {
      const auto at = static_cast<std::size_t>((recorded_row * layer.num_heads_q + head) * layer.head_dim_v + d);
      const double recorded = oracle::load(format_, array.data + at * size);
      for (std::size_t wave = 0; wave < round_.results.size(); ++wave) {
        const LayerResult& result = round_.results[wave][p][l];
        if (i * layer.num_heads_q >= static_cast<std::int64_t>(result.lse.size())) continue;
        const double o =
            load(result.o, (i * layer.num_heads_q + head) * layer.head_dim_v + d);
        const double difference = std::fabs(o - recorded);
        if (!(difference <= errors.recorded_difference)) errors.recorded_difference = difference;
        judge(errors.recorded, difference / oracle::o_bound(limits_, row, d, format_), kRecordedLimit, [&] {
          return fmt::format("o {} where the trace has {} (wave {}, {}, row {}, head {}, dim {})", o, recorded,
                             wave + 1, place(p, l), i, head, d);
        });
      }
    }
  }

  void check_standard(PhaseErrors& errors, const oracle::Row& row, std::size_t p, std::size_t l,
                      std::int64_t i, std::int64_t head) {
    const TraceLayer& layer = engine_.layer(l);
    for (std::int64_t d = 0; d < layer.head_dim_v; ++d) {
      const std::int64_t at = (i * layer.num_heads_q + head) * layer.head_dim_v + d;
      const auto o = static_cast<double>(standard_->o(p, l)[static_cast<std::size_t>(at)]);
      judge(errors.standard, oracle::o_ratio(limits_, row, d, oracle::Format::kFp32, o), 1.0, [&] {
        return fmt::format("standard attention: o {} where the reference has {} ({}, row {}, head {}, dim {})",
                           o, row.o[static_cast<std::size_t>(d)], place(p, l), i, head, d);
      });
    }
  }

  // A NaN ratio is a failure.
  template <typename Text>
  void judge(double& worst, double ratio, double limit, const Text& text) {
    if (!(ratio <= worst)) worst = ratio;
    if (!(ratio <= limit)) note(fmt::format("{}: {:.3g} times the tolerance", text(), ratio));
  }

  void note(std::string text) {
    const std::lock_guard lock(mutex_);
    if (errors_.first_failure.empty()) errors_.first_failure = std::move(text);
  }

  void merge(const PhaseErrors& errors, std::size_t phase) {
    const std::lock_guard lock(mutex_);
    PhaseErrors& sum = errors_.phases[phase];
    const auto worse = [](double& worst, double value) {
      if (!(value <= worst)) worst = value;
    };
    sum.elements += errors.elements;
    worse(sum.o, errors.o);
    worse(sum.lse, errors.lse);
    worse(sum.recorded, errors.recorded);
    worse(sum.recorded_difference, errors.recorded_difference);
    worse(sum.standard, errors.standard);
  }

  const Trace& trace_;
  const ReplayEngine& engine_;
  const Round& round_;
  const StandardReplay* standard_;
  const ReplaySetup& setup_;
  oracle::Limits limits_;
  oracle::Format format_;
  std::mutex mutex_;
  ReplayErrors errors_;
};

}  // namespace

ReplayErrors check_replay(const Trace& trace, const ReplayEngine& engine, const Round& round,
                          const StandardReplay* standard, Workers& workers) {
  Checker checker(trace, engine, round, standard);
  std::int64_t total = 0;
  for (std::size_t p = 0; p < engine.setup().prompts.size(); ++p) {
    total += engine.tokens(p) * static_cast<std::int64_t>(engine.setup().layers.size());
  }
  Progress progress("checking", total);
  for (std::size_t p = 0; p < engine.setup().prompts.size(); ++p) {
    for (std::size_t l = 0; l < engine.setup().layers.size(); ++l) {
      checker.check_cache(p, l);
      const oracle::Attention call = reference_of(engine, round, p, l);
      // Long rows first, so that the threads end together.
      workers.run(call.seqlen_q, [&](std::int64_t task, int worker) {
        checker.check_row(call, p, l, call.seqlen_q - 1 - task);
        if (worker == 0) progress.advance(std::min<std::int64_t>(workers.num_workers(), call.seqlen_q));
      });
    }
  }
  return checker.take();
}

}  // namespace tegula::program
