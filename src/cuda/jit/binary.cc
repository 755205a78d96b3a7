// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/jit/binary.hpp"

#include <atomic>
#include <memory>
#include <vector>

#include "src/core/log.hpp"
#include "src/cuda/jit/compile.hpp"
#include "src/cuda/jit/disk_cache.hpp"
#include "src/cuda/jit/nvrtc.hpp"

namespace tegula::cuda {
namespace {

Digest cache_key(const Digest& kernel, int compiler) {
  Sha256 hash;
  hash.add(kernel.data(), kernel.size());
  hash.add_field(std::to_string(compiler));
  return hash.finish();
}

bool find_packed(const Digest& key, int driver_version, std::string& cubin) {
  for (const Pack& pack : process_packs()) {
    const PackedKernel* const kernel = pack.find(key);
    if (kernel == nullptr || pack.least_driver() > driver_version) continue;
    if (pack.read(*kernel, cubin).ok()) return true;
    log_message("%s", error_text());
  }
  return false;
}

}  // namespace

const std::vector<Pack>& process_packs() {
  static constinit std::atomic<const std::vector<Pack>*> known{nullptr};
  const std::vector<Pack>* packs = known.load(std::memory_order_acquire);
  if (packs != nullptr) return *packs;
  auto opened = std::make_unique<std::vector<Pack>>();
  for (const std::string& path : pack_paths()) {
    Pack pack;
    if (Pack::open(path, pack).ok()) {
      opened->push_back(std::move(pack));
    } else {
      log_message("%s", error_text());
      clear_error();
    }
  }
  // Of two threads that come here at once, the second's are closed again.
  if (known.compare_exchange_strong(packs, opened.get(), std::memory_order_acq_rel)) {
    packs = opened.release();
  }
  return *packs;
}

Status find_binary(const KernelText& text, int driver_version, const BinaryWishes& wishes,
                   Binary& binary) {
  const Digest key = kernel_key(text);
  if (wishes.packs && find_packed(key, driver_version, binary.cubin)) {
    binary.origin = Origin::kPack;
    return {};
  }
  const Nvrtc* nvrtc = nullptr;
  if (Status found = find_nvrtc(nvrtc); !found.ok()) {
    const std::string why = error_text();
    return fail(found.code(), "kernel \"%.80s\" is in no pack and cannot be compiled: %s",
                text.name.c_str(), why.c_str());
  }
  std::string no_cache;
  const std::string folder = cache_folder(no_cache);
  std::unique_ptr<DiskCache> cache;
  if (!folder.empty()) cache = std::make_unique<DiskCache>(folder);
  if (cache != nullptr && !cache->usable())
    log_message("kernel cache: %s", cache->refusal().c_str());
  binary.cache_key = cache_key(key, nvrtc->version);
  if (wishes.disk_cache && cache != nullptr && cache->read(binary.cache_key, binary.cubin)) {
    binary.origin = Origin::kDiskCache;
    return {};
  }
  Compiled compiled;
  TEGULA_RETURN_IF_ERROR(compile_with(*nvrtc, text, compiled));
  log_message("kernel \"%s\": compiled in %.2f s by NVRTC %d.%d", text.name.c_str(),
              compiled.seconds, nvrtc->version / 1000, nvrtc->version % 1000 / 10);
  binary.cubin = std::move(compiled.cubin);
  binary.origin = Origin::kCompiler;
  if (cache != nullptr) cache->write(binary.cache_key, binary.cubin);
  return {};
}

void forget_binary(const Binary& binary) {
  std::string no_cache;
  const std::string folder = cache_folder(no_cache);
  if (binary.origin != Origin::kPack && !folder.empty()) DiskCache(folder).remove(binary.cache_key);
}

}  // namespace tegula::cuda
