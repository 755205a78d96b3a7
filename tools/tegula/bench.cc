// SPDX-License-Identifier: Apache-2.0
// tegula bench: a first suite. Ours and standard attention in alternating rounds, medians of both, one JSON line a
// result: the fields of docs/measuring.md.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "src/cpu/executor/topology.hpp"
#include "tests/oracle/formats.hpp"
#include "tools/tegula/bench_suite.hpp"
#include "tools/tegula/command.hpp"
#include "tools/tegula/library.hpp"
#include "tools/tegula/options.hpp"
#include "tools/tegula/limits.hpp"
#include "tools/tegula/paged_cache.hpp"
#include "tools/tegula/progress.hpp"
#include "tools/tegula/standard_attention.hpp"
#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::vector<std::string> suites = {"forward", "decode"};
  std::vector<std::string> dtypes = {"fp32", "bf16", "fp16"};
  std::vector<std::int64_t> head_dims = {64, 128}, seqlens = {128, 512, 1024, 2048};
  std::vector<std::string> masks = {"full", "causal"};
  std::int64_t context = 8192;
  int rounds = 5;
  std::string out, commit, filter;
  bool list = false;
  MachineOptions machine;
};

struct OneCell {
  std::string op;  // forward, decode
  Dtype dtype = Dtype::kF32;
  std::int64_t batch = 1, heads_q = 8, heads_kv = 8, head_dim = 64, seqlen_q = 1, seqlen_k = 1;
  bool causal = false;
  std::int64_t page_size = 0;  // 0: dense

  std::string layout() const { return page_size > 0 ? fmt::format("paged:{}:permuted", page_size) : "dense"; }
  std::string name() const {
    return fmt::format("{}-{}-h{}/{}-d{}-q{}-k{}-{}-{}", op, tegula::name(dtype), heads_q, heads_kv, head_dim,
                       seqlen_q, seqlen_k, causal ? "causal" : "full", layout());
  }
  double flops() const {
    const double all = 4.0 * static_cast<double>(batch * heads_q * seqlen_q) *
                       static_cast<double>(seqlen_k * head_dim);
    return causal ? all / 2 : all;
  }
  double kv_bytes(Dtype type) const {
    return 2.0 * static_cast<double>(batch * heads_kv * seqlen_k * head_dim * static_cast<std::int64_t>(size_of(type)));
  }
};

// How often to have K and V in memory so that a call finds none of them in a cache.
std::int64_t copies_of(const OneCell& cell, Dtype dtype) {
  constexpr double kFarMoreThanCaches = 256.0 * 1024 * 1024;
  if (cell.op != "decode") return 1;
  return std::max<std::int64_t>(2, static_cast<std::int64_t>(std::ceil(kFarMoreThanCaches / cell.kv_bytes(dtype))));
}

// Roughly normal, the same on every machine. Numbers repeat after some 10^6: an odd number of them, so that no head
// equals another.
Buffer normal(std::int64_t elements, Dtype dtype, std::uint64_t seed, std::int64_t copies = 1) {
  constexpr std::size_t kPeriod = 1000003;
  const std::size_t size = size_of(dtype);
  const std::size_t bytes = static_cast<std::size_t>(elements) * size;
  Buffer buffer(bytes * static_cast<std::size_t>(copies));
  std::mt19937_64 random(seed);
  const std::size_t period = std::min(bytes, kPeriod * size);
  for (std::size_t at = 0; at < period; at += size) {
    const std::uint64_t bits = random();
    double sum = 0.0;
    for (int part = 0; part < 4; ++part) sum += static_cast<double>(bits >> (16 * part) & 0xffff);
    oracle::store(format_of(dtype), buffer.data() + at, (sum / 65536 - 2.0) * std::sqrt(3.0));
  }
  const auto repeat = [&](std::size_t step, std::size_t end) {
    for (std::size_t at = step; at < end; at += step) {
      std::copy_n(buffer.data() + at - step, std::min(step, end - at), buffer.data() + at);
    }
  };
  if (period > 0) repeat(period, bytes);
  if (bytes > 0) repeat(bytes, buffer.size());
  return buffer;
}

