// Relays that are killed again and again, at moments that a seed chooses: the weights of a
// synchronous run stay what they would have been.
#include "core/base/random.h"
#include "tests/hosts/relay_fixture.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

constexpr int kKills = 20;
constexpr uint64_t kSeed = 37;

class RelayKills : public RelayTest {};

TEST_F(RelayKills, ChangeNoBit) {
  const std::vector<std::string> steps = {"run.steps=40", "eval.prompts=0"};
  std::vector<std::string> alone = {"run.listen=\"\"", "clusters=[]", "rollout.pools=[]",
                                    "reward.workers=1"};
  alone.insert(alone.end(), steps.begin(), steps.end());
  HostProcess& local = launch(alone, "/tmp/local");
  ASSERT_EQ(local.wait(kHostPatience), 0);
  link_->set_rate(4);
  to_third_->set_rate(4);
  between_->set_rate(40);
  HostProcess& run = launch_four(steps);
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess* relay = &join_relay();
  ASSERT_NO_FATAL_FAILURE(expect_relaying());
  HostProcess& third = join_third();
  HostProcess& fourth = join_third();
  Rng rng(kSeed);
  int kills = 0;
  while (kills < kKills && run.is_running()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200 + rng.below(2'500)));
    relay->kill(SIGKILL);
    ASSERT_EQ(relay->wait(10s), 128 + SIGKILL);
    ++kills;
    relay = &join_relay();
  }
  fmt::print("{} kills, seed {}\n", kills, kSeed);
  EXPECT_EQ(run.wait(kHostPatience), 0);
  EXPECT_EQ(third.wait(20s), 0);
  EXPECT_EQ(fourth.wait(20s), 0);
  EXPECT_GE(kills, 5);
  EXPECT_EQ(root_of(40), root_of(40, "/tmp/local"));
}

}  // namespace
}  // namespace tailrace
