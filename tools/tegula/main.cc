// SPDX-License-Identifier: Apache-2.0
// The tegula program. Commands live in a file each; this one knows their names, the exit status and
// how an error looks: one line on stderr, and with --json a document {"error": ...} on stdout.
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include <fmt/format.h>

#include "tools/tegula/command.hpp"
#include "tools/tegula/library.hpp"

namespace tegula::program {

CLI::App* add_command(CLI::App& program, Session& session, const std::string& name,
                      const std::string& description) {
  CLI::App* command = program.add_subcommand(name, description);
  command->add_flag("--json", session.json, "Print one JSON document instead of text");
  return command;
}

void print_json(const Json& document) {
  fmt::print("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
}

namespace {

// Messages may quote a file or an argument: one line, printable.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

int fail(const Session& session, int status, const std::string& message) {
  const std::string line = one_line(message);
  if (session.json) print_json({{"error", line}});
  std::fflush(stdout);
  fmt::print(stderr, "tegula: {}\n", line);
  return status;
}

// What was printed may still lie in the buffer, and then be lost.
int flushed(const Session& session, int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  return fail(session, kFailed, "stdout: cannot write the output");
}

int run(int argc, char** argv) {
  CLI::App program("Exact attention, tile by tile: run it, check it, measure it.", "tegula");
  program.require_subcommand(1);
  program.set_version_flag("--version",
                           fmt::format("tegula {} (ABI {})", version_text(), tegula_abi_version()));
  program.footer("tegula COMMAND --help tells more about a command.");
  Session session;
  add_run(program, session);
  add_replay(program, session);
  add_verify(program, session);
  add_explain(program, session);
  add_bench(program, session);
  add_doctor(program, session);
  add_pack(program, session);
  try {
    program.parse(argc, argv);
    return flushed(session, session.status);
  } catch (const CLI::Success& wish) {  // --help, --version
    return flushed(session, program.exit(wish));
  } catch (const CLI::ParseError& error) {
    if (program.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
      return fail(session, kUsage, fmt::format("{} is no command (see tegula --help)", argv[1]));
    }
    std::string command;
    for (const CLI::App* sub : program.get_subcommands()) command = " " + sub->get_name();
    return fail(session, kUsage, fmt::format("{} (see tegula{} --help)", error.what(), command));
  } catch (const std::bad_alloc&) {
    return fail(session, kFailed, "out of memory");
  } catch (const std::exception& error) {
    return fail(session, kFailed, error.what());
  }
}

}  // namespace
}  // namespace tegula::program

int main(int argc, char** argv) {
  try {
    return tegula::program::run(argc, argv);
  } catch (const std::exception& error) {  // while reporting: nothing is left to try
    std::fprintf(stderr, "tegula: %s\n", error.what());
    return tegula::program::kFailed;
  }
}
