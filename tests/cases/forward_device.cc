// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/forward_device.hpp"

#include <cstring>

namespace tegula::cases {

DeviceForward::DeviceForward(Gpu& gpu, ForwardData& data, Placement placement, bool host_copies)
    : data_(data), stream_(gpu), error_word_(gpu, sizeof(std::int32_t), Placement::kAligned) {
  const struct {
    const char* name;
    Operand* operand;
  } operands[kOperands] = {{"q", &data.q},
                           {"k", &data.k},
                           {"v", &data.v},
                           {"o", &data.out},
                           {"lse", &data.log_sum_exp},
                           {"cu_seqlens_q", &data.cu_seqlens_q},
                           {"cu_seqlens_k", &data.cu_seqlens_k},
                           {"seqused_q", &data.seqused_q},
                           {"seqused_k", &data.seqused_k},
                           {"leftpad_k", &data.leftpad_k},
                           {"cu_seqlens_new", &data.cu_seqlens_new},
                           {"page_table", &data.page_table},
                           {"page_indices", &data.page_indices},
                           {"page_indptr", &data.page_indptr},
                           {"sink", &data.sink},
                           {"alibi_slopes", &data.alibi_slopes},
                           {"bias", &data.bias},
                           {"descale_q", &data.descale_q},
                           {"descale_k", &data.descale_k},
                           {"descale_v", &data.descale_v}};
  copies_.reserve(kOperands);  // args_ points into it
  for (const auto& [name, operand] : operands) {
    if (!operand->present()) continue;
    Copy& copy = copies_.emplace_back();
    copy.name = name;
    copy.host = operand;
    copy.is_output = operand == &data.out || operand == &data.log_sum_exp;
    copy.block = DeviceBlock(gpu, operand->memory.size(), placement);
    copy.tensor = operand->tensor;
    copy.tensor.device_kind = TEGULA_CUDA;
    copy.tensor.device_index = gpu.index();
    if (copy.tensor.data != nullptr) copy.tensor.data = copy.block.data();
    // Index tensors of the cases are packed, but for a page table with a longer row stride.
    const bool packed = operand != &data.page_table;
    copy.index = {copy.tensor, host_copies && packed ? operand->memory.data() : nullptr};
    stream_.upload(copy.block, operand->memory.data());
  }
  args_ = data.args();
  args_.q = tensor_of(data.q);
  args_.k = tensor_of(data.k);
  args_.v = tensor_of(data.v);
  args_.o = tensor_of(data.out);
  args_.lse = tensor_of(data.log_sum_exp);
  args_.cu_seqlens_q = index_of(data.cu_seqlens_q);
  args_.cu_seqlens_k = index_of(data.cu_seqlens_k);
  args_.seqused_q = index_of(data.seqused_q);
  args_.seqused_k = index_of(data.seqused_k);
  args_.leftpad_k = index_of(data.leftpad_k);
  args_.cu_seqlens_new = index_of(data.cu_seqlens_new);
  args_.page_table = index_of(data.page_table);
  args_.page_indices = index_of(data.page_indices);
  args_.page_indptr = index_of(data.page_indptr);
  args_.sink = tensor_of(data.sink);
  args_.alibi_slopes = tensor_of(data.alibi_slopes);
  args_.bias = tensor_of(data.bias);
  args_.descale_q = tensor_of(data.descale_q);
  args_.descale_k = tensor_of(data.descale_k);
  args_.descale_v = tensor_of(data.descale_v);
  stream_.fill(error_word_, 0);
  stream_.synchronize();
}

const tegula_tensor* DeviceForward::tensor_of(const Operand& operand) const {
  for (const Copy& copy : copies_) {
    if (copy.host == &operand) return &copy.tensor;
  }
  return nullptr;
}

const tegula_index* DeviceForward::index_of(const Operand& operand) const {
  for (const Copy& copy : copies_) {
    if (copy.host == &operand) return &copy.index;
  }
  return nullptr;
}

void DeviceForward::upload_outputs() {
  for (const Copy& copy : copies_) {
    if (copy.is_output) stream_.upload(copy.block, copy.host->memory.data());
  }
  stream_.fill(error_word_, 0);
}

void DeviceForward::download_outputs() {
  for (const Copy& copy : copies_) {
    if (copy.is_output) stream_.download(copy.host->memory.data(), copy.block);
  }
  stream_.synchronize();
}

std::string DeviceForward::changed_inputs() {
  for (const Copy& copy : copies_) {
    if (copy.is_output) continue;
    std::vector<std::byte> bytes(copy.block.size());
    stream_.download(bytes.data(), copy.block);
    stream_.synchronize();
    if (!copy.host->memory.equals(bytes)) return std::string(copy.name) + ": the input was written";
  }
  return "";
}

std::int32_t DeviceForward::read_error_word() {
  std::int32_t value = 0;
  stream_.download(&value, error_word_);
  stream_.synchronize();
  return value;
}

}  // namespace tegula::cases
