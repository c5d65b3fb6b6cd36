// Compiled kernels in a folder: found again, never believed when damaged.
#include "sim/backend/kernel_folder.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace simgrad::sim {
namespace {

namespace fs = std::filesystem;

class KernelFolderTest : public testing::Test {
 protected:
  KernelFolderTest() {
    std::string name = (fs::temp_directory_path() / "kernel-cache-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~KernelFolderTest() override { fs::remove_all(folder_); }
  fs::path OnlyFile() const { return fs::directory_iterator(folder_)->path(); }

  fs::path folder_;
};

TEST_F(KernelFolderTest, WhatIsKeptIsFoundByAnotherProcessToo) {
  const std::string image(
      "\x7f"
      "ELF\0binary\n",
      12);
  KernelFolder((folder_ / "made" / "on demand").string()).Keep("key", image);
  const auto found = KernelFolder((folder_ / "made" / "on demand").string()).Find("key");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(*found, image);
}

TEST_F(KernelFolderTest, ADamagedEntryIsAsIfItWereNotThereAndIsReplaced) {
  const KernelFolder cache(folder_.string());
  cache.Keep("key", "a kernel of some length");
  for (const auto size : {fs::file_size(OnlyFile()) - 3, std::uintmax_t{10}, std::uintmax_t{0}}) {
    fs::resize_file(OnlyFile(), size);
    EXPECT_FALSE(cache.Find("key").has_value()) << size;
  }
  cache.Keep("key", "a kernel of some length");
  {
    std::fstream file(OnlyFile(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('!');
  }
  EXPECT_FALSE(cache.Find("key").has_value());
  cache.Keep("key", "another");
  EXPECT_EQ(cache.Find("key"), "another");
}

// A backup that mixes names, or somebody who may rename files, makes no kernel of another program.
// By the first kernel of a process, and by those that come after a 64th part of the limit.
TEST_F(KernelFolderTest, TheSizeIsLookedAtNowAndThen) {
  const auto bytes = [&] {
    int64_t sum = 0;
    for (const auto& file : fs::directory_iterator(folder_)) {
      sum += static_cast<int64_t>(file.file_size());
    }
    return sum;
  };
  constexpr int64_t kLimit = 64'000;
  const KernelFolder wide(folder_.string());
  auto fill = [&, key = 0]() mutable {
    while (bytes() <= 2 * kLimit) {
      wide.Keep(KernelKey({"wide", std::to_string(key++)}), std::string(1000, 'x'));
    }
  };
  const KernelFolder narrow(folder_.string(), kLimit);
  const auto keep = [&](const char* key) {
    narrow.Keep(KernelKey({key}), std::string(400, 'y'));
    return bytes();
  };
  fill();
  EXPECT_LE(keep("first"), kLimit);
  fill();
  EXPECT_GT(keep("second"), kLimit);
  EXPECT_GT(keep("third"), kLimit);
  EXPECT_LE(keep("fourth"), kLimit);
}

TEST_F(KernelFolderTest, AnEntryUnderAnothersNameIsRefused) {
  const KernelFolder folder(folder_.string());
  folder.Keep("key", "code");
  fs::rename(folder_ / "key.kernel", folder_ / "other.kernel");
  EXPECT_FALSE(folder.Find("other").has_value());
  EXPECT_EQ(folder.refused(), 1);
  fs::rename(folder_ / "other.kernel", folder_ / "key.kernel");
  EXPECT_EQ(folder.Find("key"), "code");
}

TEST_F(KernelFolderTest, AnEntryThatOthersMayWriteIsRefusedAndCounted) {
  const KernelFolder folder(folder_.string());
  folder.Keep("key", "code");
  EXPECT_EQ(fs::status(OnlyFile()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(folder.Find("key"), "code");
  EXPECT_FALSE(folder.Find("other").has_value());
  EXPECT_EQ(folder.refused(), 0);
  fs::permissions(OnlyFile(), fs::perms::others_write, fs::perm_options::add);
  EXPECT_FALSE(folder.Find("key").has_value());
  EXPECT_EQ(folder.refused(), 1);
}

// Kubernetes gives the group of `fsGroup` every file of a volume to write.
TEST_F(KernelFolderTest, AnEntryThatAGroupOfThisProcessMayWriteIsFound) {
  const KernelFolder folder(folder_.string());
  folder.Keep("key", "code");
  fs::permissions(OnlyFile(), fs::perms::group_all & ~fs::perms::group_exec, fs::perm_options::add);
  EXPECT_EQ(folder.Find("key"), "code");
  EXPECT_EQ(folder.refused(), 0);
}

TEST_F(KernelFolderTest, AnEntryThatAnotherGroupMayWriteIsRefused) {
  const KernelFolder folder(folder_.string());
  folder.Keep("key", "code");
  constexpr gid_t kAnother = 54321;
  if (chown(OnlyFile().c_str(), static_cast<uid_t>(-1), kAnother) != 0) {
    GTEST_SKIP() << "this user may not give a file away";
  }
  EXPECT_EQ(folder.Find("key"), "code");
  fs::permissions(OnlyFile(), fs::perms::group_write, fs::perm_options::add);
  EXPECT_FALSE(folder.Find("key").has_value());
}

// The first process of every container has the number 1.
TEST_F(KernelFolderTest, NamesThatAProcessOfThisNumberTookAreNotInTheWay) {
  for (int i = 0; i < 1000; ++i) {
    std::ofstream(folder_ / ("key.kernel." + std::to_string(getpid()) + "." + std::to_string(i)));
  }
  const KernelFolder folder(folder_.string());
  folder.Keep("key", "code");
  EXPECT_EQ(folder.Find("key"), "code");
}

TEST_F(KernelFolderTest, ALinkIsRefused) {
  const KernelFolder folder(folder_.string());
  folder.Keep("key", "code");
  fs::create_symlink(OnlyFile(), folder_ / "link.kernel");
  EXPECT_FALSE(folder.Find("link").has_value());
  EXPECT_EQ(folder.refused(), 1);
}

TEST_F(KernelFolderTest, ManyWritersLeaveOneWholeEntryAndNothingElse) {
  const std::string image(100'000, 'k');
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&] {
      const KernelFolder cache(folder_.string());
      for (int k = 0; k < 20; ++k) {
        cache.Keep("key", image);
        EXPECT_EQ(cache.Find("key"), image);
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const auto files = fs::directory_iterator(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(KernelFolderTest, WhatWasNotUsedForTheLongestTimeGoesBeyondTheBound) {
  const std::string image(1000, 'k');
  const KernelFolder cache(folder_.string(), 3500);  // three files, of 1082 bytes each
  const auto minutes_ago = [&](const std::string& key, int minutes) {
    fs::last_write_time(folder_ / (key + ".kernel"),
                        fs::file_time_type::clock::now() - std::chrono::minutes(minutes));
  };
  const auto key = [](const char* name) { return KernelKey({name}); };
  for (const char* name : {"a", "b", "c"}) cache.Keep(key(name), image);
  minutes_ago(key("a"), 3);
  minutes_ago(key("b"), 2);
  minutes_ago(key("c"), 1);
  EXPECT_TRUE(cache.Find(key("a")).has_value());  // used: now the youngest
  cache.Keep(key("d"), image);
  EXPECT_FALSE(cache.Find(key("b")).has_value());
  for (const char* name : {"a", "c", "d"}) EXPECT_EQ(cache.Find(key(name)), image) << name;
}

TEST_F(KernelFolderTest, FilesOfOthersStayWhateverTheirSize) {
  const KernelFolder cache(folder_.string(), 2000);
  const std::string hex = KernelKey({"other"});
  const std::vector<std::string> others = {"thesis.tar", "notes.kernel", hex + ".kernels",
                                           hex + ".kernel.txt", hex.substr(1) + ".kernel"};
  for (const std::string& other : others) std::ofstream(folder_ / other) << std::string(3000, 'x');
  for (const char* name : {"a", "b", "c"}) cache.Keep(KernelKey({name}), std::string(1000, 'k'));
  for (const std::string& other : others) EXPECT_EQ(fs::file_size(folder_ / other), 3000u) << other;
  EXPECT_EQ(cache.Find(KernelKey({"c"})), std::string(1000, 'k'));
  EXPECT_FALSE(cache.Find(KernelKey({"a"})).has_value());
}

TEST_F(KernelFolderTest, WhatIsNoFileOfAKernelsSizeIsRefusedAndNotWaitedFor) {
  const KernelFolder cache(folder_.string(), int64_t{1} << 20);
  ASSERT_EQ(mkfifo((folder_ / "fifo.kernel").c_str(), 0600), 0);
  EXPECT_FALSE(cache.Find("fifo").has_value());
  std::ofstream(folder_ / "huge.kernel");
  fs::permissions(folder_ / "huge.kernel", fs::perms::owner_read | fs::perms::owner_write);
  fs::resize_file(folder_ / "huge.kernel", uint64_t{1} << 43);
  EXPECT_FALSE(cache.Find("huge").has_value());
  EXPECT_EQ(cache.refused(), 2);
  cache.Keep("huge", "code");
  EXPECT_EQ(cache.Find("huge"), "code");
}

TEST_F(KernelFolderTest, AFolderThatCannotBeWrittenHoldsNothing) {
  std::ofstream(folder_ / "file") << "in the way";
  const std::string below = (folder_ / "file" / "below").string();
  const absl::Status checked = CheckKernelFolder(below);
  EXPECT_THAT(std::string(checked.message()), testing::HasSubstr(below));
  EXPECT_THAT(std::string(checked.message()), testing::HasSubstr("Not a directory"));
  const KernelFolder cache(below);
  cache.Keep("key", "image");
  EXPECT_FALSE(cache.Find("key").has_value());
}

TEST_F(KernelFolderTest, AFolderThatIsMissingIsMade) {
  EXPECT_TRUE(CheckKernelFolder((folder_ / "a" / "b").string()).ok());
  EXPECT_TRUE(fs::is_directory(folder_ / "a" / "b"));
}

TEST(KernelKeyTest, PartsAreNotTakenForOneAnother) {
  EXPECT_NE(KernelKey({"ab", "c"}), KernelKey({"a", "bc"}));
  EXPECT_EQ(KernelKey({"a", "b"}), KernelKey({"a", "b"}));
  EXPECT_EQ(KernelKey({"a"}).size(), 64u);
}

}  // namespace
}  // namespace simgrad::sim
