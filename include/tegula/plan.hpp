// SPDX-License-Identifier: Apache-2.0
// Plan: how calls of one kind run, decided once.
#pragma once

#include <tegula/tegula.h>
#include <tegula/error.hpp>
#include <tegula/executor.hpp>
#include <tegula/problem.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tegula {
inline namespace v1 {

// Immutable and cheap to make; may be shared between threads. It serves every layer and every step
// whose tensors have the problem's types and layout and at most its sizes.
class Plan {
 public:
  // Throws Error with TEGULA_UNSUPPORTED and the reasons if no implementation takes the problem.
  explicit Plan(const Problem& problem) : Plan(problem, nullptr) {}
  Plan(const Problem& problem, const Device& device) : Plan(problem, &device.c()) {}
  // On the device that holds the tensors.
  explicit Plan(const ForwardArgs& args, const Options& options = {})
      : Plan(Problem(args, options),
             args.q.is_cuda() ? Device::cuda(args.q.device_index()) : Device()) {}

  // o, lse = attention(q, k, v).
  void forward(const ForwardArgs& args, const Execution& execution = {}) const {
    const tegula_forward_args c_args = args.c();
    const tegula_execution c_execution = execution.c();
    check(tegula_forward(plan_.get(), &c_args, &c_execution));
  }

  // Compiles and loads what the plan may need; nothing to do on the CPU. Else the first forward
  // does.
  void prepare() const { check(tegula_prepare(plan_.get())); }

  // Implementation, tiles, splits and memory as numbers. Its text lives as long as the plan.
  tegula_plan_info info() const {
    tegula_plan_info info;
    check(tegula_plan_info_init(&info));
    check(tegula_plan_get_info(plan_.get(), &info));
    return info;
  }

  // Bytes that Execution::workspace needs if it is given.
  size_t workspace_size() const { return info().scratch_bytes; }

  // For people: what was chosen, and why each earlier candidate was refused.
  std::string explain() const {
    size_t needed = 0;
    check(tegula_explain(plan_.get(), nullptr, 0, &needed));
    std::string text(needed, '\0');
    check(tegula_explain(plan_.get(), text.data(), text.size(), nullptr));
    text.resize(needed - 1);
    return text;
  }

  const tegula_plan* c() const { return plan_.get(); }

 private:
  Plan(const Problem& problem, const tegula_device* device) {
    tegula_plan* plan = nullptr;
    check(tegula_plan_create(&problem.c(), device, &plan));
    plan_.reset(plan);
  }

  struct Destroy {
    void operator()(tegula_plan* plan) const { tegula_plan_destroy(plan); }
  };
  std::unique_ptr<tegula_plan, Destroy> plan_;
};

// Makes and prepares a plan of each problem, so that later ones like them find their kernels loaded:
// for a server's start.
inline void warm_up(std::span<const Problem> problems, const Device& device) {
  std::vector<const tegula_problem*> list;
  for (const Problem& problem : problems) list.push_back(&problem.c());
  check(tegula_warm_up(list.data(), list.size(), &device.c()));
}

}  // namespace v1
}  // namespace tegula
