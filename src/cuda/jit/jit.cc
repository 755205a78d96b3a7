// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/jit/jit.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "src/core/log.hpp"
#include "src/cuda/driver/driver.hpp"
#include "src/cuda/jit/binary.hpp"
#include "src/cuda/jit/device_text.hpp"

namespace tegula::cuda {
namespace {

// The kernels of this process. An entry without a value is being loaded by some thread.
struct Table {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels;
};

// Never freed. A forked child cannot come to these locks: find_driver() refuses it before.
Table& table() {
  static constinit std::atomic<Table*> known{nullptr};
  Table* found = known.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto made = std::make_unique<Table>();
  if (known.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) {
    found = made.release();
  }
  return *found;
}

// The files of device/ are the same for the whole process.
std::string table_key(int device_index, const KernelText& text) {
  return std::to_string(device_index) + ' ' + std::to_string(text.arch) + ' ' + text.entry + '\n' +
         text.source;
}

// Holds a place of the table while a kernel is loaded, and gives it up if that fails.
class Place {
 public:
  Place(Table& table, std::string key) : table_(table), key_(std::move(key)) {}
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() {
    const std::lock_guard lock(table_.mutex);
    const auto at = table_.kernels.find(key_);
    if (at != table_.kernels.end() && at->second == nullptr) table_.kernels.erase(at);
    table_.changed.notify_all();
  }
  const Kernel* fill(const Kernel& kernel) {
    auto value = std::make_unique<Kernel>(kernel);
    const std::lock_guard lock(table_.mutex);
    return (table_.kernels[key_] = std::move(value)).get();
  }

 private:
  Table& table_;
  const std::string key_;
};

Status load_binary(const Driver& driver, const KernelText& text, const std::string& cubin,
                   Kernel& kernel) {
  std::array<char, 256> log{};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  CUmodule module = nullptr;
  const CUresult loaded = driver.cuModuleLoadDataEx(&module, cubin.data(), 2, options, values);
  log.back() = '\0';
  const std::string what =
      "kernel \"" + text.name + "\"" + (log[0] != '\0' ? ": " : "") + log.data();
  TEGULA_RETURN_IF_ERROR(check(loaded, what.c_str()));
  const Status status = [&]() -> Status {
    TEGULA_RETURN_IF_ERROR(check(
        driver.cuModuleGetFunction(&kernel.function, module, text.entry.c_str()), what.c_str()));
    // Now, because the first launch may be under stream capture.
    if (driver.cuFuncLoad != nullptr) {
      TEGULA_RETURN_IF_ERROR(check(driver.cuFuncLoad(kernel.function), what.c_str()));
    }
    const std::pair<CUfunction_attribute, int*> attributes[] = {
        {CU_FUNC_ATTRIBUTE_NUM_REGS, &kernel.registers},
        {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &kernel.local_bytes},
        {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &kernel.shared_bytes}};
    for (const auto& [attribute, value] : attributes) {
      TEGULA_RETURN_IF_ERROR(
          check(driver.cuFuncGetAttribute(value, attribute, kernel.function), what.c_str()));
    }
    return {};
  }();
  if (!status.ok()) driver.cuModuleUnload(module);
  return status;
}

Status load(const Driver& driver, int device_index, const KernelText& text, Kernel& kernel) {
  const DeviceInfo* info = nullptr;
  TEGULA_RETURN_IF_ERROR(device_info(device_index, info));
  if (info->compute_capability != text.arch) {
    return fail(TEGULA_UNSUPPORTED,
                "kernel \"%.80s\" is for compute capability %d.%d, device %d (%.64s) has %d.%d",
                text.name.c_str(), text.arch / 10, text.arch % 10, device_index, info->name,
                info->compute_capability / 10, info->compute_capability % 10);
  }
  ContextGuard guard;
  TEGULA_RETURN_IF_ERROR(guard.enter(device_index));
  Binary binary;
  TEGULA_RETURN_IF_ERROR(find_binary(text, driver.version, {}, binary));
  Status status = load_binary(driver, text, binary.cubin, kernel);
  if (status.ok() || status.code() == TEGULA_OUT_OF_MEMORY || binary.origin == Origin::kCompiler) {
    return status;
  }
  // What was stored does not suit this driver: as if it were not there.
  log_message("%s; compiled again", error_text());
  forget_binary(binary);
  TEGULA_RETURN_IF_ERROR(
      find_binary(text, driver.version, {.packs = false, .disk_cache = false}, binary));
  return load_binary(driver, text, binary.cubin, kernel);
}

}  // namespace

const DeviceText* find_device_text(std::string_view name) {
  for (const DeviceText& text : device_texts()) {
    if (name == text.name) return &text;
  }
  return nullptr;
}

Status load_kernel(int device_index, const KernelText& text, const Kernel*& kernel) {
  const Driver* driver = nullptr;
  TEGULA_RETURN_IF_ERROR(find_driver(driver));
  Table& known = table();
  const std::string key = table_key(device_index, text);
  {
    std::unique_lock lock(known.mutex);
    for (;;) {
      const auto [at, added] = known.kernels.try_emplace(key);
      if (added) break;
      if (at->second != nullptr) {
        kernel = at->second.get();
        return {};
      }
      known.changed.wait(lock);
    }
  }
  Place place(known, key);
  Kernel loaded;
  TEGULA_RETURN_IF_ERROR(load(*driver, device_index, text, loaded));
  kernel = place.fill(loaded);
  return {};
}

Status load_kernels(int device_index, const std::vector<KernelText>& texts) {
  struct Failure {
    std::mutex mutex;
    size_t index = SIZE_MAX;
    tegula_status code = TEGULA_OK;
    std::array<char, 512> text{};  // the error text belongs to the thread that failed
  } failure;
  std::vector<const KernelText*> missing;
  for (const KernelText& text : texts) {
    if (find_kernel(device_index, text) == nullptr) missing.push_back(&text);
  }
  std::atomic<size_t> next{0};
  const auto work = [&]() noexcept {
    for (size_t i = next.fetch_add(1); i < missing.size(); i = next.fetch_add(1)) {
      Status status;
      try {
        const Kernel* kernel = nullptr;
        status = load_kernel(device_index, *missing[i], kernel);
      } catch (...) {
        status = fail(TEGULA_OUT_OF_MEMORY, "the system has no memory left");
      }
      if (status.ok()) continue;
      const std::lock_guard lock(failure.mutex);
      if (i >= failure.index) continue;
      failure.index = i;
      failure.code = status.code();
      std::snprintf(failure.text.data(), failure.text.size(), "%s", error_text());
    }
  };
  std::vector<std::thread> threads;
  const size_t wanted =
      std::min<size_t>(missing.size(), std::max(1U, std::thread::hardware_concurrency()));
  try {
    threads.reserve(wanted);
    while (threads.size() + 1 < wanted) threads.emplace_back(work);
  } catch (...) {  // fewer threads do as well
  }
  work();
  for (std::thread& thread : threads) thread.join();
  return failure.code == TEGULA_OK ? Status() : fail(failure.code, "%s", failure.text.data());
}

const Kernel* find_kernel(int device_index, const KernelText& text) {
  const Driver* driver = nullptr;
  if (!find_driver(driver).ok()) return nullptr;
  Table& known = table();
  const std::string key = table_key(device_index, text);
  const std::lock_guard lock(known.mutex);
  const auto at = known.kernels.find(key);
  return at != known.kernels.end() ? at->second.get() : nullptr;
}

}  // namespace tegula::cuda
