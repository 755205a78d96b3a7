// SPDX-License-Identifier: Apache-2.0
// wgmma: 64 rows of A by N columns of B, 16 in k, fp32 sums in N / 2 registers a thread.
#pragma once

#include "device/ptx/sync.hpp"

namespace tegula::device::ptx {

TEGULA_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TEGULA_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kOutstanding>
TEGULA_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOutstanding) : "memory");
}
// Keeps reads and writes of these registers on their side of an asynchronous wgmma: the compiler
// does not know that it writes them after the statement that issued it.
template <int kCount>
TEGULA_DEVICE void pin(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// a, b: matrix descriptors, or A in registers; !accumulate: d = a b, else d += a b.
//   ss   A and B from shared memory, both K-major (Q, K)
//   rs   A from registers; kTransposeB: B is MN-major (V), else K-major
template <Dtype kDtype, int kN>
struct Wgmma;

// clang-format off
#define TEGULA_ACC_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TEGULA_REG_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define TEGULA_REG_16 TEGULA_REG_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define TEGULA_REG_24 TEGULA_REG_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define TEGULA_REG_32 TEGULA_REG_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define TEGULA_REG_40 TEGULA_REG_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TEGULA_REG_48 TEGULA_REG_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define TEGULA_REG_56 TEGULA_REG_48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define TEGULA_REG_64 TEGULA_REG_56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define TEGULA_REG_72 TEGULA_REG_64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define TEGULA_REG_80 TEGULA_REG_72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define TEGULA_REG_88 TEGULA_REG_80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define TEGULA_REG_96 TEGULA_REG_88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define TEGULA_REG_104 TEGULA_REG_96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define TEGULA_REG_112 TEGULA_REG_104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define TEGULA_REG_120 TEGULA_REG_112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define TEGULA_REG_128 TEGULA_REG_120 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define TEGULA_OUT_8 TEGULA_ACC_8(0)
#define TEGULA_OUT_16 TEGULA_OUT_8, TEGULA_ACC_8(8)
#define TEGULA_OUT_24 TEGULA_OUT_16, TEGULA_ACC_8(16)
#define TEGULA_OUT_32 TEGULA_OUT_24, TEGULA_ACC_8(24)
#define TEGULA_OUT_40 TEGULA_OUT_32, TEGULA_ACC_8(32)
#define TEGULA_OUT_48 TEGULA_OUT_40, TEGULA_ACC_8(40)
#define TEGULA_OUT_56 TEGULA_OUT_48, TEGULA_ACC_8(48)
#define TEGULA_OUT_64 TEGULA_OUT_56, TEGULA_ACC_8(56)
#define TEGULA_OUT_72 TEGULA_OUT_64, TEGULA_ACC_8(64)
#define TEGULA_OUT_80 TEGULA_OUT_72, TEGULA_ACC_8(72)
#define TEGULA_OUT_88 TEGULA_OUT_80, TEGULA_ACC_8(80)
#define TEGULA_OUT_96 TEGULA_OUT_88, TEGULA_ACC_8(88)
#define TEGULA_OUT_104 TEGULA_OUT_96, TEGULA_ACC_8(96)
#define TEGULA_OUT_112 TEGULA_OUT_104, TEGULA_ACC_8(104)
#define TEGULA_OUT_120 TEGULA_OUT_112, TEGULA_ACC_8(112)
#define TEGULA_OUT_128 TEGULA_OUT_120, TEGULA_ACC_8(120)

#define TEGULA_WGMMA_LAST_32 "38"
#define TEGULA_WGMMA_LAST_40 "46"
#define TEGULA_WGMMA_LAST_48 "54"
#define TEGULA_WGMMA_LAST_56 "62"
#define TEGULA_WGMMA_LAST_64 "70"
#define TEGULA_WGMMA_LAST_72 "78"
#define TEGULA_WGMMA_LAST_80 "86"
#define TEGULA_WGMMA_LAST_88 "94"
#define TEGULA_WGMMA_LAST_96 "102"
#define TEGULA_WGMMA_LAST_128 "134"

// The numbers of the operands after N / 2 accumulators come as a ... f.
#define TEGULA_WGMMA(dtype, type, n, half, a, b, c, e, f, g)                                        \
  template <>                                                                                       \
  struct Wgmma<dtype, n> {                                                                          \
    static TEGULA_DEVICE void ss(float (&d)[half], u64 left, u64 right, bool accumulate) {          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" c ", 0;\n"                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type                  \
                   " {" TEGULA_REG_##half "}, %" a ", %" b ", p, 1, 1, 0, 0;\n}"                    \
                   : TEGULA_OUT_##half : "l"(left), "l"(right), "r"(static_cast<int>(accumulate))); \
    }                                                                                               \
    template <bool kTransposeB>                                                                     \
    static TEGULA_DEVICE void rs(float (&d)[half], const u32* left, u64 right, bool accumulate) {   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" f ", 0;\n"                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type                  \
                   " {" TEGULA_REG_##half "}, {%" a ",%" b ",%" c ",%" e "}, %" g                    \
                   ", p, 1, 1, %" TEGULA_WGMMA_LAST_##half ";\n}"                                  \
                   : TEGULA_OUT_##half                                                              \
                   : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),            \
                     "r"(static_cast<int>(accumulate)), "n"(kTransposeB ? 1 : 0));                  \
    }                                                                                               \
  };
