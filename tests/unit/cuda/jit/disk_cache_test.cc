// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/jit/disk_cache.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/cuda/jit/key_util.hpp"
#include "tests/unit/cuda/temporary_folder.hpp"

namespace tegula::cuda {
namespace {

namespace fs = std::filesystem;

// Tells its number, and is of another length for each.
std::string binary_of(int number) {
  std::string text = std::to_string(number) + ":";
  while (text.size() < static_cast<size_t>(1000 + 4097 * (number % 7)))
    text += static_cast<char>(text.size() * 31 + number);
  return text;
}

std::string entry(const TemporaryFolder& folder, int number) {
  return folder / (hex(key_of(number)) + ".cubin");
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& item : fs::directory_iterator(folder))
    names.push_back(item.path().filename());
  return names;
}

void age(const std::string& path, int64_t seconds) {
  fs::last_write_time(path, fs::last_write_time(path) - std::chrono::seconds(seconds));
}

TEST(DiskCache, KeepsWhatWasWritten) {
  const TemporaryFolder folder;
  {
    const DiskCache cache(folder.path());
    std::string binary = "unchanged";
    EXPECT_FALSE(cache.read(key_of(1), binary));
    EXPECT_EQ(binary, "unchanged");
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(cache.write(key_of(i), binary_of(i)));
    EXPECT_TRUE(cache.write(key_of(20), ""));
  }
  const DiskCache cache(folder.path());
  std::string binary;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(cache.read(key_of(i), binary)) << i;
    EXPECT_EQ(binary, binary_of(i));
  }
  EXPECT_TRUE(cache.read(key_of(20), binary));
  EXPECT_EQ(binary, "");
  EXPECT_EQ(cache.usage().entries, 21);
  EXPECT_EQ(names_in(folder.path()).size(), 21u);  // nothing unfinished
  cache.remove(key_of(3));
  EXPECT_FALSE(cache.read(key_of(3), binary));
}

TEST(DiskCache, MakesItsFolderForThisUserAlone) {
  const TemporaryFolder folder;
  const DiskCache cache(folder / "a/b/c");
  ASSERT_TRUE(cache.usable()) << cache.refusal();
  for (const char* made : {"a", "a/b", "a/b/c"}) {
    struct stat status;
    ASSERT_EQ(stat((folder / made).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0700u) << made;
  }
}

TEST(DiskCache, RefusesAFolderThatOthersCanWrite) {
  for (const mode_t mode : {0770, 0707, 0777, 01777, 0720}) {
    const TemporaryFolder folder;
    ASSERT_EQ(chmod(folder.path().c_str(), mode), 0);
    const DiskCache cache(folder.path());
    EXPECT_FALSE(cache.usable()) << std::oct << mode;
    EXPECT_NE(cache.refusal().find("others can write"), std::string::npos) << cache.refusal();
    EXPECT_FALSE(cache.write(key_of(1), "x"));
    std::string binary;
    EXPECT_FALSE(cache.read(key_of(1), binary));
    EXPECT_TRUE(names_in(folder.path()).empty());
  }
}

TEST(DiskCache, RefusesAFolderOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  const TemporaryFolder folder;
  ASSERT_EQ(chown(folder.path().c_str(), 12345, 12345), 0);
  const DiskCache cache(folder.path());
  EXPECT_FALSE(cache.usable());
  EXPECT_NE(cache.refusal().find("another user"), std::string::npos) << cache.refusal();
}

TEST(DiskCache, RefusesWhatIsNoFolder) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  for (const std::string& path :
       {folder / "file", folder / "file/below", std::string("relative"), std::string()}) {
    const DiskCache cache(path);
    EXPECT_FALSE(cache.usable()) << path;
    EXPECT_FALSE(cache.refusal().empty());
  }
}