// Our side of a cell.
class Ours {
 public:
  Ours(const OneCell& cell, Machine& machine)
      : cell_(cell), machine_(machine), copies_(copies_of(cell, cell.dtype)),
        q_(normal(cell.batch * cell.seqlen_q * cell.heads_q * cell.head_dim, cell.dtype, 1)),
        k_(normal(kv_elements(), cell.dtype, 2, copies_)),
        v_(normal(kv_elements(), cell.dtype, 3, copies_)), o_(q_.size()),
        lengths_(static_cast<std::size_t>(cell.batch), static_cast<std::int32_t>(cell.seqlen_k)) {
    std::fill_n(o_.data(), o_.size(), std::byte{0});
    if (cell.page_size > 0) {
      table_.resize(static_cast<std::size_t>(cell.batch * cell.seqlen_k / cell.page_size));
      std::iota(table_.begin(), table_.end(), 0);
      std::shuffle(table_.begin(), table_.end(), std::mt19937_64(4));
    }
    plan_ = std::make_unique<Plan>(Problem(args(0), {.causal = cell.causal}), machine.device());
  }

  void call() {
    plan_->forward(args(next_), machine_.execution());
    next_ = (next_ + 1) % copies_;
  }
  std::string implementation() const { return plan_->info().implementation; }

 private:
  std::int64_t kv_elements() const { return cell_.batch * cell_.seqlen_k * cell_.heads_kv * cell_.head_dim; }

  ForwardArgs args(std::int64_t copy) const {
    const std::size_t offset = static_cast<std::size_t>(copy * kv_elements()) * size_of(cell_.dtype);
    const auto kv = [&](const Buffer& buffer) {
      if (cell_.page_size == 0) {
        return Tensor(buffer.data() + offset, cell_.dtype,
                      {cell_.batch, cell_.seqlen_k, cell_.heads_kv, cell_.head_dim});
      }
      return Tensor(buffer.data() + offset, cell_.dtype,
                    {static_cast<std::int64_t>(table_.size()), cell_.page_size, cell_.heads_kv, cell_.head_dim});
    };
    const auto rows = [&](const Buffer& buffer) {
      return Tensor(buffer.data(), cell_.dtype, {cell_.batch, cell_.seqlen_q, cell_.heads_q, cell_.head_dim});
    };
    ForwardArgs args;
    args.q = rows(q_);
    args.k = kv(k_);
    args.v = kv(v_);
    args.o = rows(o_);
    if (cell_.page_size > 0) {
      args.seqused_k = Index(lengths_);
      args.page_table = Index(table_, {cell_.batch, cell_.seqlen_k / cell_.page_size});
    }
    return args;
  }

  OneCell cell_;
  Machine& machine_;
  std::int64_t copies_, next_ = 0;
  Buffer q_, k_, v_, o_;
  std::vector<std::int32_t> lengths_, table_;
  std::unique_ptr<Plan> plan_;
};

// Standard attention's side: fp32 whatever the cell's type, keys of a head together.
class Theirs {
 public:
  Theirs(const OneCell& cell, Workers& workers)
      : cell_(cell), copies_(copies_of(cell, Dtype::kF32)),
        q_(normal(cell.batch * cell.seqlen_q * cell.heads_q * cell.head_dim, Dtype::kF32, 1)),
        k_(normal(kv_elements(), Dtype::kF32, 2, copies_)),
        v_(normal(kv_elements(), Dtype::kF32, 3, copies_)), o_(q_.size()), attention_(workers) {}

