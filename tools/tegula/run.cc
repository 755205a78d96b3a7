// SPDX-License-Identifier: Apache-2.0
// tegula run: attention on tensors from files.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/io/npy.hpp"
#include "src/io/safetensors.hpp"
#include "tools/tegula/command.hpp"
#include "tools/tegula/library.hpp"
#include "tools/tegula/operands.hpp"
#include "tools/tegula/options.hpp"
#include "tools/tegula/paged_cache.hpp"
#include "tools/tegula/run_check.hpp"
#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

struct RunOptions {
  std::vector<std::string> files;
  std::string prefix, out, out_lse;
  std::int64_t seqlen_new = 0;
  bool check = false;
  int repeat = 1;
  AttentionOptions attention;
  MachineOptions machine;
};

std::vector<std::int64_t> shape_of(const Tensor& tensor) {
  std::vector<std::int64_t> shape;
  for (std::int32_t i = 0; i < tensor.ndim(); ++i) shape.push_back(tensor.size(i));
  return shape;
}

// For an output of this type and shape.
Buffer zeros(const char* name, Dtype dtype, const std::vector<std::int64_t>& shape) {
  const auto bytes = io::byte_count(file_dtype(dtype), shape);
  if (!bytes) throw Failure(fmt::format("{}: shape {} is more than memory has", name, io::shape_text(shape)));
  Buffer buffer(*bytes);
  std::fill_n(buffer.data(), buffer.size(), std::byte{0});
  return buffer;
}

io::Array array_of(const std::string& name, Dtype dtype, const Tensor& tensor) {
  io::Array array;
  array.name = name;
  array.dtype = file_dtype(dtype);
  array.shape = shape_of(tensor);
  array.data = static_cast<const std::byte*>(tensor.data());
  array.bytes = io::byte_count(array.dtype, array.shape).value_or(0);
  return array;
}

bool is_npy_name(const std::string& path) { return std::filesystem::path(path).extension() == ".npy"; }

void write_outputs(const RunOptions& options, const ForwardArgs& args, Dtype o_dtype,
                   const std::string& implementation) {
  const io::Array o = array_of("o", o_dtype, args.o);
  const io::Array lse = array_of("lse", Dtype::kF32, args.lse);
  if (!options.out.empty() && is_npy_name(options.out)) {
    io::write_npy(options.out, o);
  } else if (!options.out.empty()) {
    const std::vector<io::Array> both = {o, lse};
    io::write_safetensors(options.out, both,
                          {{"made_with", fmt::format("tegula {}, {}", version_text(), implementation)}});
  }
  if (!options.out_lse.empty()) io::write_npy(options.out_lse, lse);
}

// An output that is also an input, or the other output, would destroy it.
void keep_inputs(const RunOptions& options) {
  std::error_code missing;
  if (!options.out.empty() && std::filesystem::weakly_canonical(options.out, missing) ==
                                  std::filesystem::weakly_canonical(options.out_lse, missing)) {
    throw Failure(fmt::format("--out-lse: {} is --out as well", options.out_lse));
  }
  for (const auto& [option, out] : {std::pair{"--out", options.out}, {"--out-lse", options.out_lse}}) {
    for (const std::string& file : options.files) {
      const std::string path = file.substr(file.find('=') + 1);  // NAME=PATH, or the whole
      if (!out.empty() && (std::filesystem::equivalent(out, file, missing) ||
                           std::filesystem::equivalent(out, path, missing))) {
        throw Failure(fmt::format("{}: {} is the input {}", option, out, file));
      }
    }
  }
}

