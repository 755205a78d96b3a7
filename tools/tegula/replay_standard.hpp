// SPDX-License-Identifier: Apache-2.0
// The same sequences through standard attention: fp32, contiguous K and V that already lie in place.
#pragma once

#include <cstddef>
#include <vector>

#include "tools/tegula/replay_engine.hpp"
#include "tools/tegula/standard_attention.hpp"

namespace tegula::program {

class StandardReplay {
 public:
  // Takes the values that lay in the caches of `round`.
  StandardReplay(const ReplayEngine& engine, const Round& round, Workers& workers);

  // The calls of `schedule`, one for one; attention alone is timed.
  struct Times {
    double prefill = 0.0, decode = 0.0;
  };
  Times play(const std::vector<ScheduledStep>& schedule);

  // [tokens, num_heads_q, head_dim_v] of prompt p, layer l.
  const std::vector<float>& o(std::size_t p, std::size_t l) const { return inputs_[p][l].o; }
  std::size_t scores_bytes() const { return attention_.scores_bytes(); }
  std::size_t extra_bytes() const { return attention_.extra_bytes(); }

 private:
  struct Input {
    std::vector<float> q, k, v, o;  // k, v: [num_heads_kv, tokens, dim]
  };

  const ReplayEngine& engine_;
  std::vector<std::vector<Input>> inputs_;  // [prompt][layer]
  StandardAttention attention_;
};

}  // namespace tegula::program