  void call() {
    StandardShape shape;
    shape.num_heads_q = cell_.heads_q;
    shape.num_heads_kv = cell_.heads_kv;
    shape.head_dim = shape.head_dim_v = cell_.head_dim;
    shape.softmax_scale = 1.0F / std::sqrt(static_cast<float>(cell_.head_dim));
    shape.causal = cell_.causal;
    std::vector<StandardSequence> batch;
    for (std::int64_t b = 0; b < cell_.batch; ++b) {
      const std::int64_t kv = next_ * kv_elements() + b * kv_elements() / cell_.batch;
      const std::int64_t rows = b * cell_.seqlen_q * cell_.heads_q * cell_.head_dim;
      batch.push_back({floats(q_) + rows, floats(k_) + kv, floats(v_) + kv, floats(o_) + rows, cell_.seqlen_q,
                       cell_.seqlen_k, cell_.seqlen_k});
    }
    attention_.forward(shape, batch);
    next_ = (next_ + 1) % copies_;
  }

 private:
  static float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }
  std::int64_t kv_elements() const { return cell_.batch * cell_.seqlen_k * cell_.heads_kv * cell_.head_dim; }

  OneCell cell_;
  std::int64_t copies_, next_ = 0;
  Buffer q_, k_, v_, o_;
  StandardAttention attention_;
};

// Seconds of a call: as many as fill 20 ms, after a pause in which the other side's threads fall asleep.
double burst(const std::function<void()>& call) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const Clock::time_point begin = Clock::now();
  double elapsed = 0.0;
  int calls = 0;
  do {
    call();
    ++calls;
    elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  } while (elapsed < 0.02);
  return elapsed / calls;
}

std::vector<OneCell> cells_of(const BenchOptions& options) {
  std::vector<OneCell> cells;
  for (const std::string& suite : options.suites) {
    for (const std::string& type : options.dtypes) {
      OneCell cell;
      cell.op = suite;
      cell.dtype = parse_dtype("--dtype", type);
      if (is_8bit(cell.dtype)) throw Failure(fmt::format("--dtype: {} is none of fp32, fp16, bf16", type));
      if (suite == "decode") {
        cell.heads_q = 32;
        cell.head_dim = 128;
        cell.seqlen_k = (options.context + 15) / 16 * 16;
        for (const std::int64_t page_size : {0, 16}) {
          cell.page_size = page_size;
          cells.push_back(cell);
        }
        continue;
      }
      for (const std::int64_t head_dim : options.head_dims) {
        for (const std::string& mask : options.masks) {
          for (const std::int64_t seqlen : options.seqlens) {
            cell.head_dim = head_dim;
            cell.causal = mask == "causal";
            cell.seqlen_q = cell.seqlen_k = seqlen;
            cells.push_back(cell);
          }
        }
      }
    }
  }
  return cells;
}

double clock_mhz() {
  std::ifstream stream("/proc/cpuinfo");
  std::string line;
  while (std::getline(stream, line)) {
    if (line.rfind("cpu MHz", 0) != 0) continue;
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos) return std::strtod(line.c_str() + colon + 1, nullptr);
  }
  return 0.0;
}

struct Result {
  OneCell cell;
  std::string implementation;
  double seconds = 0.0, peer_seconds = 0.0;
};

