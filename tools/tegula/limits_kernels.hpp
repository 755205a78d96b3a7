// SPDX-License-Identifier: Apache-2.0
// What a thread does to show the machine's limits: one block of work each, some 20 to 100 us long.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tegula::program {

// Operations of one block; 0 where the machine lacks the instruction.
using ComputeBlock = double (*)();
double fma_block();  // fp32 multiply-adds in the widest vectors
double dot_block();  // vdpbf16ps
double amx_block();  // tdpbf16ps on random data: on zeros the clock does not drop, and the rate is
                     // a quarter higher
bool has_dot();
bool has_amx();  // asks the system for permission to use tiles

// How a read is spread: streams that advance side by side, and how far ahead each is prefetched (0:
// not at all).
struct ReadVariant {
  int streams;
  int prefetch_bytes;
};
inline constexpr ReadVariant kReadVariants[] = {
    {1, 0}, {2, 0}, {4, 0}, {1, 1024}, {2, 1024}, {4, 1024}, {1, 4096}, {2, 4096}, {4, 4096}};

// Reads `bytes` of each stream; stream s begins at data + s * stride. bytes: a multiple of 256.
void read_block(const std::byte* data, std::size_t stride, std::size_t bytes, ReadVariant variant);

}  // namespace tegula::program
