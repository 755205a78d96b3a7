// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/doctor_cuda.hpp"

#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "src/core/status.hpp"
#include "src/cuda/driver/driver.hpp"
#include "src/cuda/jit/disk_cache.hpp"
#include "src/cuda/jit/nvrtc.hpp"
#include "src/cuda/jit/pack.hpp"
#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

// Without the prefix that the line begins with already.
std::string error_after(std::string_view prefix) {
  const std::string_view text = error_text();
  return std::string(text.starts_with(prefix) ? text.substr(prefix.size()) : text);
}

void add_driver(CudaFindings& found) {
  const cuda::Driver* driver = nullptr;
  int count = 0;
  if (!cuda::find_driver(driver).ok() || !cuda::device_count(count).ok()) {
    found.lines.emplace_back("CUDA driver", error_after("CUDA driver: "));
    found.json["driver"] = {{"error", error_text()}};
    return;
  }
  found.lines.emplace_back("CUDA driver", fmt::format("{}, for CUDA {}", driver->path,
                                                      cuda_version_text(driver->version)));
  found.json["driver"] = {{"path", driver->path}, {"cuda", cuda_version_text(driver->version)}};
  for (int i = 0; i < count; ++i) {
    const cuda::DeviceInfo* info = nullptr;
    if (!cuda::device_info(i, info).ok()) continue;
    found.lines.emplace_back(
        fmt::format("GPU {}", i),
        fmt::format("{}: compute capability {}.{}, {} multiprocessors, {}, L2 {}{}", info->name,
                    info->compute_capability / 10, info->compute_capability % 10, info->num_sms,
                    bytes_text(static_cast<double>(info->memory_bytes)),
                    bytes_text(static_cast<double>(info->l2_bytes)),
                    info->compute_capability == 90 ? "" : "; the kernels are for 9.0"));
    found.json["devices"].push_back({{"name", info->name},
                                     {"compute_capability", info->compute_capability},
                                     {"num_sms", info->num_sms},
                                     {"memory", info->memory_bytes},
                                     {"l2", info->l2_bytes}});
  }
}

void add_compiler(CudaFindings& found) {
  const cuda::Nvrtc* nvrtc = nullptr;
  if (!cuda::find_nvrtc(nvrtc).ok()) {
    found.lines.emplace_back("NVRTC", error_after("NVRTC: "));
    found.json["nvrtc"] = {{"error", error_text()}};
    return;
  }
  const bool old = nvrtc->version < cuda::kLeastForWgmma;
  found.lines.emplace_back("NVRTC",
                           fmt::format("{} ({}){}", cuda_version_text(nvrtc->version), nvrtc->path,
                                       old ? "; older than 12.9: not for kernels with wgmma" : ""));
  found.json["nvrtc"] = {{"path", nvrtc->path}, {"version", cuda_version_text(nvrtc->version)}};
}

void add_cache(CudaFindings& found) {
  std::string why_not;
  const std::string folder = cuda::cache_folder(why_not);
  Json& json = found.json["cache"];
  if (folder.empty()) {
    found.lines.emplace_back("kernel cache", "none: " + why_not);
    json = {{"error", why_not}};
    return;
  }
  if (!std::filesystem::exists(folder)) {  // looking must not make it
    found.lines.emplace_back("kernel cache", folder + ": empty");
    json = {{"folder", folder}, {"kernels", 0}, {"bytes", 0}};
    return;
  }
  const cuda::DiskCache cache(folder);
  if (!cache.usable()) {
    found.lines.emplace_back("kernel cache", "none: " + cache.refusal());
    json = {{"error", cache.refusal()}};
    return;
  }
  const cuda::DiskCache::Usage usage = cache.usage();
  found.lines.emplace_back(
      "kernel cache", fmt::format("{}: {} kernels, {} of at most {}", folder, usage.entries,
                                  bytes_text(static_cast<double>(usage.bytes)),
                                  bytes_text(static_cast<double>(cuda::DiskCache::kMaxBytes))));
  json = {{"folder", folder}, {"kernels", usage.entries}, {"bytes", usage.bytes}};
}

void add_packs(CudaFindings& found) {
  found.json["packs"] = Json::array();
  for (const std::string& path : cuda::pack_paths()) {
    cuda::Pack pack;
    if (!cuda::Pack::open(path, pack).ok()) {
      found.lines.emplace_back("pack", error_after("pack "));
      found.json["packs"].push_back({{"path", path}, {"error", error_text()}});
      continue;
    }
    found.lines.emplace_back(
        "pack", fmt::format("{}: {} kernels by NVRTC {}, for drivers of CUDA {} and newer", path,
                            pack.kernels().size(), cuda_version_text(pack.compiler()),
                            cuda_version_text(pack.least_driver())));
    found.json["packs"].push_back({{"path", path},
                                   {"kernels", pack.kernels().size()},
                                   {"compiler", cuda_version_text(pack.compiler())},
                                   {"least_driver", cuda_version_text(pack.least_driver())}});
  }
  if (found.json["packs"].empty()) found.lines.emplace_back("pack", "none found");
}

}  // namespace

CudaFindings find_cuda() {
  CudaFindings found;
  add_driver(found);
  add_compiler(found);
  add_cache(found);
  add_packs(found);
  return found;
}

}  // namespace tegula::program
