// SPDX-License-Identifier: Apache-2.0
// Stand-ins for the library. Attention as a first program would write it: fp32 scores of a whole
// row, softmax, PV; and the oracle's rows as they are.
#include <cmath>
#include <limits>
#include <vector>

#include "tests/cases/verify.hpp"

namespace tegula::cases {

void run_naive(ForwardData& data) {
  const Case& item = data.item();
  for (std::int64_t b = 0; b < item.batch(); ++b) {
    const oracle::Attention call = data.attention(b, 0.0);
    for (std::int64_t i = 0; i < call.seqlen_q; ++i) {
      for (std::int64_t h = 0; h < call.num_heads_q; ++h) {
        const std::int64_t head_kv = h / (call.num_heads_q / call.num_heads_kv);
        const double* q = call.q.data() + (i * call.num_heads_q + h) * call.head_dim;
        const float sink = call.sink.empty()
                               ? -std::numeric_limits<float>::infinity()
                               : static_cast<float>(call.sink[static_cast<std::size_t>(h)]);
        std::vector<float> p(static_cast<std::size_t>(call.seqlen_k),
                             -std::numeric_limits<float>::infinity());
        float top = sink;
        bool any = false;
        for (std::int64_t j = 0; j < call.seqlen_k; ++j) {
          const double bias = call.bias ? call.bias(h, i, j) : 0.0;
          if (!oracle::visible(call, i, j) || std::isinf(bias)) continue;
          const double* k = call.k.data() + (j * call.num_heads_kv + head_kv) * call.head_dim;
          float s = 0.0f;
          for (std::int64_t d = 0; d < call.head_dim; ++d) {
            s += static_cast<float>(q[d]) * static_cast<float>(k[d]);
          }
          s *= static_cast<float>(call.softmax_scale);
          if (call.softcap > 0.0) {
            const auto cap = static_cast<float>(call.softcap);
            s = cap * std::tanh(s / cap);
          }
          s += static_cast<float>(bias);
          if (!call.alibi_slopes.empty()) {
            s -= static_cast<float>(call.alibi_slopes[static_cast<std::size_t>(h)]) *
                 std::fabs(static_cast<float>(i + call.seqlen_k - call.seqlen_q - j));
          }
          p[static_cast<std::size_t>(j)] = s;
          any = true;
          if (s > top || std::isnan(s)) top = s;
        }
        float sum = std::isinf(sink) ? 0.0f : std::exp(sink - top);
        if (any) {
          for (float& s : p) {
            s = std::isinf(s) ? 0.0f : std::exp(s - top);
            sum += s;
          }
        }
        for (std::int64_t d = 0; d < call.head_dim_v; ++d) {
          float o = 0.0f;
          for (std::int64_t j = 0; any && j < call.seqlen_k; ++j) {
            const float weight = p[static_cast<std::size_t>(j)];
            if (weight == 0.0f) continue;
            o += weight * static_cast<float>(
                              call.v[static_cast<std::size_t>(
                                  (j * call.num_heads_kv + head_kv) * call.head_dim_v + d)]);
          }
          data.set_o(b, i, h, d, static_cast<double>(any ? o / sum : 0.0f));
        }
        if (item.lse) {
          data.set_lse(b, i, h, static_cast<double>(any ? top + std::log(sum) : sink));
        }
      }
    }
  }
}

void run_oracle(ForwardData& data, const ChangeSequence& change) {
  const Case& item = data.item();
  for (std::int64_t b = 0; b < item.batch(); ++b) {
    oracle::Attention call = data.attention(b, 0.0);
    if (change) change(b, call);
    for (std::int64_t i = 0; i < call.seqlen_q; ++i) {
      for (std::int64_t h = 0; h < call.num_heads_q; ++h) {
        const oracle::Row row = oracle::attend_row(call, i, h);
        for (std::int64_t d = 0; d < call.head_dim_v; ++d) {
          data.set_o(b, i, h, d, row.o[static_cast<std::size_t>(d)]);
        }
        if (item.lse) data.set_lse(b, i, h, row.lse);
      }
    }
  }
}

}  // namespace tegula::cases
