// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/program/trace_util.hpp"
#include "tools/tegula/trace.hpp"

namespace tegula::program {
namespace {

MadeTrace small() { return MadeTrace::make(oracle::Format::kBf16, {{.number = 3}}, {{5, 2}}); }

TEST(Trace, ReadsWhatLayersDifferIn) {
  const Folder folder;
  const auto path = folder / "trace";
  MadeTrace::make(oracle::Format::kFp16,
                  {{.number = 3},
                   {.number = 12, .num_heads_q = 6, .num_heads_kv = 3, .head_dim = 8, .head_dim_v = 24,
                    .scale = 0.5, .softcap = 30.0, .window_left = 2, .sink = true}},
                  {{5, 2}, {1, 0}})
      .write(path);
  const Trace trace = Trace::open(path);
  EXPECT_EQ(trace.model(), "made");
  EXPECT_EQ(trace.dtype(), Dtype::kF16);
  ASSERT_EQ(trace.layers().size(), 2U);
  EXPECT_EQ(trace.layers()[0].number, 3);
  EXPECT_EQ(trace.layers()[0].window_left, -1);
  EXPECT_TRUE(trace.layers()[0].sink.empty());
  const TraceLayer& second = trace.layers()[1];
  EXPECT_EQ(second.number, 12);
  EXPECT_EQ(second.num_heads_kv, 3);
  EXPECT_EQ(second.head_dim_v, 24);
  EXPECT_EQ(second.softmax_scale, 0.5);
  EXPECT_EQ(second.softcap, 30.0);
  EXPECT_EQ(second.window_left, 2);
  EXPECT_EQ(second.sink.size(), 6U);
  ASSERT_EQ(trace.prompts().size(), 2U);
  EXPECT_EQ(trace.prompts()[0].tokens(), 7);
  EXPECT_EQ(trace.prompts()[1].steps, 0);
  EXPECT_EQ(trace.rows(0, 1, 'v').prefill->shape, (std::vector<std::int64_t>{5, 3, 24}));
  EXPECT_EQ(trace.rows(1, 0, 'q').decode->shape, (std::vector<std::int64_t>{0, 4, 16}));
}

struct Wrong {
  std::function<void(MadeTrace&)> change;
  const char* text;
};

std::function<void(MadeTrace&)> set(const std::string& key, const std::string& value) {
  return [=](MadeTrace& trace) { trace.metadata[key] = value; };
}

std::function<void(MadeTrace&)> drop(const std::string& key) {
  return [=](MadeTrace& trace) { trace.metadata.erase(key); };
}

TEST(Trace, NamesWhatIsWrong) {
  const std::string q = "prompt0.layer03.prefill.q";
  const std::vector<Wrong> all = {
      {drop("format"), "no trace: metadata 'format' is absent"},
      {set("format", "other"), "is other where 'tegula-trace' is expected"},
      {set("format_version", "2"), "format_version: 2 where this program reads 1"},
      {drop("format_version"), "format_version"},
      {set("mask", "full"), "mask: 'full' where 'causal' is expected"},
      {set("dtype", "fp64"), "dtype: fp64 is none of"},
      {set("dtype", "e4m3"), "8 bits where 16 or 32 are expected"},
      {set("dtype", "fp16"), "type bf16 where the metadata says f16"},
      {set("layers", ""), "layers: '' is no number"},
      {set("layers", "3,"), "layers: '' is no number"},
      {set("layers", "3,3"), "does not ascend"},
      {set("layers", "3,2"), "does not ascend"},
      {set("layers", "40"), "'40' is no number in [0, 39]"},
      {set("layers", "-1"), "'-1' is no number in [0, 39]"},
      {set("layers", "3x"), "'3x' is no number"},
      {set("model_layers", "0"), "model_layers"},
      {set("num_heads_q", "0"), "num_heads_q: '0' is no number in [1, 65536]"},
      {set("num_heads_q", "99999999999999999999"), "num_heads_q"},
      {set("num_heads_kv", "3"), "num_heads_kv 3 does not divide num_heads_q 4"},
      {set("num_heads_kv", "4"), "shape [5, 2, 16] where the metadata says [5, 4, 16]"},
      {set("head_dim", "16.5"), "'16.5' is no number"},
      {set("head_dim_v", "8"), "prefill.v: shape [5, 2, 16] where the metadata says [5, 2, 8]"},
      {set("scale", "nan"), "scale: 'nan' is no number"},
      {set("scale", "0"), "scale 0 is not more than 0"},
      {set("scale", "inf"), "scale: 'inf' is no number"},
      {set("softcap", "-1"), "softcap: '-1' is no number"},
      {set("window_left", "-2"), "window_left: '-2' is no number in [-1, "},
      {set("layer03.window_left", "-2"), "layer03.window_left: '-2' is no number"},
      {set("num_prompts", "0"), "num_prompts"},
      {set("num_prompts", "2"), "prompt1.prompt_tokens"},
      {set("num_prompts", "1000000000"), "num_prompts"},
      {set("prompt0.prompt_tokens", "6"), "shape [5, 4, 16] where the metadata says [6, 4, 16]"},
      {set("prompt0.prompt_tokens", "0"), "prompt_tokens: '0' is no number"},
      {set("prompt0.steps", "3"), "decode.q: shape [2, 4, 16] where the metadata says [3, 4, 16]"},
      {set("prompt0.steps", "-1"), "steps: '-1' is no number"},
      {[=](MadeTrace& t) { t.tensors.erase(q); }, "prompt0.layer03.prefill.q"},
      {[](MadeTrace& t) { t.tensors["layer03.sink"] = {io::Dtype::kF32, {3}, std::vector<std::byte>(12)}; },
       "layer03.sink: shape [3] where the metadata says [4]"},
      {[](MadeTrace& t) { t.tensors["layer03.sink"] = {io::Dtype::kI32, {4}, std::vector<std::byte>(16)}; },
       "layer03.sink: type i32 where the metadata says f32"}};
  const Folder folder;
  const auto path = folder / "trace";
  for (const Wrong& wrong : all) {
    MadeTrace trace = small();
    wrong.change(trace);
    trace.write(path);
    try {
      Trace::open(path);
      ADD_FAILURE() << "taken, where this is expected: " << wrong.text;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(wrong.text), std::string::npos)
          << error.what() << "\n  does not hold: " << wrong.text;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  small().write(path);
  EXPECT_NO_THROW(Trace::open(path));
}

}  // namespace
}  // namespace tegula::program
