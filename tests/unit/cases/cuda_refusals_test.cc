// SPDX-License-Identifier: Apache-2.0
// tests/cases/refusals/cuda.txt is what plans for an sm_90 refuse, to the case. No GPU is needed
// for that: `tegula verify --device cuda` runs the others.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/cases/verify.hpp"

namespace tegula::cases {
namespace {

// "" if a plan is made. Throws on anything but a refusal.
std::string refusal_of(const Case& item, const tegula_device& device) {
  const ForwardData data(item, Placement::kAligned, kPoison);
  tegula_problem problem;
  tegula_status status = data.problem(&problem);
  if (status == TEGULA_OK) {
    tegula_plan* plan = nullptr;
    status = tegula_plan_create(&problem, &device, &plan);
    tegula_plan_destroy(plan);
  }
  if (status == TEGULA_OK) return "";
  const std::string text = tegula_last_error();
  EXPECT_EQ(status, TEGULA_UNSUPPORTED) << item.id << ": " << text;
  return text.empty() ? "no text" : text;
}

TEST(CudaRefusals, AreThoseOfTheList) {
  tegula_device device;
  ASSERT_EQ(tegula_device_init(&device), TEGULA_OK);
  device.kind = TEGULA_CUDA;
  device.compute_capability = 90;
  device.num_sms = 132;
  std::map<std::string, std::string> listed =
      load_refusals(default_folder() + "/refusals/cuda.txt");
  int taken = 0;
  for (const Case& item : load_table(default_folder() + "/table")) {
    const auto found = listed.find(item.id);
    const bool is_listed = found != listed.end();
    if (is_listed) listed.erase(found);
    if (item.op != Op::kForward) {
      EXPECT_TRUE(is_listed) << item.id << ": only forward runs on a GPU";
      continue;
    }
    const std::string text = refusal_of(item, device);
    EXPECT_EQ(text.empty(), !is_listed) << item.id << ": " << text;
    taken += text.empty() ? 1 : 0;
  }
  EXPECT_TRUE(listed.empty()) << listed.begin()->first << " is no case";
  EXPECT_GE(taken, 200);
}

}  // namespace
}  // namespace tegula::cases
