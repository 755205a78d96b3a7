// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/verify.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/cases/append_case.hpp"
#include "tests/cases/combine_case.hpp"

namespace tegula::cases {
namespace {

constexpr int kOtherFill = 0x5a;

// The end of a call: fine, refused by name, or an error with its text.
struct Answer {
  tegula_status status = TEGULA_OK;
  std::string text;

  static Answer from(tegula_status status) {
    return {status, status == TEGULA_OK ? std::string() : std::string(tegula_last_error())};
  }
};

struct PlanDeleter {
  void operator()(tegula_plan* plan) const { tegula_plan_destroy(plan); }
};
using PlanPointer = std::unique_ptr<tegula_plan, PlanDeleter>;

CaseResult failure(const Case& item, std::string text, double worst = 0.0) {
  CaseResult result;
  result.id = item.id;
  result.outcome = Outcome::kFailed;
  result.text = std::move(text);
  result.worst = worst;
  return result;
}

// A call that did not run: TEGULA_UNSUPPORTED is a refusal, anything else an error.
CaseResult not_run(const Case& item, const Answer& answer, const std::string& written) {
  if (!written.empty()) return failure(item, written);
  if (answer.status != TEGULA_UNSUPPORTED) {
    return failure(item, std::string(tegula_status_name(answer.status)) + ": " + answer.text);
  }
  CaseResult result;
  result.id = item.id;
  result.outcome = Outcome::kRefused;
  result.text = answer.text;
  return result;
}

class ForwardRun {
 public:
  ForwardRun(const Case& item, const VerifyOptions& options) : item_(item), options_(options) {}

  CaseResult run() {
    ForwardData aligned(item_, Placement::kAligned, kPoison);
    const std::string inputs_before = inputs_of(aligned);
    Answer answer = prepare(aligned);
    if (answer.status == TEGULA_OK) answer = call(aligned, false);
    if (answer.status != TEGULA_OK) return not_run(item_, answer, aligned.untouched());

    CaseResult result;
    result.id = item_.id;
    const ForwardReference reference(aligned, options_.device_class);
    const Verdict verdict = reference.judge(aligned);
    if (!verdict.passed()) return failure(item_, verdict.text(), verdict.worst);
    result.worst = verdict.worst;
    const std::vector<std::byte> bits = aligned.used_bits();

    // Another address, other content of outputs and workspace: the same bits.
    ForwardData guarded(item_, Placement::kGuarded, kOtherFill);
    for (int n = 1; n < std::max(options_.repeats, 2); ++n) {
      ForwardData& data = n % 2 == 1 ? guarded : aligned;
      if (n > 1) data.refill_outputs(n % 4 < 2 ? kPoison : kOtherFill);
      const Answer again = call(data, n % 2 == 1);
      if (again.status != TEGULA_OK) {
        return failure(item_, "run " + std::to_string(n + 1) + ": " + again.text);
      }
      if (data.used_bits() != bits) {
        return failure(item_, "run " + std::to_string(n + 1) + " gave other bits than the first");
      }
      const std::string damage = data.damage();
      if (!damage.empty()) return failure(item_, damage);
    }
    if (inputs_of(aligned) != inputs_before) return failure(item_, "an input was written");
    if (options_.naive) {
      aligned.refill_outputs(kPoison);
      run_naive(aligned);
      result.naive = reference.judge(aligned).worst;
    }
    return result;
  }

 private:
  Answer prepare(const ForwardData& data) {
    tegula_status status = data.problem(&problem_);
    if (status != TEGULA_OK || options_.runner.forward) return Answer::from(status);
    tegula_plan* plan = nullptr;
    status = tegula_plan_create(
        &problem_, options_.device.struct_size != 0 ? &options_.device : nullptr, &plan);
    if (status != TEGULA_OK) return Answer::from(status);
    plan_.reset(plan);
    info_.struct_size = sizeof info_;
    status = tegula_plan_get_info(plan, &info_);
    if (status != TEGULA_OK) return Answer::from(status);
    return Answer::from(tegula_prepare(plan));
  }

  // With a workspace of exactly the told size, ending at a guard page and full of NaN, or from the
  // process-wide pool.
  Answer call(ForwardData& data, bool own_workspace) {
    if (options_.runner.forward) return Answer::from(options_.runner.forward(problem_, data));
    tegula_execution execution{};
    tegula_execution_init(&execution);
    execution.executor = options_.executor;
    if (own_workspace && info_.scratch_bytes > 0) {
      if (workspace_.size() == 0) {
        workspace_ = Memory((info_.scratch_bytes + 63) / 64 * 64, Placement::kGuarded, kPoison);
      }
      workspace_.fill(kPoison);
      execution.workspace = workspace_.data();
      execution.workspace_size = info_.scratch_bytes;
    }
    return Answer::from(tegula_forward(plan_.get(), &data.args(), &execution));
  }

  static std::string inputs_of(const ForwardData& data) {
    std::string bytes;
    for (const Operand* operand : {&data.q, &data.k, &data.v, &data.bias}) {
      bytes.append(reinterpret_cast<const char*>(operand->memory.data()), operand->memory.size());
    }
    return bytes;
  }

