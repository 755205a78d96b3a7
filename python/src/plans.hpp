// SPDX-License-Identifier: Apache-2.0
// Plans by what they were made of. A plan costs under a microsecond on the CPU; on a GPU the first
// call of a kind compiles, and its plan should not be made again.
#pragma once

#include <tegula/tegula.h>

#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace tegula::python {

struct PlanDeleter {
  void operator()(tegula_plan* plan) const { tegula_plan_destroy(plan); }
};
// Shared: a plan that is in use outlives its eviction.
using PlanPointer = std::shared_ptr<tegula_plan>;

class PlanCache {
 public:
  static constexpr std::size_t kCapacity = 256;

  // The key is the problem's bytes: *_init and describe set every field, and padding is zero.
  tegula_status find(const tegula_problem& problem, const tegula_device& device,
                     PlanPointer& plan) {
    char key[sizeof problem + 2 * sizeof(std::int32_t)];
    std::memcpy(key, &problem, sizeof problem);
    std::memcpy(key + sizeof problem, &device.kind, sizeof device.kind);
    std::memcpy(key + sizeof problem + sizeof device.kind, &device.index, sizeof device.index);
    const std::string_view wanted(key, sizeof key);
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = places_.find(wanted); found != places_.end()) {
        entries_.splice(entries_.begin(), entries_, found->second);
        plan = found->second->plan;
        return TEGULA_OK;
      }
    }
    tegula_plan* made = nullptr;
    if (const tegula_status status = tegula_plan_create(&problem, &device, &made);
        status != TEGULA_OK) {
      return status;
    }
    plan = PlanPointer(made, PlanDeleter{});
    const std::lock_guard lock(mutex_);
    if (places_.find(wanted) != places_.end()) return TEGULA_OK;  // another thread's
    entries_.push_front({std::string(wanted), plan});
    places_.emplace(entries_.front().key, entries_.begin());
    if (entries_.size() > kCapacity) {
      places_.erase(std::string_view(entries_.back().key));
      entries_.pop_back();
    }
    return TEGULA_OK;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    places_.clear();
    entries_.clear();
  }

 private:
  struct Entry {
    std::string key;
    PlanPointer plan;
  };
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // used last first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> places_;
};

}  // namespace tegula::python
