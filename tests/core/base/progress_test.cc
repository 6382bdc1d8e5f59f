#include "core/base/progress.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/digest_of.h"
#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/core/base/test_clock.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kOneGib = int64_t{1} << 30;

class ProgressTest : public testing::Test {
 protected:
  TestClock clock_;
  std::vector<std::string> said_;
  ProgressScope scope_{[this](const std::string& line) { said_.push_back(line); }, clock_};

  void read(const std::string& what, int64_t pieces, Time each) {
    Progress progress(what, pieces * kOneGib);
    for (int64_t i = 0; i < pieces; ++i) {
      clock_.advance(each);
      progress.add(kOneGib);
    }
  }
};

TEST_F(ProgressTest, SaysALineEveryTenSeconds) {
  read("loading a", 9, 3s);
  EXPECT_EQ(said_, (std::vector<std::string>{"loading a: 4.0 GiB of 9.0 GiB",
                                             "loading a: 8.0 GiB of 9.0 GiB"}));
}

TEST_F(ProgressTest, SaysNothingOfWhatIsSoonDone) {
  for (int i = 0; i < 5; ++i) {
    read("loading a", 3, 3s);
    clock_.advance(2s);
  }
  EXPECT_TRUE(said_.empty());
}

TEST_F(ProgressTest, TakesLoopsBehindEachOtherForOneWait) {
  read("loading a", 2, 4s);
  read("loading b", 2, 4s);
  EXPECT_EQ(said_, std::vector<std::string>{"loading b: 1.0 GiB of 2.0 GiB"});
}

TEST_F(ProgressTest, IsToldToTheInnermostScopeOfItsThread) {
  std::vector<std::string> inner;
  {
    const ProgressScope scope([&](const std::string& line) { inner.push_back(line); }, clock_);
    read("loading a", 1, 10s);
  }
  EXPECT_EQ(inner.size(), 1);
  EXPECT_TRUE(said_.empty());
  read("loading b", 1, 10s);
  EXPECT_EQ(said_.size(), 1);
}

// Each look at the clock takes so long: a small file lasts as long as a large one.
class SlowClock final : public Clock {
 public:
  Time now() const override { return now_ += 6s; }

 private:
  mutable Time now_{};
};

TEST(Progress, OfAFileThatIsHashed) {
  const TemporaryDirectory folder;
  const auto path = folder.path() / "a";
  ASSERT_TRUE(write_file_atomic(path, std::string(size_t{5} << 20, 'x')));
  const SlowClock clock;
  std::vector<std::string> said;
  const ProgressScope scope([&](const std::string& line) { said.push_back(line); }, clock);
  ASSERT_TRUE(digest_of_file(path));
  ASSERT_FALSE(said.empty());
  EXPECT_EQ(said.front(), "hashing " + path.string() + ": 2.0 MiB of 5.0 MiB");
}

}  // namespace
}  // namespace tailrace