TEGULA_WGMMA(Dtype::kBf16, "bf16", 64, 32, "32", "33", "34", "35", "37", "36")
TEGULA_WGMMA(Dtype::kF16, "f16", 64, 32, "32", "33", "34", "35", "37", "36")
TEGULA_WGMMA(Dtype::kBf16, "bf16", 80, 40, "40", "41", "42", "43", "45", "44")
TEGULA_WGMMA(Dtype::kF16, "f16", 80, 40, "40", "41", "42", "43", "45", "44")
TEGULA_WGMMA(Dtype::kBf16, "bf16", 96, 48, "48", "49", "50", "51", "53", "52")
TEGULA_WGMMA(Dtype::kF16, "f16", 96, 48, "48", "49", "50", "51", "53", "52")
TEGULA_WGMMA(Dtype::kBf16, "bf16", 112, 56, "56", "57", "58", "59", "61", "60")
TEGULA_WGMMA(Dtype::kF16, "f16", 112, 56, "56", "57", "58", "59", "61", "60")
TEGULA_WGMMA(Dtype::kBf16, "bf16", 128, 64, "64", "65", "66", "67", "69", "68")
TEGULA_WGMMA(Dtype::kF16, "f16", 128, 64, "64", "65", "66", "67", "69", "68")
TEGULA_WGMMA(Dtype::kBf16, "bf16", 144, 72, "72", "73", "74", "75", "77", "76")
TEGULA_WGMMA(Dtype::kF16, "f16", 144, 72, "72", "73", "74", "75", "77", "76")
TEGULA_WGMMA(Dtype::kBf16, "bf16", 160, 80, "80", "81", "82", "83", "85", "84")
TEGULA_WGMMA(Dtype::kF16, "f16", 160, 80, "80", "81", "82", "83", "85", "84")
TEGULA_WGMMA(Dtype::kBf16, "bf16", 176, 88, "88", "89", "90", "91", "93", "92")
TEGULA_WGMMA(Dtype::kF16, "f16", 176, 88, "88", "89", "90", "91", "93", "92")
TEGULA_WGMMA(Dtype::kBf16, "bf16", 192, 96, "96", "97", "98", "99", "101", "100")
TEGULA_WGMMA(Dtype::kF16, "f16", 192, 96, "96", "97", "98", "99", "101", "100")
TEGULA_WGMMA(Dtype::kBf16, "bf16", 256, 128, "128", "129", "130", "131", "133", "132")
TEGULA_WGMMA(Dtype::kF16, "f16", 256, 128, "128", "129", "130", "131", "133", "132")
#undef TEGULA_WGMMA
// clang-format on

}  // namespace tegula::device::ptx
