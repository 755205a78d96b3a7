// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/library.hpp"

#include <array>

#include <fmt/format.h>

namespace tegula::program {
namespace {

struct DtypeName {
  const char* text;
  Dtype dtype;
};

// The library's names, and fp32, fp16 as people write them.
constexpr std::array<DtypeName, 7> kDtypes = {{{"f32", Dtype::kF32},
                                               {"fp32", Dtype::kF32},
                                               {"f16", Dtype::kF16},
                                               {"fp16", Dtype::kF16},
                                               {"bf16", Dtype::kBf16},
                                               {"e4m3", Dtype::kE4m3},
                                               {"e5m2", Dtype::kE5m2}}};

struct FileDtype {
  io::Dtype file;
  Dtype dtype;
};

constexpr std::array<FileDtype, 8> kFileDtypes = {{{io::Dtype::kF32, Dtype::kF32},
                                                   {io::Dtype::kF16, Dtype::kF16},
                                                   {io::Dtype::kBf16, Dtype::kBf16},
                                                   {io::Dtype::kF8E4m3, Dtype::kE4m3},
                                                   {io::Dtype::kF8E5m2, Dtype::kE5m2},
                                                   {io::Dtype::kBool, Dtype::kBool},
                                                   {io::Dtype::kI32, Dtype::kI32},
                                                   {io::Dtype::kI64, Dtype::kI64}}};

int threads_of(const MachineOptions& options, const Device& device) {
  return options.threads > 0 ? options.threads : device.num_workers();
}

}  // namespace

Dtype library_dtype(io::Dtype dtype) {
  for (const FileDtype& pair : kFileDtypes) {
    if (pair.file == dtype) return pair.dtype;
  }
  return Dtype::kNone;
}

io::Dtype file_dtype(Dtype dtype) {
  for (const FileDtype& pair : kFileDtypes) {
    if (pair.dtype == dtype) return pair.file;
  }
  throw Failure(fmt::format("{} has no place in a file", tegula::name(dtype)));
}

oracle::Format format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return oracle::Format::kFp32;
    case Dtype::kF16: return oracle::Format::kFp16;
    case Dtype::kBf16: return oracle::Format::kBf16;
    case Dtype::kE4m3: return oracle::Format::kE4m3;
    case Dtype::kE5m2: return oracle::Format::kE5m2;
    default: throw Failure(fmt::format("{} is no floating-point type", tegula::name(dtype)));
  }
}

bool is_8bit(Dtype dtype) { return dtype == Dtype::kE4m3 || dtype == Dtype::kE5m2; }

std::string known_dtypes() { return "fp32, fp16, bf16, e4m3, e5m2"; }

Dtype find_dtype(const std::string& name) {
  for (const DtypeName& known : kDtypes) {
    if (name == known.text) return known.dtype;
  }
  return Dtype::kNone;
}

Dtype parse_dtype(const std::string& option, const std::string& name) {
  const Dtype dtype = find_dtype(name);
  if (dtype == Dtype::kNone) {
    throw Failure(fmt::format("{}: {} is none of {}", option, name, known_dtypes()));
  }
  return dtype;
}

tegula_isa parse_isa(const std::string& name) {
  std::string known = "auto";
  if (name == known) return TEGULA_ISA_AUTO;
  for (int isa = TEGULA_ISA_SCALAR; isa <= TEGULA_ISA_AMX_MODEL; ++isa) {
    const char* candidate = tegula_isa_name(isa);
    if (name == candidate) return static_cast<tegula_isa>(isa);
    known += fmt::format(", {}", candidate);
  }
  throw Failure(fmt::format("--isa: {} is none of {}", name, known));
}

Machine::Machine(const MachineOptions& options) : workers_(threads_of(options, device_)) {
  if (options.isa != "auto") device_.set_isa(parse_isa(options.isa));
  if (workers_.num_workers() != device_.num_workers()) {  // not the pool's number: our own threads
    device_.set_num_workers(workers_.num_workers());
    execution_.executor = &workers_;
  }
}

std::string version_text() {
  const std::int32_t number = version();
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

}  // namespace tegula::program
