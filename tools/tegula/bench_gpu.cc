// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/bench_gpu.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "tests/cases/random.hpp"
#include "tests/oracle/formats.hpp"
#include "tools/tegula/library.hpp"
#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

constexpr int kSets = 2;                 // of operands, in turn: more than twice any L2
constexpr std::size_t kSlack = 256;      // behind a tensor, for those that begin 2 bytes late
constexpr std::size_t kBlock = 1 << 22;  // random elements, repeated

class GpuMemory {
 public:
  GpuMemory(cases::Gpu& gpu, std::size_t bytes) : gpu_(gpu), bytes_(bytes) {
    const cases::GpuScope scope(gpu_);
    cases::check_gpu(gpu_.driver().cuMemAlloc_v2(&address_, std::max<std::size_t>(bytes, 1)),
                     "cuMemAlloc");
  }
  ~GpuMemory() {
    cuda::ContextGuard guard;
    if (guard.enter(gpu_.index()).ok()) static_cast<void>(gpu_.driver().cuMemFree_v2(address_));
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  cuda::CUdeviceptr address() const { return address_; }
  std::size_t bytes() const { return bytes_; }

 private:
  cases::Gpu& gpu_;
  std::size_t bytes_;
  cuda::CUdeviceptr address_ = 0;
};

// About normal: sums of uniform numbers (tests/cases/random.hpp).
std::vector<std::uint16_t> random_block(Dtype dtype, std::uint64_t seed) {
  std::vector<std::uint16_t> block(kBlock);
  for (std::size_t i = 0; i < kBlock; ++i)
    oracle::store(format_of(dtype), reinterpret_cast<std::byte*>(&block[i]),
                  cases::value(seed, i, 0), false);
  return block;
}

// Bytes of the largest q (or k, v, o) of the cells.
std::size_t largest_tensor(const std::vector<Cell>& cells) {
  std::size_t largest = 0;
  for (const Cell& cell : cells) {
    const std::int64_t rows = std::max(cell.rows() * cell.heads_q, cell.kv_rows() * cell.heads_kv);
    const auto bytes = static_cast<std::size_t>(rows * std::max(cell.head_dim, cell.value_dim())) *
                       size_of(cell.dtype);
    largest = std::max(largest, bytes);
  }
  return largest + kSlack;
}

// One type's random operands, shared by all cells.
class Arena {
 public:
  Arena(cases::Gpu& gpu, Dtype dtype, std::size_t bytes) {
    const std::vector<std::uint16_t> block = random_block(dtype, 7 + static_cast<unsigned>(dtype));
    const cases::GpuScope scope(gpu);
    cases::GpuStream stream(gpu);
    const GpuMemory source(gpu, 2 * kBlock);
    cases::check_gpu(
        gpu.driver().cuMemcpyHtoDAsync_v2(source.address(), block.data(), 2 * kBlock, stream.get()),
        "cuMemcpyHtoDAsync");
    for (int n = 0; n < 4 * kSets; ++n) {
      tensors_.push_back(std::make_unique<GpuMemory>(gpu, bytes));
      // Each begins at another place of the block, so that no two are alike.
      std::size_t from = 2 * ((static_cast<std::size_t>(n) * 1048583) % kBlock);
      for (std::size_t to = 0; to < bytes;) {
        const std::size_t length = std::min(bytes - to, 2 * kBlock - from);
        cases::check_gpu(
            gpu.driver().cuMemcpyDtoDAsync_v2(tensors_.back()->address() + to,
                                              source.address() + from, length, stream.get()),
            "cuMemcpyDtoDAsync");
        to += length;
        from = 0;
      }
    }
    stream.synchronize();
  }
  std::byte* tensor(int set, int which) const {
    return tensors_[static_cast<std::size_t>(4 * set + which)]->data();
  }

