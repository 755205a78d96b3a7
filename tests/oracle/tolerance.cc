// SPDX-License-Identifier: Apache-2.0
// docs/contract.md, section 12, as functions of the oracle's rows; and the reference for combine.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/oracle/oracle.hpp"

namespace tegula::oracle {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kDenormal = 0x1p-125;  // values below 2^-126 may count as 0

double rounding_of(Format o, double reference) {
  return o == Format::kFp32 ? 0.0 : ulp(o, reference);
}

double ratio(double error, double bound) { return error == 0.0 ? 0.0 : error / bound; }

// A finite reference beyond the output format's range legally becomes Inf.
bool overflows(Format o, double reference, double actual) {
  return std::isinf(actual) && std::isinf(decode(o, encode(o, reference))) &&
         std::signbit(actual) == std::signbit(reference);
}

}  // namespace

Limits limits_for(DeviceClass device, Format q) {
  const bool eight = bytes_of(q) == 1;
  Limits limits;
  switch (q) {
    case Format::kFp32: limits.u = 0x1p-24; break;
    case Format::kFp16: limits.u = 0x1p-11; break;
    case Format::kBf16: limits.u = 0x1p-8; break;
    default: limits.u = device == DeviceClass::kCuda ? 0x1p-4 : 0x1p-8; break;
  }
  limits.e = q == Format::kFp32 ? 0x1p-20 : 1e-4;
  limits.e_lse = q == Format::kFp32 ? 0x1p-20 : 3e-4;
  limits.score_factor = 0x1p-20;
  if (device == DeviceClass::kCpuAmx) limits.p_underflow = 0x1p-32;
  if (device == DeviceClass::kCuda) {
    limits.truncation = 0x1p-29;
    if (q == Format::kFp16) limits.p_underflow = 0x1p-25;
    if (eight) {
      limits.p_underflow = 0x1p-16;
      limits.e = 1e-2;
      limits.score_factor = 0x1p-10;
    }
  }
  return limits;
}

double o_bound(const Limits& limits, const Row& row, std::int64_t d, Format o) {
  const auto index = static_cast<std::size_t>(d);
  const auto n = static_cast<double>(row.visible);
  return 4.0 * limits.u * row.rms[index] +
         (limits.e + 0x1p-23 * std::sqrt(n) + limits.truncation * n) * row.abs[index] +
         limits.score_factor * row.score[index] + row.flush[index] +
         rounding_of(o, row.o[index]) + kDenormal;
}

double lse_bound(const Limits& limits, const Row& row) {
  const auto n = static_cast<double>(row.visible);
  return limits.e_lse + limits.score_factor * (row.w + std::fabs(row.lse)) +
         0x1p-23 * std::sqrt(n);
}

double o_ratio(const Limits& limits, const Row& row, std::int64_t d, Format o, double actual) {
  const double reference = row.o[static_cast<std::size_t>(d)];
  if (row.visible == 0) return actual == 0.0 ? 0.0 : kInf;
  if (std::isnan(reference)) return std::isnan(actual) ? 0.0 : kInf;
  if (overflows(o, reference, actual)) return 0.0;
  if (!std::isfinite(actual)) return kInf;
  return ratio(std::fabs(actual - reference), o_bound(limits, row, d, o));
}

double lse_ratio(const Limits& limits, const Row& row, double actual) {
  if (row.visible == 0) return actual == row.lse ? 0.0 : kInf;
  if (std::isnan(row.lse)) return std::isnan(actual) ? 0.0 : kInf;
  if (!std::isfinite(actual)) return kInf;
  return ratio(std::fabs(actual - row.lse), lse_bound(limits, row));
}

Combined combine_row(const Partials& partials) {
  Combined row;
  const std::size_t dims = partials.o.empty() ? 0 : partials.o.front().size();
  row.o.assign(dims, 0.0);
  row.weight.assign(dims, 0.0);
  row.empty = true;
  double shift = partials.has_sink ? partials.sink : -kInf;
  bool poisoned = false;
  for (const double lse : partials.lse) {
    if (std::isinf(lse)) continue;
    row.empty = false;
    poisoned = poisoned || std::isnan(lse);
    shift = std::max(shift, lse);
  }
  if (row.empty) {
    row.lse = shift;
    return row;
  }
  double denominator = partials.has_sink && partials.sink != -kInf
                           ? std::exp(partials.sink - shift)
                           : 0.0;
  for (const double lse : partials.lse) {
    if (!std::isinf(lse)) denominator += std::exp(lse - shift);
  }
  row.lse = poisoned ? std::numeric_limits<double>::quiet_NaN() : shift + std::log(denominator);
  for (std::size_t s = 0; s < partials.lse.size(); ++s) {
    if (std::isinf(partials.lse[s])) continue;
    const double weight = std::exp(partials.lse[s] - row.lse);
    for (std::size_t d = 0; d < dims; ++d) {
      row.o[d] += weight * partials.o[s][d];
      row.weight[d] +=
          weight * (1.0 + std::fabs(partials.lse[s] - row.lse)) * std::fabs(partials.o[s][d]);
    }
  }
  return row;
}

double combine_o_ratio(const Combined& row, std::int64_t d, Format o, double actual) {
  const auto index = static_cast<std::size_t>(d);
  const double reference = row.o[index];
  if (row.empty) return actual == 0.0 ? 0.0 : kInf;
  if (std::isnan(reference)) return std::isnan(actual) ? 0.0 : kInf;
  if (overflows(o, reference, actual)) return 0.0;
  if (!std::isfinite(actual)) return kInf;
  const double bound = 0x1p-20 * row.weight[index] + ulp(o, reference) + kDenormal;
  return ratio(std::fabs(actual - reference), bound);
}

double combine_lse_ratio(const Combined& row, double actual) {
  if (row.empty) return actual == row.lse ? 0.0 : kInf;
  if (std::isnan(row.lse)) return std::isnan(actual) ? 0.0 : kInf;
  if (!std::isfinite(actual)) return kInf;
  return ratio(std::fabs(actual - row.lse), 0x1p-20 * (1.0 + std::fabs(row.lse)));
}

}  // namespace tegula::oracle
