// SPDX-License-Identifier: Apache-2.0
// Where a call runs (Device) and with what (Executor, Execution).
#pragma once

#include <tegula/tegula.h>
#include <tegula/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tegula {
inline namespace v1 {

// Plain data for planning. Default: this machine's CPU.
class Device {
 public:
  Device() { check(tegula_device_init(&device_)); }
  // The index-th GPU that the driver shows; throws if there is none.
  static Device cuda(int32_t index = 0) {
    Device device;
    check(tegula_cuda_device_init(&device.device_, index));
    return device;
  }
  // A GPU that need not be there: plans can be made for it. compute_capability: 90 = sm_90.
  static Device cuda(int32_t index, int32_t compute_capability, int32_t num_sms) {
    Device device;
    device.device_.kind = TEGULA_CUDA;
    device.device_.index = index;
    device.device_.compute_capability = compute_capability;
    device.device_.num_sms = num_sms;
    return device;
  }

  bool is_cuda() const { return device_.kind == TEGULA_CUDA; }

  // Tasks that may run at once; scratch is sized by it.
  int32_t num_workers() const { return device_.num_workers; }
  Device& set_num_workers(int32_t count) {
    device_.num_workers = count;
    return *this;
  }
  Device& set_isa(tegula_isa isa) {
    device_.isa = isa;
    return *this;
  }

  tegula_device& c() { return device_; }
  const tegula_device& c() const { return device_; }

 private:
  tegula_device device_;
};

// One parallel loop's body: task(t, worker) runs task t on behalf of a worker.
class Task {
 public:
  Task(tegula_task_fn fn, void* argument) : fn_(fn), argument_(argument) {}
  void operator()(int64_t task, int32_t worker) const { fn_(argument_, task, worker); }

 private:
  tegula_task_fn fn_;
  void* argument_;
};

// Your own threads. Derive from it, override parallel_for, and pass it in Execution.
class Executor {
 public:
  // num_workers: tasks it may run at once, at most the Device's that the plan was made for.
  explicit Executor(int32_t num_workers) {
    check(tegula_executor_init(&executor_));
    executor_.context = this;
    executor_.parallel_for = [](void* context, int64_t count, tegula_task_fn fn, void* argument) {
      static_cast<Executor*>(context)->parallel_for(count, Task(fn, argument));
    };
    executor_.num_workers = num_workers;
  }
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs task(t, worker) once for each t in [0, count), in any order, 0 <= worker < num_workers,
  // one task at a time per worker, and returns when all are done. Must not throw.
  virtual void parallel_for(int64_t count, Task task) noexcept = 0;

  int32_t num_workers() const { return executor_.num_workers; }
  const tegula_executor* c() const { return &executor_; }

 private:
  tegula_executor executor_;
};

// How to run one call; everything has a default.
struct Execution {
  Executor* executor = nullptr;  // CPU; null: the library's thread pool
  // On the plan's device, at least Plan::workspace_size() bytes; empty: from the library.
  std::span<std::byte> workspace = {};
  void* stream = nullptr;         // CUDA; null: the default stream of the plan's device
  int32_t* error_word = nullptr;  // CUDA, there: 1 + the index of a sequence with bad indices

  // The same as a C structure; it points to the executor.
  tegula_execution c() const {
    tegula_execution execution;
    check(tegula_execution_init(&execution));
    execution.executor = executor != nullptr ? executor->c() : nullptr;
    execution.stream = stream;
    execution.workspace = workspace.empty() ? nullptr : workspace.data();
    execution.workspace_size = workspace.size();
    execution.error_word = error_word;
    return execution;
  }
};

}  // namespace v1
}  // namespace tegula