// Every damage reads as absent, and the damaged entry makes way for the next.
TEST(DiskCache, DamagedEntriesAreAbsent) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path());
  ASSERT_TRUE(cache.write(key_of(5), binary_of(5)));
  std::string whole(static_cast<size_t>(fs::file_size(entry(folder, 5))), '\0');
  std::ifstream(entry(folder, 5), std::ios::binary)
      .read(whole.data(), static_cast<std::streamsize>(whole.size()));
  const auto expect_absent = [&](const std::string& content, const std::string& what) {
    std::ofstream(entry(folder, 5), std::ios::binary) << content;
    std::string binary;
    EXPECT_FALSE(cache.read(key_of(5), binary)) << what;
    EXPECT_FALSE(fs::exists(entry(folder, 5))) << what;
  };
  for (size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{79}, size_t{80}, whole.size() - 1}) {
    expect_absent(whole.substr(0, size), "cut to " + std::to_string(size));
  }
  for (size_t at = 0; at < whole.size(); at += at < 200 ? 1 : 997) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    expect_absent(flipped, "bit of byte " + std::to_string(at));
  }
  expect_absent(whole + "x", "longer");
  std::string huge = whole;
  for (size_t i = 8; i < 16; ++i) huge[i] = '\xff';
  expect_absent(huge, "a size beyond all");
  // A whole entry under another key's name.
  std::ofstream(entry(folder, 6), std::ios::binary) << whole;
  std::string binary;
  EXPECT_FALSE(cache.read(key_of(6), binary));
  std::ofstream(entry(folder, 5), std::ios::binary) << whole;
  EXPECT_TRUE(cache.read(key_of(5), binary));
  EXPECT_EQ(binary, binary_of(5));
}

TEST(DiskCache, LinksAndFifosAreNoEntries) {
  const TemporaryFolder folder, elsewhere;
  {
    const DiskCache other(elsewhere.path());
    ASSERT_TRUE(other.write(key_of(1), binary_of(1)));
  }
  const DiskCache cache(folder.path());
  std::string binary;
  fs::create_symlink(entry(elsewhere, 1), entry(folder, 1));
  EXPECT_FALSE(cache.read(key_of(1), binary));
  EXPECT_TRUE(fs::exists(entry(elsewhere, 1)));
  ASSERT_EQ(mkfifo(entry(folder, 2).c_str(), 0600), 0);
  EXPECT_FALSE(cache.read(key_of(2), binary));
  for (int i = 1; i <= 2; ++i) {
    EXPECT_TRUE(cache.write(key_of(i), binary_of(i)));
    EXPECT_TRUE(cache.read(key_of(i), binary));
  }
}

TEST(DiskCache, TheOldestGoFirst) {
  const TemporaryFolder folder;
  const uint64_t size = 10'000;
  const DiskCache cache(folder.path(), 5 * (size + 100));
  const std::string binary(size, 'b');
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(cache.write(key_of(i), binary));
    age(entry(folder, i), 1000 - 10 * i);
  }
  std::string read;
  ASSERT_TRUE(cache.read(key_of(0), read));  // counts as new
  std::ofstream(folder / "notes.txt")
      << std::string(size, 'n');  // not ours: neither counted nor removed
  for (int i = 5; i < 7; ++i) ASSERT_TRUE(cache.write(key_of(i), binary));
  for (const int kept : {0, 3, 4, 5, 6}) EXPECT_TRUE(fs::exists(entry(folder, kept))) << kept;
  for (const int gone : {1, 2}) EXPECT_FALSE(fs::exists(entry(folder, gone))) << gone;
  EXPECT_TRUE(fs::exists(folder / "notes.txt"));
  EXPECT_LE(cache.usage().bytes, 5 * (size + 100));
  EXPECT_FALSE(cache.write(key_of(9), std::string(6 * size, 'x')));  // larger than all may be
  EXPECT_EQ(cache.usage().entries, 5);
}

