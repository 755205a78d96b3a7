// SPDX-License-Identifier: Apache-2.0
// A forward case: its operands, what the library is asked, and what must come out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tegula/tegula.h>

#include "tests/cases/cases.hpp"
#include "tests/cases/operand.hpp"
#include "tests/oracle/oracle.hpp"

namespace tegula::cases {

// What a comparison found. `worst` is the largest ratio of error to tolerance; it passes up to 1.
struct Verdict {
  double worst = 0.0;
  std::string where;    // of the worst element: indices, value, reference
  std::string failure;  // not empty: something that has no tolerance went wrong

  bool passed() const { return failure.empty() && worst <= 1.0; }
  std::string text() const;
};

// Operands of one forward call, filled and poisoned: what no query of the call can see is NaN, table
// entries that must not be read are garbage, outputs hold a pattern.
class ForwardData {
 public:
  ForwardData(const Case& item, Placement placement, int output_fill);
  ForwardData(const ForwardData&) = delete;
  ForwardData& operator=(const ForwardData&) = delete;

  const Case& item() const { return item_; }
  const tegula_forward_args& args() const { return args_; }

  // The problem of args(), or of the same operands elsewhere, with the case's mask, scale and splits.
  tegula_status problem(tegula_problem* made) const { return problem(args_, made); }
  tegula_status problem(const tegula_forward_args& args, tegula_problem* made) const;

  // Sequence b widened to double.
  oracle::Attention attention(std::int64_t b, double p_underflow) const;

  // Rows of o and lse: [b][i][h] as (outer, token) in the tensors.
  std::int64_t used_q(std::int64_t b) const { return item_.seqlens_q[static_cast<std::size_t>(b)]; }
  double o(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) const;
  double lse(std::int64_t b, std::int64_t i, std::int64_t h) const;
  bool undefined(std::int64_t b, std::int64_t i, std::int64_t h) const;
  void set_o(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d, double value);
  void set_lse(std::int64_t b, std::int64_t i, std::int64_t h, double value);

  // The text of the first byte outside the used rows that lost the pattern; "" if none.
  std::string damage() const;

  std::string untouched() const;  // "" if no output byte changed: what a refused call owes

  // The bits of the used rows, in one order whatever the strides, for comparing runs.
  std::vector<std::byte> used_bits() const;

  void refill_outputs(int fill);

  // Public for tests that change an operand before the call.
  Operand q, k, v, out, log_sum_exp;
  Operand cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, cu_seqlens_new;
  Operand page_table, page_indices, page_indptr;
  Operand sink, alibi_slopes, bias, descale_q, descale_k, descale_v;

 private:
  struct Place {
    std::int64_t outer;
    std::int64_t token;
  };
  Place place_q(std::int64_t b, std::int64_t i) const;
  Place place_k(std::int64_t b, std::int64_t j) const;
  void make_queries(Placement placement);
  void make_keys(Placement placement);
  void make_pages(Placement placement);
  void fill_keys();
  void make_extras(Placement placement);
  void make_bias(Placement placement);
  void make_descales(Placement placement);
  void connect();
  oracle::Attention shape_of(std::int64_t b) const;
  double descale(const Operand& operand, std::int64_t b, std::int64_t head_kv) const;

  Case item_;
  int output_fill_;
  std::vector<std::int64_t> start_q_, start_k_;               // ragged: first row of each sequence
  std::vector<std::vector<std::int64_t>> pages_;              // page ids of each sequence
  std::vector<std::vector<bool>> seen_;                       // keys that some query sees
  std::vector<tegula_index> indices_;
  tegula_forward_args args_{};
};

// The oracle's rows of a case, computed once and used for every run of it.
class ForwardReference {
 public:
  ForwardReference(const ForwardData& data, oracle::DeviceClass device);
  Verdict judge(const ForwardData& data) const;
  const oracle::Row& row(std::int64_t b, std::int64_t i, std::int64_t h) const;

 private:
  oracle::Limits limits_;
  std::vector<std::vector<oracle::Row>> rows_;  // [batch][i * num_heads_q + h]
  std::int64_t num_heads_q_;
};

}  // namespace tegula::cases
