// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/gpu.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace tegula::cases {
namespace {

void check_status(Status status) {
  if (!status.ok()) throw std::runtime_error(error_text());
}

// cuda.h: what cuMemCreate and cuMemSetAccess take.
struct AllocationProperties {
  int type = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types = 0;
  int location_type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  int location_id = 0;
  void* win32 = nullptr;
  unsigned char flags[8] = {};
};
struct AccessDescription {
  int location_type = 1;
  int location_id = 0;
  int flags = 3;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};

constexpr std::size_t kPage = std::size_t{2} << 20;

}  // namespace

void check_gpu(cuda::CUresult result, const char* what) {
  check_status(cuda::check(result, what));
}

// Entry points that the library itself has no use for.
struct Gpu::PageFunctions {
  cuda::CUresult (*reserve)(cuda::CUdeviceptr*, std::size_t size, std::size_t alignment,
                            cuda::CUdeviceptr fixed, unsigned long long flags);
  cuda::CUresult (*create)(unsigned long long* handle, std::size_t size,
                           const AllocationProperties* properties, unsigned long long flags);
  cuda::CUresult (*map)(cuda::CUdeviceptr, std::size_t size, std::size_t offset,
                        unsigned long long handle, unsigned long long flags);
  cuda::CUresult (*set_access)(cuda::CUdeviceptr, std::size_t size, const AccessDescription*,
                               std::size_t count);

  explicit PageFunctions(const cuda::Driver& driver) {
    void* const library = dlopen(driver.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto find = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          library != nullptr ? dlsym(library, name) : nullptr);
      if (function == nullptr) throw std::runtime_error(std::string("libcuda has no ") + name);
    };
    find(reserve, "cuMemAddressReserve");
    find(create, "cuMemCreate");
    find(map, "cuMemMap");
    find(set_access, "cuMemSetAccess");
  }
};

Gpu::Gpu(int index) {
  if (tegula_cuda_device_init(&device_, index) != TEGULA_OK) {
    throw std::runtime_error(tegula_last_error());
  }
  check_status(cuda::find_driver(driver_));
  check_status(cuda::device_info(index, info_));
  functions_ = std::make_unique<PageFunctions>(*driver_);
}

Gpu::~Gpu() = default;  // the pages are the process's

std::size_t Gpu::round_to_pages(std::size_t bytes) const {
  return bytes == 0 ? kPage : (bytes + kPage - 1) / kPage * kPage;
}

cuda::CUdeviceptr Gpu::take_pages(std::size_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Pages& pages : idle_) {
      if (pages.bytes != bytes) continue;
      const cuda::CUdeviceptr base = pages.base;
      pages = idle_.back();
      idle_.pop_back();
      return base;
    }
  }
  const GpuScope scope(*this);
  AllocationProperties properties;
  properties.location_id = info_->device;
  unsigned long long handle = 0;
  check_gpu(functions_->create(&handle, bytes, &properties, 0), "cuMemCreate");
  cuda::CUdeviceptr reserved = 0;
  check_gpu(functions_->reserve(&reserved, bytes + 2 * kPage, 0, 0, 0), "cuMemAddressReserve");
  const cuda::CUdeviceptr base = reserved + kPage;
  check_gpu(functions_->map(base, bytes, 0, handle, 0), "cuMemMap");
  AccessDescription access;
  access.location_id = info_->device;
  check_gpu(functions_->set_access(base, bytes, &access, 1), "cuMemSetAccess");
  return base;
}

void Gpu::give_pages(cuda::CUdeviceptr base, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back({base, bytes});
}

GpuScope::GpuScope(const Gpu& gpu) {
  check_status(guard_.enter(gpu.index()));
}

DeviceBlock::DeviceBlock(Gpu& gpu, std::size_t size, Placement placement)
    : gpu_(&gpu), size_(size), mapped_(gpu.round_to_pages(size)) {
  base_ = gpu.take_pages(mapped_);
  // At 16 bytes, so that the end of a tensor costs no operand its class of alignment.
  const std::size_t rounded = (size + 15) / 16 * 16;
  address_ = placement == Placement::kAligned ? base_ : base_ + mapped_ - rounded;
}

DeviceBlock& DeviceBlock::operator=(DeviceBlock&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(base_, other.base_);
  std::swap(address_, other.address_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

DeviceBlock::~DeviceBlock() {
  if (gpu_ != nullptr) gpu_->give_pages(base_, mapped_);
}

GpuStream::GpuStream(Gpu& gpu) : gpu_(gpu) {
  const GpuScope scope(gpu_);
  check_gpu(gpu_.driver().cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

GpuStream::~GpuStream() {
  cuda::ContextGuard guard;
  if (guard.enter(gpu_.index()).ok()) static_cast<void>(gpu_.driver().cuStreamDestroy_v2(stream_));
}

void GpuStream::upload(const DeviceBlock& to, const void* from) {
  if (to.size() == 0) return;
  const GpuScope scope(gpu_);
  check_gpu(gpu_.driver().cuMemcpyHtoDAsync_v2(to.address(), from, to.size(), stream_),
            "cuMemcpyHtoDAsync");
}

void GpuStream::download(void* to, const DeviceBlock& from) {
  if (from.size() == 0) return;
  const GpuScope scope(gpu_);
  check_gpu(gpu_.driver().cuMemcpyDtoHAsync_v2(to, from.address(), from.size(), stream_),
            "cuMemcpyDtoHAsync");
}

void GpuStream::fill(const DeviceBlock& block, int byte) {
  if (block.size() == 0) return;
  const GpuScope scope(gpu_);
  check_gpu(gpu_.driver().cuMemsetD8Async(block.address(), static_cast<unsigned char>(byte),
                                          block.size(), stream_),
            "cuMemsetD8Async");
}

void GpuStream::synchronize() {
  const GpuScope scope(gpu_);
  check_gpu(gpu_.driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

}  // namespace tegula::cases
