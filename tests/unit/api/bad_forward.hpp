// SPDX-License-Identifier: Apache-2.0
// One line of a table of bad forward calls, and what every line must show.
#pragma once

#include <ostream>
#include <string>

#include "tests/unit/api/call_fixture.hpp"

namespace tegula_test {

struct BadForward {
  const char* id;
  Layout layout;
  void (*spoil)(ForwardFixture&);
  tegula_status status;
  const char* text;
  bool describe = true;  // the description refuses it already, with the same text
  int32_t q_dtype = TEGULA_F32;
  int32_t kv_dtype = TEGULA_F32;
  void (*prepare)(ForwardFixture&) = nullptr;  // before the plan is made
};

inline void PrintTo(const BadForward& bad, std::ostream* out) {
  *out << bad.id;
}

inline constexpr tegula_status kValue = TEGULA_INVALID_ARGUMENT;
inline constexpr tegula_status kType = TEGULA_WRONG_TYPE;
inline constexpr tegula_status kUnsupported = TEGULA_UNSUPPORTED;
inline constexpr Layout kDense = Layout::kDense;
inline constexpr Layout kRagged = Layout::kRagged;
inline constexpr Layout kPaged = Layout::kPaged;
inline constexpr Layout kIndices = Layout::kPageIndices;
using F = ForwardFixture;

inline void expect_refused(const BadForward& bad) {
  F f(bad.layout, bad.q_dtype, bad.kv_dtype);
  if (bad.prepare != nullptr) bad.prepare(f);
  ASSERT_EQ(f.describe(), TEGULA_OK) << tegula_last_error();
  const PlanHandle plan = make_plan(f.problem);
  bad.spoil(f);
  if (bad.describe) {
    const tegula_problem before = f.problem;
    EXPECT_EQ(f.describe(), bad.status);
    EXPECT_STREQ(tegula_last_error(), bad.text);
    EXPECT_EQ(std::memcmp(&before, &f.problem, sizeof before), 0) << "the problem changed";
  }
  EXPECT_EQ(tegula_forward(plan.get(), &f.args, nullptr), bad.status);
  EXPECT_STREQ(tegula_last_error(), bad.text);
  EXPECT_TRUE(f.outputs_untouched());
}

}  // namespace tegula_test