 private:
  std::vector<std::unique_ptr<GpuMemory>> tensors_;
};

// A planned call on each set of operands.
class GpuCall {
 public:
  GpuCall(cases::Gpu& gpu, const Cell& cell, const Arena& arena, cases::GpuStream& stream)
      : gpu_(gpu), stream_(stream) {
    const std::vector<std::int32_t> offsets = offsets_of(cell);
    const std::vector<float> sinks(static_cast<std::size_t>(cell.heads_q), 1.0F);
    offsets_ = std::make_unique<GpuMemory>(gpu, offsets.size() * sizeof(std::int32_t));
    sinks_ = std::make_unique<GpuMemory>(gpu, sinks.size() * sizeof(float));
    lse_ = std::make_unique<GpuMemory>(
        gpu, static_cast<std::size_t>(cell.rows() * cell.heads_q) * sizeof(float));
    upload(*offsets_, offsets.data());
    upload(*sinks_, sinks.data());
    for (int set = 0; set < kSets; ++set) args_.push_back(args_of(cell, arena, set));
    plan_ = std::make_unique<Plan>(problem_of(cell, args_[0]), device_of(gpu));
    plan_->prepare();
    workspace_ = std::make_unique<GpuMemory>(gpu, plan_->workspace_size());
    execution_.stream = stream.get();
    if (plan_->workspace_size() > 0)
      execution_.workspace = {workspace_->data(), plan_->workspace_size()};
  }

  std::string implementation() const { return plan_->info().implementation; }
  void call() {
    plan_->forward(args_[next_], execution_);
    next_ = (next_ + 1) % args_.size();
  }

 private:
  static Device device_of(const cases::Gpu& gpu) {
    Device device;
    device.c() = gpu.device();
    return device;
  }
  static std::vector<std::int32_t> offsets_of(const Cell& cell) {
    std::vector<std::int32_t> offsets{0};
    for (const std::int64_t length : cell.lengths)
      offsets.push_back(offsets.back() + static_cast<std::int32_t>(length));
    return offsets;
  }

  void upload(const GpuMemory& to, const void* from) {
    const cases::GpuScope scope(gpu_);
    cases::check_gpu(
        gpu_.driver().cuMemcpyHtoDAsync_v2(to.address(), from, to.bytes(), stream_.get()),
        "cuMemcpyHtoDAsync");
    stream_.synchronize();
  }

  ForwardArgs args_of(const Cell& cell, const Arena& arena, int set) const {
    const std::size_t shift = cell.loads == Loads::kUnaligned ? 2 : 0;
    const auto tensor = [&](int which, std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
      const void* data = arena.tensor(set, which) + shift;
      const Tensor view = cell.ragged()
                              ? Tensor(data, cell.dtype, {cell.rows(), heads, dim})
                              : Tensor(data, cell.dtype, {cell.batch, tokens, heads, dim});
      return view.on_cuda(gpu_.index());
    };
    const auto on_gpu = [this](const Tensor& view) { return view.on_cuda(gpu_.index()); };
    ForwardArgs args;
    args.q = tensor(0, cell.seqlen_q, cell.heads_q, cell.head_dim);
    args.k = tensor(1, cell.seqlen_k, cell.heads_kv, cell.head_dim);
    args.v = tensor(2, cell.seqlen_k, cell.heads_kv, cell.value_dim());
    args.o = tensor(3, cell.seqlen_q, cell.heads_q, cell.value_dim());
    args.lse = on_gpu(cell.ragged() ? Tensor(lse_->data(), Dtype::kF32, {cell.heads_q, cell.rows()})
                                    : Tensor(lse_->data(), Dtype::kF32,
                                             {cell.batch, cell.heads_q, cell.seqlen_q}));
    if (cell.ragged()) {
      const auto count = static_cast<std::int64_t>(cell.lengths.size()) + 1;
      args.cu_seqlens_q = args.cu_seqlens_k =
          Index(on_gpu(Tensor(offsets_->data(), Dtype::kI32, {count})));
    }
    if (cell.sink) args.sink = on_gpu(Tensor(sinks_->data(), Dtype::kF32, {cell.heads_q}));
    return args;
  }

  static Problem problem_of(const Cell& cell, const ForwardArgs& args) {
    Options options;
    options.causal = cell.mask != CellMask::kFull;
    options.window_left = cell.mask == CellMask::kWindow ? cell.window_left : -1;
    options.softcap = cell.softcap;
    if (cell.ragged()) {
      options.max_seqlen_q = options.max_seqlen_k =
          *std::max_element(cell.lengths.begin(), cell.lengths.end());
    }
    Problem problem(args, options);
    if (cell.loads == Loads::kPlain) {
      problem.c().unaligned = TEGULA_UNALIGNED_Q | TEGULA_UNALIGNED_K | TEGULA_UNALIGNED_V;
    }
    return problem;
  }

