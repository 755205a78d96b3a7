// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/run_check.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "tests/oracle/oracle.hpp"
#include "tools/tegula/library.hpp"
#include "tools/tegula/progress.hpp"

namespace tegula::program {
namespace {

// Any element of a checked tensor as a number; missing trailing coordinates are 0.
class Reader {
 public:
  explicit Reader(Tensor tensor) : tensor_(tensor) {
    if (!tensor.present()) return;
    data_ = static_cast<const std::byte*>(tensor.data());
    const tegula_tensor& c = tensor.c();
    size_ = static_cast<std::size_t>(c.type_bits) / 8;
    is_bool_ = c.type_code == 6;  // DLPack's codes
    if (c.type_code == 2) format_ = c.type_bits == 32 ? oracle::Format::kFp32 : oracle::Format::kFp16;
    if (c.type_code == 4) format_ = oracle::Format::kBf16;
    if (c.type_code == 10) format_ = oracle::Format::kE4m3;
    if (c.type_code == 12) format_ = oracle::Format::kE5m2;
  }

  bool present() const { return data_ != nullptr; }
  bool is_bool() const { return is_bool_; }
  oracle::Format format() const { return format_; }
  int ndim() const { return tensor_.ndim(); }
  std::int64_t size(int i) const { return tensor_.size(i); }

  double at(std::int64_t a, std::int64_t b = 0, std::int64_t c = 0, std::int64_t d = 0) const {
    const std::int64_t index[] = {a, b, c, d};
    std::int64_t offset = 0;
    for (int i = 0; i < tensor_.ndim(); ++i) {
      if (tensor_.size(i) > 1) offset += index[i] * tensor_.stride(i);
    }
    const std::byte* element = data_ + static_cast<std::ptrdiff_t>(offset) * static_cast<std::ptrdiff_t>(size_);
    return is_bool_ ? static_cast<double>(std::to_integer<int>(*element) != 0) : oracle::load(format_, element);
  }