// Rates and limits in the result line's units.
Json line_of(const BenchOptions& options, const Machine& machine, const Limits& limits, const Result& result,
             bool peer) {
  const OneCell& cell = result.cell;
  const double seconds = peer ? result.peer_seconds : result.seconds;
  const Dtype dtype = peer ? Dtype::kF32 : cell.dtype;
  const bool decode = cell.op == "decode";
  Json line;
  line["suite"] = "cpu_first";
  line["cell"] = cell.name();
  line["op"] = cell.op;
  line["device"] = "cpu";
  line["machine"] = fmt::format("{}; fp32 FMA {:.1f} GFLOP/s{}", cpu::cpu_info().brand, limits.fma_flops / 1e9,
                                limits.read_bytes > 0
                                    ? fmt::format(", read {:.1f} GB/s", limits.read_bytes / 1e9)
                                    : "");
  line["impl"] = peer ? "standard" : result.implementation;
  line["dtype"] = tegula::name(dtype);
  line["head_dim"] = cell.head_dim;
  line["head_dim_v"] = cell.head_dim;
  line["heads_q"] = cell.heads_q;
  line["heads_kv"] = cell.heads_kv;
  line["batch"] = cell.batch;
  line["seqlen_q"] = cell.seqlen_q;
  line["seqlen_k"] = cell.seqlen_k;
  line["mask"] = cell.causal ? "causal" : "full";
  line["layout"] = peer ? "dense" : cell.layout();
  line["features"] = "";
  line["threads"] = machine.threads();
  if (decode) line["residence"] = "dram";
  line["rounds"] = options.rounds;
  line["ms"] = seconds * 1e3;
  line["tflops"] = cell.flops() / seconds / 1e12;
  if (decode) {
    const double rate = cell.kv_bytes(dtype) / seconds;
    line["gbps"] = rate / 1e9;
    if (limits.read_bytes > 0) {
      line["limit"] = limits.read_bytes / 1e9;
      line["of_limit"] = rate / limits.read_bytes;
    }
  } else if (dtype == Dtype::kF32) {  // 16-bit types may have instructions of their own
    line["limit"] = limits.fma_flops / 1e12;
    line["of_limit"] = cell.flops() / seconds / limits.fma_flops;
  }
  if (!options.commit.empty()) line["commit"] = options.commit;
  if (const double mhz = clock_mhz(); mhz > 0) line["clocks"] = fmt::format("{:.0f} MHz", mhz);
  if (!peer) {
    line["peer"] = "standard";
    line["ratio"] = result.peer_seconds / result.seconds;
  }
  return line;
}

Result measure(const OneCell& cell, const BenchOptions& options, Machine& machine) {
  Ours ours(cell, machine);
  Theirs theirs(cell, machine.workers());
  std::vector<double> our_times, their_times;
  for (int round = 0; round <= options.rounds; ++round) {  // the first warms up
    // Each side goes first as often as second.
    for (int side = 0; side < 2; ++side) {
      const bool mine = (side == 0) == (round % 2 == 0);
      const double seconds = mine ? burst([&] { ours.call(); }) : burst([&] { theirs.call(); });
      if (round > 0) (mine ? our_times : their_times).push_back(seconds);
    }
  }
  return {cell, ours.implementation(), median(our_times), median(their_times)};
}

void print_results(const std::vector<Result>& results, const Limits& limits) {
  Table table({{"operation", Table::Align::kLeft}, {"type", Table::Align::kLeft}, {"heads"}, {"dim"}, {"q"}, {"k"},
               {"mask", Table::Align::kLeft}, {"layout", Table::Align::kLeft}, {"time"}, {"rate"}, {"limit"},
               {"standard"}, {"speedup"}});
  for (const Result& result : results) {
    const OneCell& cell = result.cell;
    const bool decode = cell.op == "decode";
    const double rate = (decode ? cell.kv_bytes(cell.dtype) : cell.flops()) / result.seconds;
    const double limit = decode ? limits.read_bytes : cell.dtype == Dtype::kF32 ? limits.fma_flops : 0.0;
    table.add({cell.op, tegula::name(cell.dtype), fmt::format("{}/{}", cell.heads_q, cell.heads_kv),
               std::to_string(cell.head_dim), std::to_string(cell.seqlen_q), std::to_string(cell.seqlen_k),
               cell.causal ? "causal" : "full", cell.layout(), time_text(result.seconds),
               fmt::format("{:.1f} {}", rate / 1e9, decode ? "GB/s" : "GFLOP/s"),
               limit > 0 ? fmt::format("{:.0f} %", 100 * rate / limit) : "-", time_text(result.peer_seconds),
               fmt::format("{:.2f}x", result.peer_seconds / result.seconds)});
  }
  fmt::print("{}\n", table.text());
  fmt::print("limit: of {:.1f} GFLOP/s of fp32 multiply-adds", limits.fma_flops / 1e9);
  if (limits.read_bytes > 0) fmt::print(", of {:.1f} GB/s read from memory", limits.read_bytes / 1e9);
  fmt::print(", measured in this run.\nstandard: materialised scores, fp32, the same threads.\n");
}

