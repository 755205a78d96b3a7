// SPDX-License-Identifier: Apache-2.0
// The features of a forward case, one value an axis of tests/cases/axes.json, and the pairs of
// values that the table does not cover yet.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/cases/cases.hpp"

namespace tegula::cases {

struct Axes {
  struct Illegal {
    std::string axis, with, why;
    std::vector<std::string> values, are;
  };
  std::map<std::string, std::vector<std::string>> axes;
  std::vector<Illegal> illegal;

  bool legal(const std::string& axis, const std::string& value, const std::string& with,
             const std::string& other) const;
};

Axes load_axes(const std::string& path);

// Axis to value. A case of another operation has none; one that is refused counts for nothing.
std::map<std::string, std::string> features_of(const Case& item);

// "q_dtype=f32 with mask=chunk", for every legal pair that no case has.
std::vector<std::string> missing_pairs(const Axes& axes, const std::vector<Case>& table);

}  // namespace tegula::cases
