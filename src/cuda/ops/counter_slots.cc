// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/ops/counter_slots.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <new>

namespace tegula::cuda {
namespace {

constexpr uint32_t kStreams = 4096;      // slots that belong to a stream, by its id
constexpr uint32_t kCaptured = 1 << 18;  // slots that captured launches keep
constexpr int kMaxDevices = 64;

struct Slots {
  device::TileCounter* counters = nullptr;                // on the device
  std::atomic<unsigned long long> owners[kStreams] = {};  // 1 + the stream's id; 0: free
  std::atomic<uint32_t> captured{0};
};

constinit std::atomic<Slots*> all_slots[kMaxDevices] = {};
constinit std::mutex making;

Status make_slots(const Driver& driver, Slots*& slots) {
  auto made = std::make_unique<Slots>();
  CUdeviceptr memory = 0;
  constexpr size_t kBytes = (kStreams + kCaptured) * sizeof(device::TileCounter);
  TEGULA_RETURN_IF_ERROR(check(driver.cuMemAlloc_v2(&memory, kBytes), "forward: tile counters"));
  // On a stream of its own: the legacy stream would wait for the caller's work.
  CUstream stream = nullptr;
  CUresult result = driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS) {
    result = driver.cuMemsetD32Async(memory, 0, kBytes / 4, stream);
    if (result == CUDA_SUCCESS) result = driver.cuStreamSynchronize(stream);
    static_cast<void>(driver.cuStreamDestroy_v2(stream));
  }
  if (result != CUDA_SUCCESS) {
    static_cast<void>(driver.cuMemFree_v2(memory));
    return check(result, "forward: setting tile counters");
  }
  made->counters = reinterpret_cast<device::TileCounter*>(memory);
  slots = made.release();
  return {};
}

}  // namespace

Status prepare_counter_slots(const Driver& driver, int device_index) {
  if (device_index < 0 || device_index >= kMaxDevices) {
    return fail(TEGULA_UNSUPPORTED, "device: index %d is not below %d", device_index, kMaxDevices);
  }
  if (all_slots[device_index].load(std::memory_order_acquire) != nullptr) return {};
  const std::lock_guard lock(making);
  if (all_slots[device_index].load(std::memory_order_acquire) != nullptr) return {};
  Slots* made = nullptr;
  TEGULA_RETURN_IF_ERROR(make_slots(driver, made));
  all_slots[device_index].store(made, std::memory_order_release);
  return {};
}

Status counter_slot(const Driver& driver, int device_index, CUstream stream,
                    device::TileCounter*& slot) {
  TEGULA_RETURN_IF_ERROR(prepare_counter_slots(driver, device_index));
  Slots& slots = *all_slots[device_index].load(std::memory_order_acquire);
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  TEGULA_RETURN_IF_ERROR(
      check(driver.cuStreamIsCapturing(stream, &capture), "execution.stream: its capture"));
  if (capture == CU_STREAM_CAPTURE_STATUS_NONE) {
    // Ids are never reused, unlike handles: a new stream cannot meet a destroyed one's last launch.
    unsigned long long id = 0;
    TEGULA_RETURN_IF_ERROR(check(driver.cuStreamGetId(stream, &id), "execution.stream: its id"));
    for (uint32_t i = 0; i < kStreams; ++i) {
      const uint32_t at = static_cast<uint32_t>(id + i) % kStreams;
      unsigned long long owner = 0;
      if (slots.owners[at].load(std::memory_order_relaxed) == id + 1 ||
          slots.owners[at].compare_exchange_strong(owner, id + 1, std::memory_order_relaxed) ||
          owner == id + 1) {
        slot = slots.counters + at;
        return {};
      }
    }
    // A process that made more streams than that: its later ones go on as captured launches do.
  }
  const uint32_t next = slots.captured.fetch_add(1, std::memory_order_relaxed);
  if (next >= kCaptured) {
    slots.captured.store(kCaptured, std::memory_order_relaxed);
    return fail(TEGULA_OUT_OF_MEMORY, "forward: more than %u launches were captured", kCaptured);
  }
  slot = slots.counters + kStreams + next;
  return {};
}

}  // namespace tegula::cuda
