// SPDX-License-Identifier: Apache-2.0
#include "tools/tegula/bench_report.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "tools/tegula/table.hpp"

namespace tegula::program {
namespace {

std::string share_text(const CellResult& result) {
  if (!result.steady()) return "unsteady";
  return result.limit > 0 ? fmt::format("{:.0f} %", 100 * result.of_limit()) : "-";
}

std::string rate_of_cell(const CellResult& result) {
  if (!result.steady()) return "-";
  const double rate = result.cell.rate(result.seconds) / 1e9;
  return result.cell.op == Op::kForward ? fmt::format("{:.0f} GFLOP/s", rate)
                                        : fmt::format("{:.1f} GB/s", rate);
}

// Where a cell stands in its group's matrix.
struct Place {
  std::string row, column;
};

std::optional<Place> place_of(const Cell& cell) {
  if (cell.group == "forward") {
    std::string column = fmt::format("s{}", cell.seqlen_q);
    if (cell.ragged()) column = "ragged";
    if (cell.heads_q != cell.heads_kv) column = "ratio 4";
    return Place{
        fmt::format("{} d{} {}", tegula::name(cell.dtype), cell.head_dim, cell.mask_name()),
        column};
  }
  if (cell.group == "decode") {
    return Place{
        fmt::format("{} {} {}", tegula::name(cell.kv_dtype), cell.residence, cell.layout()),
        fmt::format("ratio {}", cell.heads_q / cell.heads_kv)};
  }
  return std::nullopt;
}

std::string matrix_text(const std::vector<CellResult>& results) {
  std::vector<std::string> rows, columns;
  std::map<std::pair<std::string, std::string>, std::string> texts;
  const auto note = [](std::vector<std::string>& names, const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const CellResult& result : results) {
    const Place place = *place_of(result.cell);
    note(rows, place.row);
    note(columns, place.column);
    const double rate = result.cell.rate(result.seconds) / 1e9;
    texts[{place.row, place.column}] =
        result.steady() ? fmt::format("{:.{}f} {}", rate, rate < 100 ? 1 : 0, share_text(result))
                        : "unsteady";
  }
  const bool flops = results.front().cell.op == Op::kForward;
  std::vector<Table::Column> titles = {
      {flops ? "GFLOP/s, of limit" : "GB/s, of limit", Table::Align::kLeft}};
  for (const std::string& column : columns) titles.push_back({column});
  Table table(titles);
  for (const std::string& row : rows) {
    std::vector<std::string> line = {row};
    for (const std::string& column : columns) line.push_back(texts[{row, column}]);
    table.add(line);
  }
  return table.text();
}

std::string list_text(const std::vector<CellResult>& results) {
  Table table(
      {{"cell", Table::Align::kLeft}, {"time"}, {"rate"}, {"of limit"}, {"rounds"}, {"dropped"}});
  for (const CellResult& result : results) {
    table.add({result.cell.name, result.steady() ? time_text(result.seconds) : "-",
               rate_of_cell(result), share_text(result), std::to_string(result.kept),
               std::to_string(result.dropped)});
  }
  return table.text();
}

}  // namespace

std::string limits_text(const LimitReport& limits) {
  Table table(
      {{"limit", Table::Align::kLeft}, {"threads"}, {"rate"}, {"how", Table::Align::kLeft}});
  for (const LimitReading& reading : limits.readings) {
    std::string how;
    if (is_read(reading.probe)) {
      how = fmt::format("{} streams, {}", reading.variant.streams,
                        reading.variant.prefetch_bytes > 0
                            ? fmt::format("prefetched {} B ahead", reading.variant.prefetch_bytes)
                            : std::string("no prefetch"));
    }
    if (reading.probe == Probe::kL3)
      how = fmt::format("{:.0f} MiB, {}", static_cast<double>(limits.l3_bytes) / (1 << 20), how);
    table.add(
        {probe_name(reading.probe), std::to_string(reading.threads),
         fmt::format("{:.1f} {}", reading.rate / 1e9, is_read(reading.probe) ? "GB/s" : "GFLOP/s"),
         how});
  }
  for (const auto& [threads, times] : limits.launches) {
    table.add({"launch", std::to_string(threads), time_text(times.hot),
               fmt::format("threads spin; {} where they sleep", time_text(times.cold))});
  }
  return table.text();
}

std::string stage_text(const std::vector<CellResult>& results, const Runner::Drifts& drifts) {
  std::vector<std::pair<std::string, std::vector<CellResult>>> groups;
  int dropped = 0, kept = 0;
  for (const CellResult& result : results) {
    const std::string& group = result.cell.group;
    auto found = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& entry) { return entry.first == group; });
    if (found == groups.end()) found = groups.insert(groups.end(), {group, {}});
    found->second.push_back(result);
    dropped += result.dropped;
    kept += result.kept;
  }
  std::string text;
  for (const auto& [group, members] : groups) {
    text += place_of(members.front().cell) ? matrix_text(members) : list_text(members);
  }
  text += fmt::format("rounds: {} kept, {} dropped\n", kept, dropped);
  for (const auto& [key, drift] : drifts) {
    text +=
        fmt::format("{} on {}: {:.1f} {} before, {:.1f} at best, {:.1f} after\n",
                    probe_name(key.first), key.second, drift.before / 1e9,
                    is_read(key.first) ? "GB/s" : "GFLOP/s", drift.best / 1e9, drift.after / 1e9);
  }
  return text;
}

}  // namespace tegula::program