TEST(DiskCache, UnfinishedFilesOfDeadProcessesGo) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path());
  std::ofstream(folder / "unfinished-1-old") << "x";
  std::ofstream(folder / "unfinished-1-new") << "x";
  age(folder / "unfinished-1-old", 2 * DiskCache::kStaleSeconds);
  ASSERT_TRUE(cache.write(key_of(1), "x"));
  EXPECT_FALSE(fs::exists(folder / "unfinished-1-old"));
  EXPECT_TRUE(fs::exists(folder / "unfinished-1-new"));
}

constexpr int kKeys = 12;

// What a child does until it is killed: exit status 1 when a read gives what nobody wrote.
[[noreturn]] void work(const std::string& folder, unsigned seed) {
  // So small that entries are removed all the time.
  const DiskCache cache(folder, 90'000, /*stale_seconds=*/1);
  std::mt19937 random(seed);
  std::string binary;
  for (int step = 0; step < 100'000; ++step) {
    const int number = static_cast<int>(random() % kKeys);
    if (random() % 2 == 0) {
      cache.write(key_of(number), binary_of(number));
    } else if (cache.read(key_of(number), binary) && binary != binary_of(number)) {
      _exit(1);
    }
  }
  _exit(0);
}

TEST(DiskCache, SixteenProcessesAndKills) {
  const TemporaryFolder folder;
  std::mt19937 random(7);
  std::vector<pid_t> children;
  const auto start = [&] {
    const unsigned seed = random();
    const pid_t child = fork();
    if (child == 0) work(folder.path(), seed);
    ASSERT_GT(child, 0);
    children.push_back(child);
  };
  int killed = 0;
  const auto end = [&](pid_t child) {
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status) ? 1 : 0;
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0)
        << "a reader got what nobody wrote";
  };
  for (int i = 0; i < 16; ++i) start();
  for (int round = 0; round < 40; ++round) {
    usleep(5'000);
    const size_t victim = random() % children.size();
    end(children[victim]);
    children.erase(children.begin() + static_cast<std::ptrdiff_t>(victim));
    start();
  }
  for (const pid_t child : children) end(child);
  EXPECT_GT(killed, 20);

  // Whatever is left is whole; what the killed left behind goes with the next write.
  const DiskCache cache(folder.path(), DiskCache::kMaxBytes, /*stale_seconds=*/0);
  std::string binary;
  for (int i = 0; i < kKeys; ++i) {
    const bool there = fs::exists(entry(folder, i));
    EXPECT_EQ(cache.read(key_of(i), binary), there) << i;
    if (there) {
      EXPECT_EQ(binary, binary_of(i));
    }
  }
  ASSERT_TRUE(cache.write(key_of(0), binary_of(0)));
  for (const std::string& name : names_in(folder.path()))
    EXPECT_TRUE(name.ends_with(".cubin")) << name;
}

TEST(CacheFolder, FollowsTheEnvironment) {
  const Variable cache("TEGULA_CACHE", nullptr), own("TEGULA_CACHE_DIR", "/o"),
      xdg("XDG_CACHE_HOME", "/x"), home("HOME", "/h");
  std::string why;
  EXPECT_EQ(cache_folder(why), "/o");
  {
    const Variable off("TEGULA_CACHE", "0");
    EXPECT_EQ(cache_folder(why), "");
    EXPECT_NE(why.find("TEGULA_CACHE=0"), std::string::npos);
  }
  const Variable none("TEGULA_CACHE_DIR", nullptr);
  EXPECT_EQ(cache_folder(why), "/x/tegula");
  const Variable relative("XDG_CACHE_HOME", "x");
  EXPECT_EQ(cache_folder(why), "/h/.cache/tegula");
  const Variable nowhere("HOME", nullptr);
  EXPECT_EQ(cache_folder(why), "");
  EXPECT_NE(why.find("HOME"), std::string::npos);
}

}  // namespace
}  // namespace tegula::cuda
