// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/jit/digest.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace tegula::cuda {
namespace {

std::string sha256(const std::string& text, size_t step) {
  Sha256 hash;
  for (size_t i = 0; i < text.size(); i += step)
    hash.add(text.data() + i, std::min(step, text.size() - i));
  return hex(hash.finish());
}

// The examples of FIPS 180-4, and what sha256sum says of lengths around a block's end.
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc", 1), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(55, 'a'), 55),
            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(sha256(std::string(64, 'a'), 64),
            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  EXPECT_EQ(sha256(std::string(1000000, 'a'), 1000),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesMakeNoDifference) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  const std::string whole = sha256(text, text.size());
  for (const size_t step : {1, 3, 63, 64, 65, 127, 128, 999})
    EXPECT_EQ(sha256(text, step), whole) << step;
}

TEST(Sha256, TheBorderBetweenFieldsCounts) {
  Sha256 first, second;
  first.add_field("ab");
  first.add_field("c");
  second.add_field("a");
  second.add_field("bc");
  EXPECT_NE(first.finish(), second.finish());
}

}  // namespace
}  // namespace tegula::cuda
