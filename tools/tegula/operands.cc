// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/operands.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "tools/tegula/library.hpp"

namespace tegula::program {
namespace {

constexpr std::array<const char*, 9> kTensors = {"q",    "k",         "v",         "sink",     "alibi_slopes",
                                                 "bias", "descale_q", "descale_k", "descale_v"};
constexpr std::array<const char*, 9> kIndices = {"cu_seqlens_q", "cu_seqlens_k", "seqused_q",
                                                 "seqused_k",    "leftpad_k",    "page_table",
                                                 "page_indices", "page_indptr",  "cu_seqlens_new"};

template <typename Names>
bool is_in(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::int32_t> to_int32(const std::string& name, const io::Array& array) {
  const auto count = static_cast<std::size_t>(array.elements());
  std::vector<std::int32_t> values(count);
  if (array.dtype == io::Dtype::kI32) {
    if (count > 0) std::memcpy(values.data(), array.data, array.bytes);
    return values;
  }
  if (array.dtype != io::Dtype::kI64) {
    throw Failure(fmt::format("{}: {} is none of i32, i64", name, io::dtype_name(array.dtype)));
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t wide = 0;
    std::memcpy(&wide, array.data + i * sizeof wide, sizeof wide);
    if (wide < std::numeric_limits<std::int32_t>::min() || wide > std::numeric_limits<std::int32_t>::max()) {
      throw Failure(fmt::format("{}: element {} is {}, which is no 32-bit number", name, i, wide));
    }
    values[i] = static_cast<std::int32_t>(wide);
  }
  return values;
}

}  // namespace

Operands::Operands(const std::vector<std::string>& files, const std::string& prefix) {
  for (const std::string& file : files) {
    // NAME=PATH, unless a file of the whole name exists.
    const std::size_t equals = file.find('=');
    std::error_code ignored;
    const bool named = equals != std::string::npos && !std::filesystem::exists(file, ignored);
    const std::filesystem::path path = named ? file.substr(equals + 1) : file;
    if (!io::is_npy(io::MappedFile(path).bytes())) {
      if (named) throw Failure(fmt::format("{}: NAME=PATH is for npy files, which this is not", file));
      if (path.extension() == ".npz" || path.extension() == ".npy") {
        throw Failure(fmt::format("{}: neither an npy nor a safetensors file", path.string()));
      }
      safetensors_.push_back(std::make_unique<io::SafetensorsFile>(io::SafetensorsFile::open(path)));
      for (const io::Array& array : safetensors_.back()->arrays()) {
        const bool ours = array.name.rfind(prefix, 0) == 0;
        const std::string name = ours ? array.name.substr(prefix.size()) : "";
        if (is_in(kTensors, name) || is_in(kIndices, name)) {
          add(name, array);
        } else {
          ignored_.push_back(io::printable(array.name));
        }
      }
      continue;
    }
    const std::string name = named ? file.substr(0, equals) : path.stem().string();
    if (!is_in(kTensors, name) && !is_in(kIndices, name)) {
      throw Failure(fmt::format("{}: '{}' is no operand; they are {}, {} (NAME=PATH gives one)", path.string(),
                                io::printable(name), fmt::join(kTensors, ", "), fmt::join(kIndices, ", ")));
    }
    npys_.push_back(std::make_unique<io::NpyFile>(io::load_npy(path)));
    add(name, npys_.back()->array);
  }
  for (const char* name : {"q", "k", "v"}) {
    if (arrays_.count(name) != 0) continue;
    const std::string found = ignored_.empty() ? "" : fmt::format("; found {}", fmt::join(ignored_, ", "));
    throw Failure(fmt::format("{}: not in the files{}{}", prefix + name,
                              found.substr(0, 200), found.size() > 200 ? "..." : ""));
  }
}

void Operands::add(const std::string& name, const io::Array& array) {
  if (arrays_.count(name) != 0) throw Failure(fmt::format("{}: given twice", name));
  io::Array& stored = arrays_.emplace(name, array).first->second;
  if (is_in(kIndices, name)) {
    indices_.emplace(name, to_int32(name, array));
  } else if (!array.is_aligned()) {
    copies_.emplace_back(array.data, array.data + array.bytes);
    stored.data = copies_.back().data();
  }
}

Dtype Operands::dtype(const std::string& name) const {
  const io::Array& array = arrays_.at(name);
  const Dtype dtype = library_dtype(array.dtype);
  if (dtype == Dtype::kNone) {
    throw Failure(fmt::format("{}: {} is no type of an operand", name, io::dtype_name(array.dtype)));
  }
  return dtype;
}

Tensor Operands::tensor(const std::string& name) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) return {};
  return Tensor(found->second.data, dtype(name), Extents(found->second.shape));
}

Tensor Operands::sequence_tensor(const std::string& name, bool ragged) const {
  const io::Array& array = arrays_.at(name);
  if (ragged || array.shape.size() != 3) return tensor(name);
  return Tensor(array.data, dtype(name), {1, array.shape[0], array.shape[1], array.shape[2]});
}

Index Operands::index(const std::string& name) const {
  const auto found = indices_.find(name);
  if (found == indices_.end()) return {};
  return Index(found->second.data(), Extents(arrays_.at(name).shape));
}

Tensor Operands::bias(const ForwardArgs& args) const {
  Tensor tensor = this->tensor("bias");
  // Ragged shapes have no fixed full extent to widen to.
  if (!tensor.present() || tensor.ndim() != 4 || args.q.ndim() != 4 || args.k.ndim() != 4 ||
      args.page_table.present() || args.page_indices.present()) {
    return tensor;
  }
  const std::int64_t full[] = {args.q.size(0), args.q.size(2), args.q.size(1), args.k.size(1)};
  for (std::int32_t i = 0; i < 4; ++i) {
    if (tensor.size(i) != 1 || full[i] == 1) continue;
    tensor.c().shape[i] = full[i];
    tensor.c().strides[i] = 0;
  }
  return tensor;
}

ForwardArgs Operands::args() const {
  ForwardArgs args;
  args.cu_seqlens_q = index("cu_seqlens_q");
  args.cu_seqlens_k = index("cu_seqlens_k");
  args.seqused_q = index("seqused_q");
  args.seqused_k = index("seqused_k");
  args.leftpad_k = index("leftpad_k");
  args.page_table = index("page_table");
  args.page_indices = index("page_indices");
  args.page_indptr = index("page_indptr");
  args.cu_seqlens_new = index("cu_seqlens_new");
  args.q = sequence_tensor("q", args.cu_seqlens_q.present());
  args.k = sequence_tensor("k", args.cu_seqlens_k.present());
  args.v = sequence_tensor("v", args.cu_seqlens_k.present());
  args.sink = tensor("sink");
  args.alibi_slopes = tensor("alibi_slopes");
  args.bias = bias(args);
  args.descale_q = tensor("descale_q");
  args.descale_k = tensor("descale_k");
  args.descale_v = tensor("descale_v");
  return args;
}

}  // namespace tegula::program
