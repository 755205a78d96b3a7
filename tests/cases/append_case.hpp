// SPDX-License-Identifier: Apache-2.0
// An append_kv case: its operands and the exact bytes that caches and rotated queries must hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tegula/tegula.h>

#include "tests/cases/cases.hpp"
#include "tests/cases/operand.hpp"

namespace tegula::cases {

class AppendData {
 public:
  AppendData(const Case& item, Placement placement, int output_fill);
  AppendData(const AppendData&) = delete;
  AppendData& operator=(const AppendData&) = delete;

  const tegula_append_kv_args& args() const { return args_; }

  // The tensors say that they lie on a GPU, which they do not: for refusals.
  void claim_gpu(std::int32_t index);

  // "" if every byte of k_cache, v_cache and q_out is what the reference says (NaN: any NaN).
  std::string judge() const;
  std::string untouched() const;  // "" if no output byte changed

  Operand k_new, v_new, k_cache, v_cache, q, q_out;
  Operand cu_seqlens_new, seqused_k, page_table, page_indices, page_indptr, slot_mapping, positions;
  Operand cos, sin, descale_k, descale_v;

 private:
  struct Place {
    std::int64_t outer;
    std::int64_t token;
  };
  Place place_new(std::int64_t b, std::int64_t t) const;
  Place place_cache(std::int64_t b, std::int64_t position) const;
  std::int64_t row_of(std::int64_t b, std::int64_t t) const;
  std::int64_t position_of(std::int64_t b, std::int64_t t) const;
  bool skipped(std::int64_t row) const;
  void make_new_rows(Placement placement);
  void make_cache(Placement placement, int fill);
  void make_rotary(Placement placement);
  void connect();
  void compute_expected();
  std::vector<float> row_values(const Operand& operand, std::int64_t b, std::int64_t t,
                                std::int64_t head, std::int64_t dim, bool rotated) const;

  Case item_;
  std::vector<std::int64_t> starts_;
  std::vector<std::vector<std::int64_t>> pages_;
  std::vector<tegula_index> indices_;
  std::vector<std::byte> before_k_, before_v_, before_q_;
  std::vector<std::byte> expected_k_, expected_v_, expected_q_;
  tegula_append_kv_args args_{};
};

}  // namespace tegula::cases
