#include "cli/run/roles.h"

#include <fstream>
#include <optional>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/run_directory.h"
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
  HeldRole hold(RoleKind kind) { return hold_role_to_join(kind, options_, run_); }

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

// The launch's own are not among them, nor are the locks of those that have left.
TEST_F(RolesToJoin, AreSeenAsLongAsSomebodyPlaysThem) {
  EXPECT_FALSE(has_joined(RoleKind::kRollout, options_, run_));
  const HeldRole own = hold_role({RoleKind::kRollout, 1}, run_);
  std::ofstream(run_.roles() / "rollout-x.lock") << "4711";
  EXPECT_FALSE(has_joined(RoleKind::kRollout, options_, run_));
  {
    const HeldRole joined = hold(RoleKind::kRollout);
    EXPECT_TRUE(has_joined(RoleKind::kRollout, options_, run_));
    EXPECT_FALSE(has_joined(RoleKind::kReward, options_, run_));
  }
  EXPECT_FALSE(has_joined(RoleKind::kRollout, options_, run_));
}

}  // namespace
}  // namespace tailrace