  cases::Gpu& gpu_;
  cases::GpuStream& stream_;
  std::unique_ptr<GpuMemory> offsets_, sinks_, lse_, workspace_;
  std::vector<ForwardArgs> args_;
  std::unique_ptr<Plan> plan_;
  Execution execution_;
  std::size_t next_ = 0;
};

class Event {
 public:
  explicit Event(cases::Gpu& gpu) : gpu_(gpu) {
    const cases::GpuScope scope(gpu_);
    cases::check_gpu(gpu_.driver().cuEventCreate(&event_, cuda::CU_EVENT_DEFAULT), "cuEventCreate");
  }
  ~Event() { static_cast<void>(gpu_.driver().cuEventDestroy_v2(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const cases::GpuStream& stream) {
    const cases::GpuScope scope(gpu_);
    cases::check_gpu(gpu_.driver().cuEventRecord(event_, stream.get()), "cuEventRecord");
  }
  double seconds_since(const Event& begin) {
    float milliseconds = 0;
    cases::check_gpu(gpu_.driver().cuEventSynchronize(event_), "cuEventSynchronize");
    cases::check_gpu(gpu_.driver().cuEventElapsedTime(&milliseconds, begin.event_, event_),
                     "cuEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  cases::Gpu& gpu_;
  cuda::CUevent event_ = nullptr;
};

// Seconds of one of `count` calls.
double time_calls(cases::Gpu& gpu, GpuCall& call, cases::GpuStream& stream, int count) {
  Event begin(gpu), end(gpu);
  begin.record(stream);
  for (int n = 0; n < count; ++n) call.call();
  end.record(stream);
  return end.seconds_since(begin) / count;
}

int calls_for(double seconds, double of_one, int most) {
  return static_cast<int>(std::clamp(std::ceil(seconds / of_one), 1.0, static_cast<double>(most)));
}

}  // namespace

double GpuResult::median_seconds() const {
  return median(seconds);
}

std::vector<GpuResult> measure_on_gpu(cases::Gpu& gpu, const Nvml& nvml,
                                      const std::vector<Cell>& cells, const GpuPace& pace,
                                      const std::function<void()>& advance) {
  cases::GpuStream stream(gpu);
  const std::size_t bytes = largest_tensor(cells);
  std::map<Dtype, std::unique_ptr<Arena>> arenas;
  std::vector<std::unique_ptr<GpuCall>> calls;
  std::vector<GpuResult> results;
  for (const Cell& cell : cells) {
    std::unique_ptr<Arena>& arena = arenas[cell.dtype];
    if (!arena) arena = std::make_unique<Arena>(gpu, cell.dtype, bytes);
    GpuResult& result = results.emplace_back();
    result.cell = cell;
    try {
      calls.push_back(std::make_unique<GpuCall>(gpu, cell, *arena, stream));
      result.implementation = calls.back()->implementation();
    } catch (const Error& error) {
      if (error.status() != TEGULA_UNSUPPORTED) throw;
      calls.emplace_back();
      result.refusal = error.what();
    }
  }
  for (int round = 0; round < pace.rounds; ++round) {
    for (std::size_t n = 0; n < cells.size(); ++n) {
      if (calls[n]) {
        std::this_thread::sleep_for(std::chrono::duration<double>(pace.pause));
        const double first = time_calls(gpu, *calls[n], stream, 1);
        time_calls(gpu, *calls[n], stream, calls_for(pace.warm, first, 1000));
        const int count = calls_for(pace.burst, first, pace.most_calls);
        results[n].seconds.push_back(time_calls(gpu, *calls[n], stream, count));
        const Nvml::Reading reading = nvml.read();
        results[n].mhz.push_back(reading.sm_mhz);
        results[n].watts.push_back(reading.watts);
      }
      advance();
    }
  }
  return results;
}

std::string pci_bus_id(cases::Gpu& gpu) {
  char text[32] = "";
  cuda::CUdevice device = 0;
  const bool known =
      gpu.driver().cuDeviceGet(&device, gpu.index()) == cuda::CUDA_SUCCESS &&
      gpu.driver().cuDeviceGetPCIBusId(text, sizeof text, device) == cuda::CUDA_SUCCESS;
  return known ? text : "";
}

}  // namespace tegula::program
