// SPDX-License-Identifier: Apache-2.0
// A GPU for tests: memory between unmapped pages, copies and a stream, through the driver API.
// Everything throws std::runtime_error with the driver's words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <tegula/tegula.h>

#include "src/cuda/driver/driver.hpp"
#include "tests/cases/operand.hpp"

namespace tegula::cases {

class Gpu;

// Memory of the GPU that begins (kAligned) or ends, up to 15 bytes (kGuarded), at pages that fault.
// Its content is what the last owner left.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  DeviceBlock(Gpu& gpu, std::size_t size, Placement placement);
  DeviceBlock(DeviceBlock&& other) noexcept { *this = std::move(other); }
  DeviceBlock& operator=(DeviceBlock&& other) noexcept;
  ~DeviceBlock();

  cuda::CUdeviceptr address() const { return address_; }
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  std::size_t size() const { return size_; }

 private:
  Gpu* gpu_ = nullptr;
  cuda::CUdeviceptr base_ = 0;  // of the mapped pages
  cuda::CUdeviceptr address_ = 0;
  std::size_t size_ = 0, mapped_ = 0;
};

class GpuStream {
 public:
  explicit GpuStream(Gpu& gpu);
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  void upload(const DeviceBlock& to, const void* from);
  void download(void* to, const DeviceBlock& from);
  void fill(const DeviceBlock& block, int byte);
  void synchronize();  // throws if something on the stream failed
  cuda::CUstream get() const { return stream_; }

 private:
  Gpu& gpu_;
  cuda::CUstream stream_ = nullptr;
};

class Gpu {
 public:
  explicit Gpu(int index);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const tegula_device& device() const { return device_; }
  const char* name() const { return info_->name; }
  const cuda::Driver& driver() const { return *driver_; }
  int index() const { return device_.index; }

  // Pages that are mapped, between others that are not. Kept when they are given back.
  cuda::CUdeviceptr take_pages(std::size_t bytes);
  void give_pages(cuda::CUdeviceptr base, std::size_t bytes);
  std::size_t round_to_pages(std::size_t bytes) const;

 private:
  struct PageFunctions;
  struct Pages {
    cuda::CUdeviceptr base;
    std::size_t bytes;
  };

  tegula_device device_{};
  const cuda::Driver* driver_ = nullptr;
  const cuda::DeviceInfo* info_ = nullptr;
  std::unique_ptr<PageFunctions> functions_;
  std::mutex mutex_;
  std::vector<Pages> idle_;
};

// The primary context of a GPU for a scope.
class GpuScope {
 public:
  explicit GpuScope(const Gpu& gpu);

 private:
  cuda::ContextGuard guard_;
};

void check_gpu(cuda::CUresult result, const char* what);

}  // namespace tegula::cases
