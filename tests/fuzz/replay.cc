// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over the files of a folder, in the order of their names: the committed corpus
// stays a test where libFuzzer is missing.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1]))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(in), {}};
    // Written before the run, so that a crash tells which file it was.
    std::printf("%s, %zu bytes\n", file.filename().c_str(), text.size());
    std::fflush(stdout);
    // An exact copy of its own: the sanitizer sees one byte too far.
    std::vector<std::uint8_t> bytes(text.begin(), text.end());
    bytes.shrink_to_fit();
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%zu inputs\n", files.size());
  return files.empty() ? 1 : 0;
}
