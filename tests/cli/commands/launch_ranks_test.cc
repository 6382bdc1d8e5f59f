// Whole runs whose trainer is several ranks: the same weights as one trainer makes, whoever is
// killed.
#include "core/run/lock_file.h"
#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

class LaunchRanks : public LaunchTest {
 protected:
  static std::vector<std::string> with_ranks(int ranks) {
    return {fmt::format("train.ranks={}", ranks), "train.gradient_slots=4"};
  }
  const std::string& digest_of_one() {
    static std::string digest;
    if (digest.empty()) {
      start_run("other", with_ranks(1));
      expect_done();
      digest = final_digest("other");
    }
    return digest;
  }
  std::string log_of(int rank) const {
    auto text = read_file(paths().log("trainer", rank));
    return text ? text.value() : "";
  }
};

TEST_F(LaunchRanks, TrainTheWeightsOfOne) {
  const std::string expected = digest_of_one();
  start_run("run", with_ranks(4));
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_NE(log_of(rank).find(fmt::format("rank {} of 4 is ready version=0", rank)),
              std::string::npos);
  EXPECT_FALSE(fs::exists(paths().ranks()) && !fs::is_empty(paths().ranks()));
}

TEST_F(LaunchRanks, AnyOfThemMayBeKilled) {
  const std::string expected = digest_of_one();
  start_run("run", with_ranks(2));
  int killed = 0;
  for (const auto& [step, ranks] :
       std::vector<std::pair<int, std::vector<int>>>{{1, {1}}, {4, {0}}, {7, {0, 1}}, {10, {1}}}) {
    ASSERT_TRUE(wait_until([&] { return has_step(step); })) << output();
    for (const int rank : ranks)
      for (const pid_t pid : workers("trainer", rank)) killed += ::kill(pid, SIGKILL) == 0;
  }
  expect_done();
  EXPECT_GE(killed, 3) << "the run was over before it was disturbed";
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
}

// Its values make its advantages, so that the weights tell whether the critic came back as it was.
TEST_F(LaunchRanks, ACriticIsSharedSavedAndComesBack) {
  auto with = [](int ranks) {
    std::vector<std::string> overrides = with_ranks(ranks);
    overrides.push_back("algo.name=ppo");
    return overrides;
  };
  start_run("other", with(1));
  expect_done();
  const std::string expected = final_digest("other");
  start_run("run", with(2));
  int killed = 0;
  for (const auto& [step, rank] : {std::pair{4, 0}, {7, 1}}) {
    ASSERT_TRUE(wait_until([&] { return has_step(step); })) << output();
    for (const pid_t pid : workers("trainer", rank)) killed += ::kill(pid, SIGKILL) == 0;
  }
  expect_done();
  EXPECT_GE(killed, 1) << "the run was over before it was disturbed";
  EXPECT_EQ(final_digest(), expected);
}

// A relaunch right after kill -9 of the launch: a rank of that one is still ending, which takes as
// long as we hold its role.
TEST_F(LaunchRanks, ARelaunchWaitsForRanksThatAreStillEnding) {
  start_run("run", with_ranks(2));
  ASSERT_TRUE(wait_until([&] { return has_step(1); })) << output();
  launched_->send_signal(SIGKILL);
  (void)finish();
  std::optional<LockFile> ending;
  ASSERT_TRUE(wait_until([&] {
    ending.emplace(paths().role("trainer", 1));
    return ending->held();
  }));
  continue_run();
  EXPECT_TRUE(wait_until([&] {
    return output().find("waiting for trainer-1 of an earlier launch to end") != std::string::npos;
  })) << output();
  ending.reset();
  expect_done();
  EXPECT_EQ(final_digest(), digest_of_one());
  expect_each_step_once();
}

// Another machine may be another number of them.
TEST_F(LaunchRanks, ARunGoesOnWithAnotherNumber) {
  const std::string expected = digest_of_one();
  start_run("run", with_ranks(2));
  ASSERT_TRUE(wait_until([&] { return has_step(3); })) << output();
  launched_->send_signal(SIGKILL);
  (void)finish();
  ASSERT_TRUE(wait_until([&] { return processes_with({paths().root.string()}).empty(); }));
  start(command({"--run-dir", paths().root.string(), "train.ranks=1"}));
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
}

}  // namespace
}  // namespace tailrace
