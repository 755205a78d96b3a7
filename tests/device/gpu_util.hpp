// SPDX-License-Identifier: Apache-2.0
// Forwards of hand-made cases on the first GPU, for tests of reports and faults.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include <tegula/tegula.h>

#include "tests/cases/forward_device.hpp"
#include "tests/cases/report_cases.hpp"
#include "tests/cases/verify.hpp"

namespace tegula::cases {

// NULL, with the reason, on a machine whose GPU has no kernel.
inline Gpu* first_gpu(std::string& why) {
  std::int64_t works = 0;
  tegula_device device;
  if (tegula_capability(nullptr, "cuda", &works) != TEGULA_OK || works == 0) {
    why = tegula_cuda_device_init(&device, 0) == TEGULA_OK ? "the GPU is no sm_90"
                                                           : tegula_last_error();
    return nullptr;
  }
  static Gpu* const gpu = new Gpu(0);
  return gpu;
}

// Skips, by the driver's own words, where there is no GPU.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    gpu_ = first_gpu(why);
    if (gpu_ == nullptr) GTEST_SKIP() << why;
  }
  Gpu* gpu_ = nullptr;
};

struct PlanDeleter {
  void operator()(tegula_plan* plan) const { tegula_plan_destroy(plan); }
};
using PlanPointer = std::unique_ptr<tegula_plan, PlanDeleter>;
using ChangeProblem = std::function<void(tegula_problem& problem)>;

// "" or the library's words.
inline std::string make_plan(const Gpu& gpu, const tegula_problem& problem, PlanPointer& plan) {
  tegula_plan* made = nullptr;
  if (tegula_plan_create(&problem, &gpu.device(), &made) != TEGULA_OK) return tegula_last_error();
  plan.reset(made);
  return "";
}

// The plan of a case's call as its operands lie on the device; "" or the library's words.
inline std::string plan_call(const Gpu& gpu, const ForwardData& data, DeviceForward& device,
                             PlanPointer& plan, const ChangeProblem& change = {}) {
  tegula_problem problem;
  if (data.problem(device.args(), &problem) != TEGULA_OK) return tegula_last_error();
  if (change) change(problem);
  return make_plan(gpu, problem, plan);
}

// "" if it runs; the outputs are in `data`.
inline std::string run_on(Gpu& gpu, ForwardData& data, const ChangeProblem& change = {}) {
  DeviceForward device(gpu, data, Placement::kGuarded);
  PlanPointer plan;
  const std::string refused = plan_call(gpu, data, device, plan, change);
  if (!refused.empty()) return refused;
  tegula_execution execution;
  tegula_execution_init(&execution);
  execution.stream = device.stream().get();
  execution.error_word = device.error_word();
  if (tegula_forward(plan.get(), &device.args(), &execution) != TEGULA_OK)
    return tegula_last_error();
  device.download_outputs();
  const std::int32_t word = device.read_error_word();
  return word == 0 ? "" : "error word " + std::to_string(word);
}

// "" if it runs and every element is within tolerance.
inline std::string check_on(Gpu& gpu, ForwardData& data, const ChangeProblem& change = {}) {
  const std::string failed = run_on(gpu, data, change);
  if (!failed.empty()) return failed;
  const Verdict verdict = ForwardReference(data, oracle::DeviceClass::kCuda).judge(data);
  const std::string damage = data.damage();
  return !damage.empty() ? damage : verdict.passed() ? "" : verdict.text();
}

inline std::string check_on(Gpu& gpu, const Case& item, const ChangeProblem& change = {}) {
  ForwardData data(item, Placement::kAligned, kPoison);
  return check_on(gpu, data, change);
}

}  // namespace tegula::cases
