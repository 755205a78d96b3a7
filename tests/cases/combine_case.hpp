// SPDX-License-Identifier: Apache-2.0
// A combine case: partial results, some of them empty with poison in their o, and what they merge to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tegula/tegula.h>

#include "tests/cases/cases.hpp"
#include "tests/cases/forward_case.hpp"
#include "tests/cases/operand.hpp"

namespace tegula::cases {

class CombineData {
 public:
  CombineData(const Case& item, Placement placement, int output_fill);
  CombineData(const CombineData&) = delete;
  CombineData& operator=(const CombineData&) = delete;

  const tegula_combine_args& args() const { return args_; }
  // The tensors say that they lie on a GPU, which they do not: for refusals.
  void claim_gpu(std::int32_t index);
  Verdict judge() const;
  std::vector<std::byte> used_bits() const;
  std::string untouched() const;

  Operand o_partial, lse_partial, out, log_sum_exp, sink;

 private:
  std::int64_t outer() const { return item_.ragged_q ? 1 : item_.batch(); }
  std::byte* address_o(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) const;
  std::byte* address_lse(std::int64_t b, std::int64_t i, std::int64_t h) const;
  template <typename Visit>
  void each_row(Visit visit) const;

  Case item_;
  int output_fill_;
  std::int64_t tokens_ = 0;
  tegula_combine_args args_{};
};

}  // namespace tegula::cases