  const Case& item_;
  const VerifyOptions& options_;
  tegula_problem problem_{};
  tegula_plan_info info_{};
  PlanPointer plan_;
  Memory workspace_;
};

tegula_execution execution_of(const VerifyOptions& options) {
  tegula_execution execution{};
  tegula_execution_init(&execution);
  execution.executor = options.executor;
  return execution;
}

CaseResult run_append(const Case& item, const VerifyOptions& options) {
  const tegula_execution execution = execution_of(options);
  CaseResult result;
  result.id = item.id;
  for (const Placement placement : {Placement::kAligned, Placement::kGuarded}) {
    const AppendData data(item, placement,
                          placement == Placement::kAligned ? kPoison : kOtherFill);
    const Answer answer = Answer::from(tegula_append_kv(&data.args(), &execution));
    if (answer.status != TEGULA_OK) return not_run(item, answer, data.untouched());
    const std::string text = data.judge();
    if (!text.empty()) return failure(item, text);
  }
  return result;
}

CaseResult run_combine(const Case& item, const VerifyOptions& options) {
  const tegula_execution execution = execution_of(options);
  CaseResult result;
  result.id = item.id;
  std::vector<std::byte> bits;
  for (int n = 0; n < std::max(options.repeats, 2); ++n) {
    const bool first = n % 2 == 0;
    const CombineData data(item, first ? Placement::kAligned : Placement::kGuarded,
                           first ? kPoison : kOtherFill);
    const Answer answer = Answer::from(tegula_combine(&data.args(), &execution));
    if (answer.status != TEGULA_OK) return not_run(item, answer, data.untouched());
    if (n < 2) {
      const Verdict verdict = data.judge();
      if (!verdict.passed()) return failure(item, verdict.text(), verdict.worst);
      result.worst = std::max(result.worst, verdict.worst);
    }
    if (n == 0) bits = data.used_bits();
    if (data.used_bits() != bits) {
      return failure(item, "run " + std::to_string(n + 1) + " gave other bits than the first");
    }
  }
  return result;
}

bool selected(const Case& item, const VerifyOptions& options) {
  for (const std::string& tag : options.tags) {
    if (!item.has_tag(tag)) return false;
  }
  if (options.select && !options.select(item)) return false;
  if (options.filters.empty()) return true;
  return std::any_of(options.filters.begin(), options.filters.end(), [&](const std::string& text) {
    return item.id.find(text) != std::string::npos;
  });
}

}  // namespace

const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed: return "passed";
    case Outcome::kFailed: return "failed";
    case Outcome::kRefused: return "refused";
    case Outcome::kSkipped: return "skipped";
  }
  return "?";
}

std::map<std::string, std::string> load_refusals(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error(path + ": cannot be read");
  std::map<std::string, std::string> refusals;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    line = line.substr(0, line.find('#'));
    std::istringstream words(line);
    std::string id;
    if (!(words >> id)) continue;
    std::string cell;
    std::getline(words >> std::ws, cell);
    const std::string place = path + ":" + std::to_string(number) + ": ";
    if (cell.empty()) throw std::runtime_error(place + id + " names no cell of the contract");
    if (!refusals.emplace(id, cell).second) throw std::runtime_error(place + id + " stands twice");
  }
  return refusals;
}

CaseResult verify_case(const Case& item, const VerifyOptions& options,
                       const std::map<std::string, std::string>& refusals) {
  CaseResult result;
  try {
    switch (item.op) {
      case Op::kForward: result = ForwardRun(item, options).run(); break;
      case Op::kAppendKv: result = run_append(item, options); break;
      case Op::kCombine: result = run_combine(item, options); break;
    }
  } catch (const std::exception& error) {
    result = failure(item, error.what());
  }
  const auto listed = refusals.find(item.id);
  if (result.outcome == Outcome::kRefused && listed == refusals.end()) {
    return failure(item, "refused, but not on the list of refusals: " + result.text);
  }
  if (result.outcome == Outcome::kPassed && listed != refusals.end()) {
    return failure(item, "runs, but stands on the list of refusals (" + listed->second +
                             "): remove it there");
  }
  return result;
}

Totals verify_all(const VerifyOptions& options, const VerifyCallback& callback) {
  const std::vector<Case> table = load_table(options.table);
  const bool cuda = options.device_class == oracle::DeviceClass::kCuda;
  const std::map<std::string, std::string> refusals = load_refusals(
      !options.refusals.empty()
          ? options.refusals
          : default_folder() + "/refusals/" + (cuda ? "cuda.txt" : "cpu.txt"));
  std::set<std::string> ids;
  for (const Case& item : table) ids.insert(item.id);
  for (const auto& [id, cell] : refusals) {
    if (ids.count(id) == 0) throw std::runtime_error("refusals: no case has the id " + id);
  }
  std::vector<const Case*> chosen;
  for (const Case& item : table) {
    if (selected(item, options)) chosen.push_back(&item);
  }

  Totals totals;
  std::mutex mutex;
  std::int64_t done = 0;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stop{false};
  const auto work = [&] {
    for (std::size_t n = next++; n < chosen.size(); n = next++) {
      CaseResult result;
      if (stop) {
        result.id = chosen[n]->id;
        result.outcome = Outcome::kSkipped;
        result.text = "after the first failure";
      } else {
        result = verify_case(*chosen[n], options, refusals);
      }
      const std::lock_guard<std::mutex> lock(mutex);
      switch (result.outcome) {
        case Outcome::kPassed: ++totals.passed; break;
        case Outcome::kFailed: ++totals.failed; break;
        case Outcome::kRefused: ++totals.refused; break;
        case Outcome::kSkipped: ++totals.skipped; break;
      }
      if (result.outcome == Outcome::kFailed && options.stop_at_first_failure) stop = true;
      if (callback) callback(result, ++done, static_cast<std::int64_t>(chosen.size()));
    }
  };
  std::vector<std::thread> threads;
  for (int n = 1; n < options.jobs; ++n) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return totals;
}

}  // namespace tegula::cases