 private:
  Tensor tensor_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool is_bool_ = false;
  oracle::Format format_ = oracle::Format::kFp32;
};

std::int64_t index_at(Index index, std::int64_t i, std::int64_t j = 0) {
  const tegula_tensor& c = index.c().tensor;
  const auto* data = reinterpret_cast<const std::int32_t*>(static_cast<const std::byte*>(c.data) + c.byte_offset);
  return data[i * c.strides[0] + (c.ndim > 1 ? j * c.strides[1] : 0)];
}

// The shapes and used lengths of sequence b, as docs/contract.md, 3, states them.
struct Place {
  std::int64_t q_outer = 0, q_first = 0, seqlen_q = 0;
  std::int64_t k_outer = 0, k_first = 0, seqlen_k = 0;
  std::int64_t leftpad = 0;
};

Place place_of(const ForwardArgs& args, std::int64_t b) {
  Place place;
  if (args.cu_seqlens_q.present()) {
    place.q_first = index_at(args.cu_seqlens_q, b);
    place.seqlen_q = index_at(args.cu_seqlens_q, b + 1) - place.q_first;
  } else {
    place.q_outer = b;
    place.seqlen_q = args.q.size(1);
  }
  if (args.seqused_q.present()) place.seqlen_q = index_at(args.seqused_q, b);
  if (args.cu_seqlens_k.present()) {
    place.k_first = index_at(args.cu_seqlens_k, b);
    place.seqlen_k = index_at(args.cu_seqlens_k, b + 1) - place.k_first;
  } else {
    place.k_outer = b;
    place.seqlen_k = args.k.size(1);
  }
  if (args.seqused_k.present()) place.seqlen_k = index_at(args.seqused_k, b);
  place.seqlen_k += args.seqlen_new;
  if (args.cu_seqlens_new.present()) {
    place.seqlen_k += index_at(args.cu_seqlens_new, b + 1) - index_at(args.cu_seqlens_new, b);
  }
  if (args.leftpad_k.present()) place.leftpad = index_at(args.leftpad_k, b);
  return place;
}

bool is_paged(const ForwardArgs& args) { return args.page_table.present() || args.page_indices.present(); }

// Row j of k or v: (outer, token) in the tensor.
std::pair<std::int64_t, std::int64_t> row_of(const ForwardArgs& args, const Place& place, std::int64_t b,
                                             std::int64_t j) {
  if (!is_paged(args)) return {place.k_outer, place.k_first + j};
  const std::int64_t page_size = args.k.size(1);
  const std::int64_t n = j / page_size;
  const std::int64_t page = args.page_table.present()
                                ? index_at(args.page_table, b, n)
                                : index_at(args.page_indices, index_at(args.page_indptr, b) + n);
  return {page, j % page_size};
}

// [1], [heads] or [batch, heads]; 1 where absent.
double per_head(const Reader& reader, std::int64_t b, std::int64_t head) {
  if (!reader.present()) return 1.0;
  return reader.ndim() == 2 ? reader.at(b, head) : reader.at(head);
}

struct Sequence {
  Place place;
  oracle::Attention call;
};

Sequence sequence_of(const ForwardArgs& args, const tegula_problem& problem, double p_underflow,
                     std::int64_t b) {
  Sequence sequence;
  sequence.place = place_of(args, b);
  const Place& place = sequence.place;
  oracle::Attention& call = sequence.call;
  call.seqlen_q = place.seqlen_q;
  call.seqlen_k = place.seqlen_k;
  call.num_heads_q = problem.num_heads_q;
  call.num_heads_kv = problem.num_heads_kv;
  call.head_dim = problem.head_dim;
  call.head_dim_v = problem.head_dim_v;
  call.softmax_scale = problem.softmax_scale > 0 ? problem.softmax_scale
                                                 : 1.0 / std::sqrt(static_cast<double>(problem.head_dim));
  call.softcap = problem.softcap;
  call.causal = problem.causal != 0;
  call.window_left = problem.window_left;
  call.window_right = problem.window_right;
  call.attention_chunk = problem.attention_chunk;
  call.leftpad_k = place.leftpad;
  call.p_underflow = p_underflow;

  const bool ragged_q = args.cu_seqlens_q.present(), ragged_k = args.cu_seqlens_k.present();
  const auto read = [](const Reader& reader, bool ragged, std::int64_t outer, std::int64_t token, std::int64_t h,
                       std::int64_t d) {
    return ragged ? reader.at(token, h, d) : reader.at(outer, token, h, d);
  };
  const Reader q(args.q), k(args.k), v(args.v);
  const Reader scale_q(args.descale_q), scale_k(args.descale_k), scale_v(args.descale_v);
  const std::int64_t group = problem.num_heads_q / std::max<std::int64_t>(problem.num_heads_kv, 1);
  for (std::int64_t i = 0; i < place.seqlen_q; ++i) {
    for (std::int64_t h = 0; h < call.num_heads_q; ++h) {
      for (std::int64_t d = 0; d < call.head_dim; ++d) {
        call.q.push_back(read(q, ragged_q, place.q_outer, place.q_first + i, h, d) *
                         per_head(scale_q, b, h / group));
      }
    }
  }
  // A key that no row sees may lie on a page that does not exist.
  std::vector<bool> seen(static_cast<std::size_t>(place.seqlen_k), !is_paged(args));
  for (std::int64_t i = 0; is_paged(args) && i < place.seqlen_q; ++i) {
    for (std::int64_t j = 0; j < place.seqlen_k; ++j) {
      if (oracle::visible(call, i, j)) seen[static_cast<std::size_t>(j)] = true;
    }
  }
  for (std::int64_t j = 0; j < place.seqlen_k; ++j) {
    const bool wanted = seen[static_cast<std::size_t>(j)];
    const auto [outer, token] = wanted ? row_of(args, place, b, j) : std::pair<std::int64_t, std::int64_t>{0, 0};
    for (std::int64_t h = 0; h < call.num_heads_kv; ++h) {
      for (std::int64_t d = 0; d < call.head_dim; ++d) {
        call.k.push_back(wanted ? read(k, ragged_k, outer, token, h, d) * per_head(scale_k, b, h) : 0.0);
      }
      for (std::int64_t d = 0; d < call.head_dim_v; ++d) {
        call.v.push_back(wanted ? read(v, ragged_k, outer, token, h, d) * per_head(scale_v, b, h) : 0.0);
      }
    }
  }
  const Reader sink(args.sink), slopes(args.alibi_slopes);
  for (std::int64_t h = 0; h < call.num_heads_q; ++h) {
    if (sink.present()) call.sink.push_back(sink.at(h));
    if (slopes.present()) call.alibi_slopes.push_back(per_head(slopes, b, h));
  }
  if (const Reader bias(args.bias); bias.present()) {
    call.bias = [bias, b](std::int64_t head, std::int64_t i, std::int64_t j) {
      const double value = bias.at(b, head, i, j);
      if (!bias.is_bool()) return value;
      return value != 0 ? 0.0 : -std::numeric_limits<double>::infinity();
    };
  }
  return sequence;
}

std::int64_t batch_of(const ForwardArgs& args) {
  Index offsets = args.cu_seqlens_q;
  return offsets.present() ? offsets.c().tensor.shape[0] - 1 : args.q.size(0);
}

}  // namespace

RunErrors check_run(ForwardArgs args, const Problem& problem, Workers& workers) {
  RunErrors errors;
  std::mutex mutex;
  const Reader q(args.q), o(args.o), lse(args.lse);
  const oracle::Limits limits = oracle::limits_for(oracle::DeviceClass::kCpu, q.format());
  const bool ragged = args.cu_seqlens_q.present();
  const std::int64_t batch = batch_of(args);
  const std::int64_t heads = problem.c().num_heads_q;
  Progress progress("checking", batch);
  for (std::int64_t b = 0; b < batch; ++b) {
    const Sequence sequence = sequence_of(args, problem.c(), limits.p_underflow, b);
    const Place& place = sequence.place;
    workers.run(place.seqlen_q, [&](std::int64_t task, int) {
      const std::int64_t i = place.seqlen_q - 1 - task;
      RunErrors local;
      const auto judge = [&](double& worst, double ratio, const auto& text) {
        if (!(ratio <= worst)) worst = ratio;
        if (!(ratio <= 1.0) && local.first_failure.empty()) {
          local.first_failure = fmt::format("{}: {:.3g} times the tolerance", text(), ratio);
        }
        ++local.values;
      };
      for (std::int64_t h = 0; h < heads; ++h) {
        const oracle::Row row = oracle::attend_row(sequence.call, i, h);
        for (std::int64_t d = 0; d < sequence.call.head_dim_v; ++d) {
          const double value =
              ragged ? o.at(place.q_first + i, h, d) : o.at(place.q_outer, i, h, d);
          judge(local.o, oracle::o_ratio(limits, row, d, o.format(), value), [&] {
            return fmt::format("o {} where the reference has {} (sequence {}, row {}, head {}, dim {})", value,
                               row.o[static_cast<std::size_t>(d)], b, i, h, d);
          });
        }
        if (!lse.present()) continue;
        const double value = ragged ? lse.at(h, place.q_first + i) : lse.at(place.q_outer, h, i);
        judge(local.lse, oracle::lse_ratio(limits, row, value), [&] {
          return fmt::format("lse {} where the reference has {} (sequence {}, row {}, head {})", value, row.lse, b,
                             i, h);
        });
      }
      const std::lock_guard lock(mutex);
      errors.values += local.values;
      if (!(local.o <= errors.o)) errors.o = local.o;
      if (!(local.lse <= errors.lse)) errors.lse = local.lse;
      if (errors.first_failure.empty()) errors.first_failure = local.first_failure;
    });
    progress.advance();
  }
  return errors;
}

}  // namespace tegula::program
