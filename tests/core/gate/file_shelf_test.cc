#include "core/gate/file_shelf.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tests/core/gate/gate_fixture.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using Status = wire::FileFacts::Status;

class FileShelfTest : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) {
    std::ofstream(host_.folder() / name) << text;
    shared_[name] = {.path = host_.folder() / name};
  }
  wire::FileFacts ready(FileShelf& shelf, const std::string& name) {
    wire::FileFacts facts;
    EXPECT_TRUE(eventually([&] {
      facts = shelf.facts(name);
      return facts.status != Status::kLater;
    }));
    return facts;
  }
  FileShelf::Find find() {
    return [this](const std::string& name) -> std::optional<SharedFile> {
      const auto found = shared_.find(name);
      if (found == shared_.end()) return std::nullopt;
      return found->second;
    };
  }

  wire::KeyedHost host_;
  std::map<std::string, SharedFile> shared_;
  wire::Wakeup bell_;
};

TEST_F(FileShelfTest, AFileThatIsOnItsWaySaysHowFarItHasGot) {
  FileShelf shelf(find(), bell_);
  shared_["x"] = {.path = host_.folder() / "x", .arriving = 7};
  auto facts = shelf.facts("x");
  EXPECT_EQ(facts.status, Status::kLater);
  EXPECT_EQ(facts.bytes, 7);
  EXPECT_TRUE(shelf.is_pending("x"));
  EXPECT_FALSE(shelf.holds("x"));
  shared_["x"] = {.path = {}, .absent = "it could not be had"};
  facts = shelf.facts("x");
  EXPECT_EQ(facts.status, Status::kAbsent);
  EXPECT_EQ(facts.reason, "it could not be had");
  EXPECT_FALSE(shelf.is_pending("x"));
  put("x", "text");
  EXPECT_EQ(ready(shelf, "x").bytes, 4);
  // It was removed, and is fetched again: what is here is the same.
  fs::remove(host_.folder() / "x");
  shared_["x"].arriving = 0;
  EXPECT_EQ(shelf.facts("x").status, Status::kThere);
}

TEST_F(FileShelfTest, ARemovedFileIsPutAwayOnceNobodyUsesIt) {
  using std::chrono_literals::operator""ms;
  FileShelf shelf(find(), bell_, 50ms);
  put("old", "text");
  put("kept", "other");
  const Digest old = ready(shelf, "old").digest, kept = ready(shelf, "kept").digest;
  fs::remove(host_.folder() / "old");
  EXPECT_TRUE(shelf.chunk(old, 0));
  put("new", "new");
  (void)ready(shelf, "new");
  EXPECT_TRUE(shelf.chunk(old, 0));
  std::this_thread::sleep_for(100ms);
  put("newer", "newer");
  (void)ready(shelf, "newer");
  EXPECT_FALSE(shelf.chunk(old, 0));
  EXPECT_FALSE(shelf.holds("old"));
  EXPECT_TRUE(shelf.chunk(kept, 0));
}

}  // namespace
}  // namespace tailrace
