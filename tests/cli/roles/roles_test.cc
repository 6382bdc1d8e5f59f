#include "cli/roles/roles.h"

#include <chrono>
#include <fstream>
#include <functional>
#include <optional>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/run/run_directory.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

class RolesToJoin : public testing::Test {
 protected:
  RolesToJoin() {
    options_.rollout_processes.workers = 2;
    options_.reward.workers = 1;
    fs::create_directories(run_.roles());
  }
  HeldRole hold(RoleKind kind) { return hold_role_to_join(kind, resolve(options_), run_); }

  TemporaryDirectory folder_;
  const RunPaths run_{folder_.path()};
  RunOptions options_;
};

TEST_F(RolesToJoin, AreTheFirstThatAreFreeBehindThoseOfTheLaunch) {
  std::optional<HeldRole> second;
  {
    const HeldRole first = hold(RoleKind::kRollout);
    EXPECT_EQ(first.name.text(), "rollout-2");
    second.emplace(hold(RoleKind::kRollout));
    EXPECT_EQ(second->name.text(), "rollout-3");
    EXPECT_EQ(hold(RoleKind::kReward).name.text(), "reward-1");
    EXPECT_THROW((void)hold_role({RoleKind::kRollout, 3}, run_), UserError);
  }
  // The first is gone, as if it had been killed.
  EXPECT_EQ(hold(RoleKind::kRollout).name.text(), "rollout-2");
  EXPECT_EQ(hold_role({RoleKind::kRollout, 2}, run_).name.text(), "rollout-2");
}

// A launch that starts none has no names of its own.
TEST_F(RolesToJoin, BeginWithTheFirstWhereTheLaunchStartsNone) {
  options_.rollout_processes.pools = {{.name = "far", .workers = 3, .cluster = "west"},
                                      {.name = "near", .workers = 1}};
  options_.reward.workers = 0;
  EXPECT_EQ(hold(RoleKind::kRollout).name.text(), "rollout-1");
  EXPECT_EQ(hold(RoleKind::kReward).name.text(), "reward-0");
}

// The launch's own are not among them, nor are the locks of those that have left.
TEST_F(RolesToJoin, AreSeenAsLongAsSomebodyPlaysThem) {
  EXPECT_FALSE(has_joined(RoleKind::kRollout, resolve(options_), run_));
  const HeldRole own = hold_role({RoleKind::kRollout, 1}, run_);
  std::ofstream(run_.roles() / "rollout-x.lock") << "4711";
  EXPECT_FALSE(has_joined(RoleKind::kRollout, resolve(options_), run_));
  {
    const HeldRole joined = hold(RoleKind::kRollout);
    EXPECT_TRUE(has_joined(RoleKind::kRollout, resolve(options_), run_));
    EXPECT_FALSE(has_joined(RoleKind::kReward, resolve(options_), run_));
  }
  EXPECT_FALSE(has_joined(RoleKind::kRollout, resolve(options_), run_));
}

class RolesOfALaunch : public testing::Test {
 protected:
  RolesOfALaunch() {
    options_.train.ranks = 2;
    fs::create_directories(run_.roles());
  }
  void await(std::chrono::milliseconds patience) {
    await_roles(resolve(options_), run_, patience, [this](const std::string& line) {
      said_.push_back(line);
      if (on_line_) on_line_();
    });
  }

  TemporaryDirectory folder_;
  const RunPaths run_{folder_.path()};
  RunOptions options_;
  std::vector<std::string> said_;
  std::function<void()> on_line_;
};

// Of a launch that was killed, a trainer is still ending when the next launch begins.
TEST_F(RolesOfALaunch, AreWaitedForAndThoseThatAreStillPlayedAreNamed) {
  await(std::chrono::milliseconds(0));
  EXPECT_EQ(said_, std::vector<std::string>());
  std::optional<HeldRole> dying = hold_role({RoleKind::kTrainer, 1}, run_);
  on_line_ = [&] { dying.reset(); };
  await(std::chrono::minutes(10));
  EXPECT_EQ(said_,
            std::vector<std::string>{fmt::format(
                "waiting for trainer-1 of an earlier launch to end (process {})", ::getpid())});
}

TEST_F(RolesOfALaunch, OneThatIsPlayedOnIsRefused) {
  const HeldRole held = hold_role({RoleKind::kTrainer, 0}, run_);
  try {
    await(std::chrono::milliseconds(50));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(
        std::string(error.what()).find("trainer-0 of " + run_.root.string() + " is played already"),
        std::string::npos)
        << error.what();
  }
  EXPECT_EQ(said_.size(), 1u) << "once is enough";
}

}  // namespace
}  // namespace tailrace
