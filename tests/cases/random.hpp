// SPDX-License-Identifier: Apache-2.0
// Inputs of the case table, by integer arithmetic alone, so that every language makes the same bits.
#pragma once

#include <cmath>
#include <cstdint>

namespace tegula::cases {

// Output number `index` of the splitmix64 sequence that starts at `seed`.
inline std::uint64_t splitmix64(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Sum of four 32-bit draws minus 2^33: nearly normal, standard deviation 1.155 * 2^31.
inline std::int64_t bell(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t a = splitmix64(seed, 2 * index);
  const std::uint64_t b = splitmix64(seed, 2 * index + 1);
  const std::uint64_t sum = (a >> 32) + (a & 0xffffffffu) + (b >> 32) + (b & 0xffffffffu);
  return static_cast<std::int64_t>(sum) - (std::int64_t{1} << 33);
}

// One value of standard deviation 1.155 * 2^log2_scale * factor: exact in double (35 bits times a small integer), to be rounded once to its type.
inline double value(std::uint64_t seed, std::uint64_t index, int log2_scale, int factor = 1) {
  return std::ldexp(static_cast<double>(bell(seed, index) * factor), log2_scale - 31);
}

// Independent sequences of one case: seed of operand number `stream`.
inline std::uint64_t stream_seed(std::uint64_t seed, std::uint64_t stream) {
  return splitmix64(seed ^ 0x7465677561000000u, stream);
}

}  // namespace tegula::cases
