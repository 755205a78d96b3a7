// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/run_util.hpp"

#include <gtest/gtest.h>

namespace tegula::cases {

RunResult run_args(const ForwardData& data, const tegula_forward_args& args,
                   const RunOptions& options) {
  const auto answer = [](tegula_status status) {
    return RunResult{status, status == TEGULA_OK ? "" : tegula_last_error()};
  };
  tegula_problem problem{};
  tegula_status status = data.problem(&problem);
  if (status != TEGULA_OK) return answer(status);
  if (&args != &data.args()) {
    tegula_problem described = problem;
    status = tegula_describe_forward(&args, &described);
    if (status != TEGULA_OK) return answer(status);
    problem = described;
  }
  if (options.change) options.change(problem);
  tegula_device device{};
  status = tegula_device_init(&device);
  if (status != TEGULA_OK) return answer(status);
  device.isa = options.isa;
  if (options.num_workers > 0) device.num_workers = options.num_workers;
  tegula_plan* plan = nullptr;
  status = tegula_plan_create(&problem, &device, &plan);
  if (status != TEGULA_OK) return answer(status);
  tegula_execution execution{};
  tegula_execution_init(&execution);
  execution.executor = options.executor;
  const RunResult result = answer(tegula_forward(plan, &args, &execution));
  tegula_plan_destroy(plan);
  return result;
}

RunResult run(const ForwardData& data, const RunOptions& options) {
  return run_args(data, data.args(), options);
}

std::string check(ForwardData& data, const RunOptions& options) {
  const RunResult result = run(data, options);
  if (result.status != TEGULA_OK) return result.error;
  const Verdict verdict = ForwardReference(data, oracle::DeviceClass::kCpu).judge(data);
  return verdict.passed() ? "" : verdict.text();
}

std::string check(const Case& item, const RunOptions& options) {
  ForwardData data(item, Placement::kGuarded, kPoison);
  return check(data, options);
}

std::vector<std::byte> bits_of(ForwardData& data, const RunOptions& options) {
  const RunResult result = run(data, options);
  EXPECT_EQ(result.status, TEGULA_OK) << result.error;
  return result.status == TEGULA_OK ? data.used_bits() : std::vector<std::byte>{};
}

std::vector<std::byte> bits_of(const Case& item, const RunOptions& options) {
  ForwardData data(item, Placement::kAligned, kPoison);
  return bits_of(data, options);
}

std::vector<tegula_isa> isas() {
  std::vector<tegula_isa> list;
  for (const tegula_isa isa :
       {TEGULA_ISA_SCALAR, TEGULA_ISA_AVX2, TEGULA_ISA_AVX512, TEGULA_ISA_AVX512BF16,
        TEGULA_ISA_AMX, TEGULA_ISA_AMX_MODEL}) {
    std::int64_t bits = 0;
    const std::string name = std::string("isa.") + tegula_isa_name(isa);
    if (tegula_capability(nullptr, name.c_str(), &bits) == TEGULA_OK && (bits & 3) == 3) {
      list.push_back(isa);
    }
  }
  return list;
}

}  // namespace tegula::cases
