// SPDX-License-Identifier: Apache-2.0
// Where a sequence lies and how long it is, from index tensors that nobody has checked: every value
// is cut to what the tensors hold (contract.md, 9).
#pragma once

#include "device/abi/forward.hpp"
#include "device/ptx/sync.hpp"

namespace tegula::device {

TEGULA_DEVICE int value_of(const Ints& ints, int i) {
  return ints.data[i * ints.stride];
}

struct Slot {
  int batch;
  int row;
  int seqlen;
};

// bad: set if a value had to be cut.
TEGULA_DEVICE Slot slot_of(const Ints& cu_seqlens, int total, int seqlen, int batch, bool& bad) {
  if (cu_seqlens.data == nullptr) return {batch, 0, seqlen};
  const int begin = value_of(cu_seqlens, batch), end = value_of(cu_seqlens, batch + 1);
  const int row = clamp(begin, 0, total);
  const int rows = clamp(end, row, total) - row;
  bad = bad || row != begin || row + rows != end;
  return {0, row, rows};
}

TEGULA_DEVICE int cut(int value, int capacity, bool& bad) {
  const int within = clamp(value, 0, capacity);
  bad = bad || within != value;
  return within;
}

// head and m_block are left to the caller.
TEGULA_DEVICE ForwardTile sequence_of(const Lengths& lengths, int batch) {
  bool bad = false;
  Slot q = slot_of(lengths.cu_seqlens_q, lengths.total_q, lengths.seqlen_q, batch, bad);
  Slot k = slot_of(lengths.cu_seqlens_k, lengths.total_k, lengths.seqlen_k, batch, bad);
  if (lengths.seqused_q.data != nullptr) {
    q.seqlen = cut(value_of(lengths.seqused_q, batch), q.seqlen, bad);
  }
  const int capacity = k.seqlen;
  if (lengths.seqused_k.data != nullptr) {
    // Each part is cut before the sum, which then fits an int.
    int used = cut(value_of(lengths.seqused_k, batch), k.seqlen, bad);
    used = cut(used + lengths.seqlen_new, k.seqlen, bad);
    if (lengths.cu_seqlens_new.data != nullptr) {
      const int begin = most(value_of(lengths.cu_seqlens_new, batch), 0);
      const int end = most(value_of(lengths.cu_seqlens_new, batch + 1), 0);
      used = cut(used + cut(most(end, begin) - begin, k.seqlen, bad), k.seqlen, bad);
    }
    k.seqlen = used;
  }
  int leftpad = 0;
  if (lengths.leftpad_k.data != nullptr) {
    leftpad = least(cut(value_of(lengths.leftpad_k, batch), capacity, bad), k.seqlen);
  }
  if (bad && lengths.error_word != nullptr) atomicMax(lengths.error_word, 1 + batch);
  return {0, 0, batch, q.batch, q.row, q.seqlen, k.batch, k.row, k.seqlen, leftpad};
}

}  // namespace tegula::device