void run(const RunOptions& options, Session& session) {
  keep_inputs(options);
  if (!options.out_lse.empty() && !is_npy_name(options.out_lse)) {
    throw Failure(fmt::format("--out-lse: {} does not end in .npy; a safetensors --out holds lse too",
                              options.out_lse));
  }
  Machine machine(options.machine);
  const Operands operands(options.files, options.prefix);
  ForwardArgs args = operands.args();
  args.seqlen_new = options.seqlen_new;

  // q without its last extent: the shape of o but for head_dim_v, and of lse in another order.
  std::vector<std::int64_t> o_shape = shape_of(args.q);
  if (o_shape.size() < 3) throw Failure(fmt::format("q: rank {} where 3 or 4 is expected", o_shape.size()));
  if (args.v.ndim() < 1) throw Failure("v: rank 0 where 3 or 4 is expected");
  o_shape.back() = args.v.size(args.v.ndim() - 1);
  std::vector<std::int64_t> lse_shape = {args.q.size(1), args.q.size(0)};
  if (o_shape.size() > 3) lse_shape = {args.q.size(0), args.q.size(2), args.q.size(1)};
  Dtype o_dtype = is_8bit(operands.dtype("q")) ? Dtype::kBf16 : operands.dtype("q");
  if (!options.attention.o_dtype.empty()) o_dtype = parse_dtype("--o-dtype", options.attention.o_dtype);
  const Buffer o = zeros("o", o_dtype, o_shape), lse = zeros("lse", Dtype::kF32, lse_shape);
  args.o = Tensor(o.data(), o_dtype, Extents(o_shape));
  args.lse = Tensor(lse.data(), Dtype::kF32, Extents(lse_shape));

  Problem problem(args);
  options.attention.apply(problem.c());
  const Plan plan(problem, machine.device());
  std::vector<double> seconds;
  for (int r = 0; r < options.repeat; ++r) {
    const auto begin = std::chrono::steady_clock::now();
    plan.forward(args, machine.execution());
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  const tegula_plan_info info = plan.info();
  write_outputs(options, args, o_dtype, info.implementation);
  RunErrors errors;
  if (options.check) errors = check_run(args, problem, machine.workers());
  if (!errors.first_failure.empty()) session.status = kFailed;

  if (session.json) {
    Json json;
    json["implementation"] = info.implementation;
    json["threads"] = machine.threads();
    json["o"] = {{"dtype", tegula::name(o_dtype)}, {"shape", o_shape}};
    json["lse"] = {{"dtype", "f32"}, {"shape", lse_shape}};
    json["num_splits"] = info.num_splits;
    json["scratch_bytes"] = info.scratch_bytes;
    json["seconds"] = median(seconds);
    if (!operands.ignored().empty()) json["ignored"] = operands.ignored();
    if (options.check) {
      json["check"] = {{"passed", errors.first_failure.empty()},
                       {"values", errors.values},
                       {"o_error", errors.o},
                       {"lse_error", errors.lse}};
      if (!errors.first_failure.empty()) json["check"]["failure"] = errors.first_failure;
    }
    print_json(json);
    return;
  }
  Table table({{"", Table::Align::kLeft}, {"", Table::Align::kLeft}});
  const auto operand = [](const char* dtype, const std::vector<std::int64_t>& shape) {
    return fmt::format("{} {}", dtype, io::shape_text(shape));
  };
  table.add({"q", operand(tegula::name(static_cast<Dtype>(problem.c().q_dtype)), shape_of(args.q))});
  table.add({"k", operand(tegula::name(static_cast<Dtype>(problem.c().kv_dtype)), shape_of(args.k))});
  table.add({"v", operand(tegula::name(static_cast<Dtype>(problem.c().kv_dtype)), shape_of(args.v))});
  table.add({"o", operand(tegula::name(o_dtype), o_shape)});
  table.add({"lse", operand("f32", lse_shape)});
  if (!options.out.empty()) table.add({"written", options.out});
  if (!options.out_lse.empty()) table.add({"", options.out_lse});
  if (!operands.ignored().empty()) {
    constexpr std::size_t kNamed = 5;
    const std::vector<std::string>& names = operands.ignored();
    const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kNamed));
    table.add({"ignored", fmt::format("{}{}: no operands", fmt::join(names.begin(), end, ", "),
                                      names.size() > kNamed
                                          ? fmt::format(" and {} more", names.size() - kNamed)
                                          : "")});
  }
  table.add({"runs on", fmt::format("{}, {} thread{}", info.implementation, machine.threads(),
                                    machine.threads() > 1 ? "s" : "")});
  table.add({"time", options.repeat > 1 ? fmt::format("{} (median of {})", time_text(median(seconds)), options.repeat)
                                        : time_text(seconds.front())});
  if (options.check) {
    table.add({"check", errors.first_failure.empty()
                            ? fmt::format("passed: {} values, error / tolerance {:.3f} (o), {:.3f} (lse)",
                                          count_text(errors.values), errors.o, errors.lse)
                            : "FAILED: " + errors.first_failure});
  }
  fmt::print("{}", table.text());
}

}  // namespace

void add_run(CLI::App& program, Session& session) {
  CLI::App* command = add_command(
      program, session, "run",
      "Attention on tensors from files. A safetensors file holds operands by their names (q, k, v, and as\n"
      "needed cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, page_table, page_indices,\n"
      "page_indptr, cu_seqlens_new, sink, alibi_slopes, bias, descale_q, descale_k, descale_v); an npy file\n"
      "holds the one it is named after. q, k, v: [batch, tokens, heads, dim], or one sequence without batch.");
  auto options = std::make_shared<RunOptions>();
  RunOptions& o = *options;
  command->add_option("files", o.files, "q.npy k.npy v.npy, NAME=PATH, or safetensors files")->required();
  command->add_option("--prefix", o.prefix, "What stands before the operands' names in safetensors files")
      ->type_name("TEXT");
  command->add_option("--out", o.out, "Write o and lse to this safetensors file, or o to this .npy")
      ->type_name("FILE");
  command->add_option("--out-lse", o.out_lse, "Write lse to this .npy")->type_name("FILE");
  command->add_option("--seqlen-new", o.seqlen_new, "Tokens of each sequence beyond seqused_k")->type_name("N");
  command->add_flag("--check", o.check, "Hold every value against the float64 reference");
  command->add_option("--repeat", o.repeat, "Run so often and tell the median time")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  o.attention.add_to(*command);
  add_machine(*command, o.machine);
  command->callback([options, &session] { run(*options, session); });
}

}  // namespace tegula::program
