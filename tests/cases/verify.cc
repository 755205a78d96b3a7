// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/verify.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/cases/append_case.hpp"
#include "tests/cases/combine_case.hpp"
#include "tests/cases/forward_device.hpp"

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

// One placement of a case's operands; on a GPU if the run has one.
class ForwardSide {
 public:
  ForwardSide(const Case& item, Gpu* gpu, Placement placement, int output_fill)
      : data(item, placement, output_fill) {
    if (gpu != nullptr) device_.emplace(*gpu, data, placement);
  }

  const tegula_forward_args& args() const { return device_ ? device_->args() : data.args(); }
  tegula_status problem(tegula_problem* out) const { return data.problem(args(), out); }

  // A forward whose outputs are in `data` afterwards, whatever becomes of it.
  Answer call(const tegula_plan* plan, tegula_execution& execution) {
    if (!device_) return Answer::from(tegula_forward(plan, &data.args(), &execution));
    device_->upload_outputs();
    execution.stream = device_->stream().get();
    execution.error_word = device_->error_word();
    const Answer answer = Answer::from(tegula_forward(plan, &device_->args(), &execution));
    device_->download_outputs();
    return answer;
  }

  std::string changed_inputs() {
    if (device_) return device_->changed_inputs();
    return inputs() == inputs_before_ ? "" : "an input was written";
  }
  // The cases' indices are good: nothing may be reported.
  std::string reported() {
    const std::int32_t word = device_ ? device_->read_error_word() : 0;
    return word == 0 ? "" : "the error word is " + std::to_string(word);
  }

  ForwardData data;

 private:
  std::string inputs() const {
    std::string bytes;
    for (const Operand* operand : {&data.q, &data.k, &data.v, &data.bias}) {
      bytes.append(reinterpret_cast<const char*>(operand->memory.data()), operand->memory.size());
    }
    return bytes;
  }

  std::optional<DeviceForward> device_;
  std::string inputs_before_ = inputs();
};

class ForwardRun {
 public:
  ForwardRun(const Case& item, const VerifyOptions& options) : item_(item), options_(options) {}

  CaseResult run() {
    ForwardSide aligned(item_, options_.gpu, Placement::kAligned, kPoison);
    Answer answer = prepare(aligned);
    if (answer.status == TEGULA_OK) answer = call(aligned, false);
    if (answer.status != TEGULA_OK) return not_run(item_, answer, aligned.data.untouched());

    CaseResult result;
    result.id = item_.id;
    const ForwardReference reference(aligned.data, options_.device_class);
    const Verdict verdict = reference.judge(aligned.data);
    if (!verdict.passed()) return failure(item_, verdict.text(), verdict.worst);
    result.worst = verdict.worst;
    const std::vector<std::byte> bits = aligned.data.used_bits();

    // Another address, other content of outputs and workspace: the same bits.
    ForwardSide guarded(item_, options_.gpu, Placement::kGuarded, kOtherFill);
    for (int n = 1; n < std::max(options_.repeats, 2); ++n) {
      ForwardSide& side = n % 2 == 1 ? guarded : aligned;
      if (n > 1) side.data.refill_outputs(n % 4 < 2 ? kPoison : kOtherFill);
      const Answer again = call(side, n % 2 == 1);
      if (again.status != TEGULA_OK) {
        return failure(item_, "run " + std::to_string(n + 1) + ": " + again.text);
      }
      if (side.data.used_bits() != bits) {
        return failure(item_, "run " + std::to_string(n + 1) + " gave other bits than the first");
      }
      const std::string damage = side.data.damage();
      if (!damage.empty()) return failure(item_, damage);
    }
    for (ForwardSide* side : {&aligned, &guarded}) {
      const std::string changed = side->changed_inputs();
      if (!changed.empty()) return failure(item_, changed);
      const std::string reported = side->reported();
      if (!reported.empty()) return failure(item_, reported);
    }
    if (options_.naive) {
      aligned.data.refill_outputs(kPoison);
      run_naive(aligned.data);
      result.naive = reference.judge(aligned.data).worst;
    }
    return result;
  }

 private:
  Answer prepare(const ForwardSide& side) {
    tegula_status status = side.problem(&problem_);
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
  Answer call(ForwardSide& side, bool own_workspace) {
    if (options_.runner.forward) return Answer::from(options_.runner.forward(problem_, side.data));
    tegula_execution execution{};
    tegula_execution_init(&execution);
    execution.executor = options_.executor;
    if (own_workspace && info_.scratch_bytes > 0) {
      execution.workspace = workspace();
      execution.workspace_size = info_.scratch_bytes;
    }
    return side.call(plan_.get(), execution);
  }

  void* workspace() {
    const std::size_t size = (info_.scratch_bytes + 63) / 64 * 64;
    if (options_.gpu != nullptr) {
      if (device_workspace_.size() == 0) {
        device_workspace_ = DeviceBlock(*options_.gpu, size, Placement::kGuarded);
      }
      GpuStream stream(*options_.gpu);
      stream.fill(device_workspace_, kPoison);
      stream.synchronize();
      return device_workspace_.data();
    }
    if (workspace_.size() == 0) workspace_ = Memory(size, Placement::kGuarded, kPoison);
    workspace_.fill(kPoison);
    return workspace_.data();
  }

  const Case& item_;
  const VerifyOptions& options_;
  tegula_problem problem_{};
  tegula_plan_info info_{};
  PlanPointer plan_;
  Memory workspace_;
  DeviceBlock device_workspace_;
};

tegula_execution execution_of(const VerifyOptions& options) {
  tegula_execution execution{};
  tegula_execution_init(&execution);
  execution.executor = options.executor;
  return execution;
}

// An operation that no kernel of a GPU does yet: the refusal looks at the tensors' device alone, and
// their memory stays the host's.
template <typename Data, typename Call>
CaseResult refused_on_gpu(const Case& item, Data& data, int index, Call call) {
  data.claim_gpu(index);
  const Answer answer = Answer::from(call(&data.args(), nullptr));
  if (answer.status == TEGULA_OK) return failure(item, "runs, but verify keeps it in host memory");
  return not_run(item, answer, data.untouched());
}

CaseResult run_append(const Case& item, const VerifyOptions& options) {
  if (options.gpu != nullptr) {
    AppendData data(item, Placement::kAligned, kPoison);
    return refused_on_gpu(item, data, options.gpu->index(), tegula_append_kv);
  }
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
  if (options.gpu != nullptr) {
    CombineData data(item, Placement::kAligned, kPoison);
    return refused_on_gpu(item, data, options.gpu->index(), tegula_combine);
  }
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
  if (item.has_tag("gpu") && !options.gpu_cases) return false;
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
