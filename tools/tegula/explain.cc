// SPDX-License-Identifier: Apache-2.0
// tegula explain: which implementation a problem is given to, and why not an earlier one.
#include <charconv>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tools/tegula/command.hpp"
#include "tools/tegula/gpu_option.hpp"
#include "tools/tegula/library.hpp"
#include "tools/tegula/options.hpp"

namespace tegula::program {
namespace {

struct Options {
  std::int64_t batch = 1, seqlen_q = 1024, seqlen_k = 0, heads_q = 8, heads_kv = 0, head_dim = 64, head_dim_v = 0;
  std::int64_t page_size = 0, num_pages = 0, total_q = 0, total_k = 0;
  std::string dtype = "bf16", kv_dtype, bias_dtype;
  std::vector<std::string> operands;
  std::string device = "cpu";
  AttentionOptions attention;
  MachineOptions machine;
};

struct Operand {
  const char* name;
  std::uint32_t bit;
};

constexpr Operand kOperands[] = {{"lse", TEGULA_HAS_LSE},
                                 {"seqused_q", TEGULA_HAS_SEQUSED_Q},
                                 {"seqused_k", TEGULA_HAS_SEQUSED_K},
                                 {"leftpad_k", TEGULA_HAS_LEFTPAD_K},
                                 {"sink", TEGULA_HAS_SINK},
                                 {"alibi_slopes", TEGULA_HAS_ALIBI},
                                 {"descale_q", TEGULA_HAS_DESCALE_Q},
                                 {"descale_k", TEGULA_HAS_DESCALE_K},
                                 {"descale_v", TEGULA_HAS_DESCALE_V},
                                 {"seqlen_new", TEGULA_HAS_NEW_TOKENS},
                                 {"page_indptr", TEGULA_HAS_PAGE_INDPTR}};

std::vector<std::string> operand_names() {
  std::vector<std::string> names;
  for (const Operand& operand : kOperands) names.emplace_back(operand.name);
  return names;
}

Problem problem_of(const Options& options) {
  Problem described;
  tegula_problem& problem = described.c();
  problem.q_dtype = code_of(parse_dtype("--dtype", options.dtype));
  problem.kv_dtype = options.kv_dtype.empty() ? problem.q_dtype
                                              : code_of(parse_dtype("--kv-dtype", options.kv_dtype));
  if (!options.bias_dtype.empty()) {
    problem.bias_dtype =
        code_of(options.bias_dtype == "bool" ? Dtype::kBool
                                              : parse_dtype("--bias-dtype", options.bias_dtype));
    problem.operands |= TEGULA_HAS_BIAS;
  }
  for (const std::string& name : options.operands) {
    for (const Operand& operand : kOperands) {
      if (name == operand.name) problem.operands |= operand.bit;
    }
  }
  problem.batch = options.batch;
  problem.seqlen_q = options.seqlen_q;
  problem.seqlen_k = options.seqlen_k > 0 ? options.seqlen_k : options.seqlen_q;
  problem.num_heads_q = options.heads_q;
  problem.num_heads_kv = options.heads_kv > 0 ? options.heads_kv : options.heads_q;
  problem.head_dim = options.head_dim;
  problem.head_dim_v = options.head_dim_v > 0 ? options.head_dim_v : options.head_dim;
  if (options.total_q > 0) {
    problem.layout_q = TEGULA_RAGGED;
    problem.total_q = options.total_q;
  }
  if (options.page_size > 0) {
    problem.layout_k = TEGULA_PAGED;
    problem.page_size = options.page_size;
    const std::int64_t pages = (problem.seqlen_k + options.page_size - 1) / options.page_size;
    problem.num_pages = options.num_pages > 0 ? options.num_pages : options.batch * pages;
    problem.seqlen_k = pages * options.page_size;  // the capacity of a row of the table
    problem.operands |= TEGULA_HAS_SEQUSED_K;
  } else if (options.total_k > 0) {
    problem.layout_k = TEGULA_RAGGED;
    problem.total_k = options.total_k;
  }
  options.attention.apply(problem);
  return described;
}

// "sm_90" needs no GPU: one with as many multiprocessors as an H200 has.
Device device_of(const Options& options) {
  constexpr int kSms = 132;
  int arch = 0;
  const char* const end = options.device.data() + options.device.size();
  if (options.device.rfind("sm_", 0) == 0 &&
      std::from_chars(options.device.data() + 3, end, arch).ptr == end) {
    return Device::cuda(0, arch, kSms);
  }
  const int index = gpu_index(options.device);
  return index < 0 ? Machine(options.machine).device() : Device::cuda(index);
}

void explain(const Options& options, Session& session) {
  const Plan plan(problem_of(options), device_of(options));
  const std::string text = plan.explain();
  if (!session.json) {
    fmt::print("{}{}", text, text.empty() || text.back() != '\n' ? "\n" : "");
    return;
  }
  const tegula_plan_info info = plan.info();
  Json json;
  json["implementation"] = info.implementation;
  json["device"] = info.device_kind == TEGULA_CPU ? "cpu" : "cuda";
  json["isa"] = tegula_isa_name(info.isa);
  json["num_workers"] = info.num_workers;
  json["tile_m"] = info.tile_m;
  json["tile_n"] = info.tile_n;
  json["num_splits"] = info.num_splits;
  json["scratch_bytes"] = info.scratch_bytes;
  json["state_bytes"] = info.state_bytes;
  json["text"] = text;
  print_json(json);
}

}  // namespace

void add_explain(CLI::App& program, Session& session) {
  CLI::App* command = add_command(program, session, "explain",
                                  "Plan a forward that the options describe and tell what was chosen and why: the\n"
                                  "implementation, its tiles, splits and scratch, and each earlier candidate's refusal.");
  auto options = std::make_shared<Options>();
  Options& o = *options;
  const std::string group = "Shape";
  const auto size = [&](const std::string& name, std::int64_t& value, const std::string& text) {
    CLI::Option* option = command->add_option(name, value, text)->type_name("N")->group(group);
    if (value > 0) option->capture_default_str();
  };
  size("--batch", o.batch, "Sequences");
  size("--seqlen-q", o.seqlen_q, "Query tokens of a sequence");
  size("--seqlen-k", o.seqlen_k, "Keys of a sequence (default: as many)");
  size("--heads-q", o.heads_q, "Query heads");
  size("--heads-kv", o.heads_kv, "Key and value heads (default: as many)");
  size("--head-dim", o.head_dim, "Of q and k");
  size("--head-dim-v", o.head_dim_v, "Of v and o (default: the same)");
  size("--total-q", o.total_q, "Ragged q with N rows in all; --seqlen-q is the longest sequence");
  size("--total-k", o.total_k, "Ragged k and v with N rows in all");
  size("--page-size", o.page_size, "K and V from pages of N tokens");
  size("--num-pages", o.num_pages, "Pages of the pool (default: what --seqlen-k needs)");
  add_dtype(*command, "--dtype", o.dtype, "Type of q: fp32, fp16, bf16, e4m3, e5m2")->capture_default_str()->group(group);
  add_dtype(*command, "--kv-dtype", o.kv_dtype, "Type of k and v (default: q's)")->group(group);
  command->add_option("--bias-dtype", o.bias_dtype, "A bias of this type: fp32, fp16, bf16, bool")
      ->type_name("TYPE")
      ->group(group);
  command
      ->add_option("--with", o.operands,
                   fmt::format("Further operands: {}", fmt::join(operand_names(), ", ")))
      ->delimiter(',')
      ->check(CLI::IsMember(operand_names()))
      ->type_name("NAME,...")
      ->group(group);
  o.attention.add_to(*command);
  command->add_option("--device", o.device, "cpu, cuda, cuda:N, or sm_90: an H200 that need not be there")
      ->type_name("NAME")
      ->capture_default_str();
  add_machine(*command, o.machine);
  command->callback([options, &session] { explain(*options, session); });
}

}  // namespace tegula::program
