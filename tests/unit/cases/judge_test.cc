// SPDX-License-Identifier: Apache-2.0
// The judge itself: right results pass, results that are a little wrong do not.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

#include "tests/cases/append_case.hpp"
#include "tests/cases/combine_case.hpp"
#include "tests/cases/verify.hpp"

namespace tegula::cases {
namespace {

Case case_of(const std::string& id) {
  for (const Case& item : load_table(default_folder() + "/table")) {
    if (item.id == id) return item;
  }
  ADD_FAILURE() << "no case " << id;
  std::abort();
}

Verdict judge(const Case& item, const ChangeSequence& change) {
  ForwardData data(item, Placement::kAligned, kPoison);
  const ForwardReference reference(data, oracle::DeviceClass::kCpu);
  run_oracle(data, change);
  return reference.judge(data);
}

const char* const kLong[] = {"fwd-long-f32-f32", "fwd-long-f16-f16", "fwd-long-bf16-bf16",
                             "fwd-long-bf16-e4m3"};

TEST(Judge, OracleRoundedPasses) {
  for (const char* id : kLong) {
    const Verdict verdict = judge(case_of(id), {});
    EXPECT_TRUE(verdict.passed()) << id << ": " << verdict.text();
    EXPECT_LE(verdict.worst, 0.5) << id;  // half an ulp of a 16-bit o
  }
}

TEST(Judge, EightLostKeysOf4096Fail) {
  for (const char* id : kLong) {
    const Verdict verdict = judge(case_of(id), [](std::int64_t, oracle::Attention& call) {
      call.bias = [](std::int64_t, std::int64_t, std::int64_t j) {
        return j >= 1000 && j < 1008 ? -std::numeric_limits<double>::infinity() : 0.0;
      };
    });
    EXPECT_GT(verdict.worst, 3.0) << id << ": " << verdict.text();
  }
}

TEST(Judge, ScaleOffByTwoThousandthsFails) {
  for (const char* id : kLong) {
    const Verdict verdict = judge(case_of(id), [](std::int64_t, oracle::Attention& call) {
      call.softmax_scale *= 1.002;
    });
    EXPECT_GT(verdict.worst, 3.0) << id << ": " << verdict.text();
  }
}

// A runner of one's own, and every way in which a run can fail.
class JudgedRun : public ::testing::Test {
 protected:
  CaseResult run(std::function<tegula_status(const tegula_problem&, ForwardData&)> forward) {
    VerifyOptions options;
    options.repeats = 4;
    options.runner.forward = std::move(forward);
    return verify_case(item_, options, refusals_);
  }

  Case item_ = case_of("fwd-tail-33");
  std::map<std::string, std::string> refusals_;
};

TEST_F(JudgedRun, Right) {
  const CaseResult result = run([](const tegula_problem&, ForwardData& data) {
    run_oracle(data);
    return TEGULA_OK;
  });
  EXPECT_EQ(result.outcome, Outcome::kPassed) << result.text;
}

TEST_F(JudgedRun, RowsPastTheLastMustStayUntouched) {
  const CaseResult result = run([](const tegula_problem&, ForwardData& data) {
    run_oracle(data);
    data.out.set(0.0, 1, 2, 0, 0);  // the second sequence has one row
    return TEGULA_OK;
  });
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_NE(result.text.find("belongs to no used row"), std::string::npos) << result.text;
}

TEST_F(JudgedRun, AnUnwrittenRowFails) {
  const CaseResult result =
      run([](const tegula_problem&, ForwardData&) { return TEGULA_OK; });
  EXPECT_EQ(result.outcome, Outcome::kFailed);
}

TEST_F(JudgedRun, OtherBitsOnARepeatFail) {
  int calls = 0;
  const CaseResult result = run([&calls](const tegula_problem&, ForwardData& data) {
    run_oracle(data);
    if (++calls == 4) {
      data.set_lse(0, 0, 0, std::nextafter(static_cast<float>(data.lse(0, 0, 0)), 100.0f));
    }
    return TEGULA_OK;
  });
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_NE(result.text.find("run 4 gave other bits"), std::string::npos) << result.text;
}

TEST_F(JudgedRun, WrittenInputsFail) {
  const CaseResult result = run([](const tegula_problem&, ForwardData& data) {
    run_oracle(data);
    data.k.set(0.0, 0, data.k.tensor.shape[1] - 1, 0, 0);
    return TEGULA_OK;
  });
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_EQ(result.text, "an input was written");
}

TEST_F(JudgedRun, RefusalsCountOnlyIfTheyAreListed) {
  const auto refuse = [](const tegula_problem&, ForwardData&) { return TEGULA_UNSUPPORTED; };
  EXPECT_EQ(run(refuse).outcome, Outcome::kFailed);
  refusals_[item_.id] = "some cell";
  EXPECT_EQ(run(refuse).outcome, Outcome::kRefused);
  const auto right = [](const tegula_problem&, ForwardData& data) {
    run_oracle(data);
    return TEGULA_OK;
  };
  EXPECT_EQ(run(right).outcome, Outcome::kFailed);
  const auto error = [](const tegula_problem&, ForwardData&) { return TEGULA_INVALID_ARGUMENT; };
  EXPECT_EQ(run(error).outcome, Outcome::kFailed);
  const auto scribble = [](const tegula_problem&, ForwardData& data) {
    data.set_lse(0, 0, 0, 1.0);
    return TEGULA_UNSUPPORTED;
  };
  EXPECT_EQ(run(scribble).outcome, Outcome::kFailed);
}

// Every forward case can be made, and the oracle's own rows pass in every layout.
TEST(Judge, OraclePassesItsOwnTable) {
  VerifyOptions options;
  options.tags = {"fast"};
  options.filters = {"pair-", "fwd-"};
  options.repeats = 2;
  options.runner.forward = [](const tegula_problem&, ForwardData& data) {
    run_oracle(data);
    return TEGULA_OK;
  };
  const Totals totals = verify_all(options, [](const CaseResult& result, std::int64_t, std::int64_t) {
    if (result.id.find("refused") != std::string::npos) return;
    EXPECT_EQ(result.outcome, Outcome::kPassed) << result.id << ": " << result.text;
  });
  EXPECT_GE(totals.passed, 250);
}

TEST(Judge, AppendSeesEveryByte) {
  const AppendData data(case_of("append-bf16-e4m3-page_table"), Placement::kAligned, 0x5a);
  EXPECT_NE(data.judge(), "");  // nothing was appended
}

TEST(Judge, CombineNeedsRightRows) {
  const CombineData data(case_of("combine-3-f32-f32"), Placement::kAligned, 0x5a);
  EXPECT_FALSE(data.judge().passed());
}

}  // namespace
}  // namespace tegula::cases
