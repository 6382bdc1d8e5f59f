#include "core/run/unfinished_folder.h"

#include <atomic>
#include <filesystem>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string folder_refusal(const fs::path& out) {
  try {
    const UnfinishedFolder folder(out);
    return "accepted";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(UnfinishedFolder, AppearsWholeOrNotAtAll) {
  const TemporaryDirectory folder;
  const fs::path out = folder / "a/model";
  {
    const UnfinishedFolder left(out);
    EXPECT_TRUE(fs::exists(left.path()));
    EXPECT_FALSE(fs::exists(out));
  }
  EXPECT_TRUE(fs::is_empty(folder / "a"));
  fs::create_directory(out);  // an empty one is replaced
  UnfinishedFolder made(out);
  folder.write("a/model.unfinished/x", "1");
  made.publish();
  EXPECT_TRUE(fs::exists(out / "x"));
  EXPECT_THAT(folder_refusal(out), HasSubstr("exists and is not empty"));
}

TEST(UnfinishedFolder, ReplacesNeitherFilesNorLinks) {
  const TemporaryDirectory folder;
  folder.write("file", "");
  fs::create_directory(folder / "empty");
  fs::create_symlink(folder / "empty", folder / "link");
  fs::create_symlink(folder / "none", folder / "dangling");
  for (const char* name : {"file", "link", "dangling"}) {
    EXPECT_THAT(folder_refusal(folder / name), HasSubstr("exists and is no folder"));
    EXPECT_FALSE(fs::exists(folder / (std::string(name) + ".unfinished")));
  }
  // Nor where they come while the folder is filled.
  const fs::path out = folder / "late";
  {
    UnfinishedFolder late(out);
    fs::create_symlink(folder / "empty", out);
    EXPECT_THROW(late.publish(), UserError);
    fs::remove(out);
    folder.write("late/theirs", "");
    EXPECT_THROW(late.publish(), UserError);
  }
  EXPECT_TRUE(fs::exists(out / "theirs"));
  EXPECT_FALSE(fs::exists(folder / "late.unfinished"));
}

TEST(UnfinishedFolder, HasOneMakerAtATime) {
  for (int round = 0; round < 20; ++round) {
    const TemporaryDirectory folder;
    const fs::path out = folder / "model";
    constexpr int kMakers = 4;
    std::vector<std::string> said(kMakers);
    std::vector<std::unique_ptr<UnfinishedFolder>> made(kMakers);
    std::latch start(kMakers);
    {
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < kMakers; ++i)
        threads.emplace_back([&, i] {
          start.arrive_and_wait();
          try {
            made[i] = std::make_unique<UnfinishedFolder>(out);
          } catch (const UserError& error) {
            said[i] = error.what();
          }
        });
    }
    int num_made = 0;
    for (size_t i = 0; i < kMakers; ++i) {
      if (made[i] == nullptr) {
        EXPECT_THAT(said[i], HasSubstr("somebody is writing it"));
        continue;
      }
      ++num_made;
      folder.write("model.unfinished/x", "1");
      made[i]->publish();
    }
    EXPECT_EQ(num_made, 1);
    made.clear();
    EXPECT_TRUE(fs::exists(out / "x"));
  }
}

}  // namespace
}  // namespace tailrace