void list(const BenchOptions& options, Session& session) {
  Json shapes = Json::array();
  for (const Cell& cell : suite_cpu(class_of(cpu::cpu_info()), static_cast<int>(choose_cpus(options.machine.threads).size()))) {
    if (matches(options.filter, cell.name)) shapes.push_back(shape_of(cell));
  }
  if (session.json) return print_json(shapes);
  for (const Json& shape : shapes) fmt::print("{}\n", shape["cell"].get<std::string>());
}

void bench(const BenchOptions& options, Session& session) {
  if (options.list) return list(options, session);
  if (options.suites == std::vector<std::string>{"cpu"}) throw Failure("--suite cpu: only --list yet");
  const std::vector<OneCell> cells = cells_of(options);
  Machine machine(options.machine);
  std::ofstream out;
  if (!options.out.empty()) {
    out.open(options.out, std::ios::app);
    if (!out) throw Failure(fmt::format("{}: cannot be opened for appending", options.out));
  }
  Limits limits;
  limits.fma_flops = measure_fma(machine.workers());
  const bool decodes = std::any_of(cells.begin(), cells.end(), [](const OneCell& c) { return c.op == "decode"; });
  if (decodes) limits.read_bytes = measure_read(machine.workers());
  std::vector<Result> results;
  Json lines = Json::array();
  {
    Progress progress("measuring", static_cast<std::int64_t>(cells.size()));
    for (const OneCell& cell : cells) {
      results.push_back(measure(cell, options, machine));
      for (const bool peer : {false, true}) {
        lines.push_back(line_of(options, machine, limits, results.back(), peer));
        if (out.is_open()) out << lines.back().dump() << '\n' << std::flush;
      }
      progress.advance();
    }
  }
  if (!options.out.empty() && !out) throw Failure(fmt::format("{}: cannot be written", options.out));
  if (session.json) {
    print_json(lines);
  } else {
    print_results(results, limits);
  }
}

}  // namespace

void add_bench(CLI::App& program, Session& session) {
  CLI::App* command =
      add_command(program, session, "bench",
                  "Measure forward and decode beside standard attention: alternating rounds, medians of both, and\n"
                  "what the machine can do at best. --out appends one JSON line a result to a file.");
  auto options = std::make_shared<BenchOptions>();
  BenchOptions& o = *options;
  command->add_option("--suite", o.suites, "forward, decode (default: both); cpu")
      ->delimiter(',')
      ->check(CLI::IsMember({"forward", "decode", "cpu"}))
      ->type_name("NAME,...");
  command->add_option("--dtype", o.dtypes, "Types (default: fp32, bf16, fp16)")->delimiter(',')->type_name("TYPE,...");
  command->add_option("--head-dim", o.head_dims, "forward: head dims (default: 64, 128)")
      ->delimiter(',')
      ->check(CLI::Range(1, 512))
      ->type_name("N,...");
  command->add_option("--mask", o.masks, "forward: full, causal (default: both)")
      ->delimiter(',')
      ->check(CLI::IsMember({"full", "causal"}))
      ->type_name("NAME,...");
  command->add_option("--seqlen", o.seqlens, "forward: lengths (default: 128, 512, 1024, 2048)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16))
      ->type_name("N,...");
  command->add_option("--context", o.context, "decode: keys, a multiple of 16")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  command->add_option("--rounds", o.rounds, "Kept rounds")->check(CLI::Range(1, 1000))->capture_default_str();
  command->add_option("--out", o.out, "Append result lines to this file")->type_name("FILE");
  command->add_option("--commit", o.commit, "Commit to write into the lines")->type_name("HASH");
  command->add_flag("--list", o.list, "Print the cells of suite cpu, with --json their shapes");
  command->add_option("--filter", o.filter, "Only cells whose names match")->type_name("PATTERN,...");
  add_machine(*command, o.machine);
  command->callback([options, &session] { bench(*options, session); });
}

}  // namespace tegula::program
