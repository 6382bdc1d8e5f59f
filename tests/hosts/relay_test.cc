// A host hands weights on to another one of its cluster.
#include <map>

#include "tests/hosts/relay_fixture.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

// So many that the first host has not done all before the other has a version.
const std::vector<std::string> kTenSteps = {"run.steps=10", "eval.prompts=0"};

using RemoteRelay = RelayTest;

TEST_F(RemoteRelay, WeightsCrossOnceForTwoHosts) {
  HostProcess& run = launch_four();
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& first = join_relay();
  ASSERT_NO_FATAL_FAILURE(expect_relaying());
  HostProcess& second = join_relay();
  ASSERT_NO_FATAL_FAILURE(expect_relaying("this one waits to take its place"));
  HostProcess& third = join_third();
  HostProcess& fourth = join_third();
  EXPECT_EQ(run.wait(kHostPatience), 0);
  for (HostProcess* worker : {&first, &second, &third, &fourth}) EXPECT_EQ(worker->wait(20s), 0);
  // Each version crosses in one form, whichever ones the hosts have when they ask for it.
  const std::map<int64_t, int64_t> crossed = weights_received(*far_, "run");
  EXPECT_FALSE(crossed.empty());
  for (const auto& [version, forms] : crossed) EXPECT_EQ(forms, 1) << "version " << version;
  EXPECT_FALSE(weights_received(*third_, "rollout-0").empty());
  EXPECT_TRUE(weights_received(*third_, "run").empty());
  // Four versions to one host, and to the other what is no weights.
  EXPECT_LT(from_home(link_), 5 * payload_bytes());
  EXPECT_LT(from_home(to_third_), payload_bytes() / 2);
  EXPECT_GT(from_home(between_), payload_bytes());
}

// In the middle of a version that it hands on: the other host goes on, by whoever takes its place
// or by the run.
TEST_F(RemoteRelay, ARelayThatIsKilledInTheMiddleIsReplaced) {
  between_->set_rate(8);
  HostProcess& run = launch_four(kTenSteps);
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& first = join_relay();
  ASSERT_NO_FATAL_FAILURE(expect_relaying());
  HostProcess& second = join_relay();
  ASSERT_NO_FATAL_FAILURE(expect_relaying("this one waits to take its place"));
  HostProcess& third = join_third();
  // So much is of a version, and no message of the run.
  ASSERT_TRUE(comes_true([&] { return from_home(between_) > 400'000; }));
  first.kill(SIGKILL);
  EXPECT_EQ(first.wait(10s), 128 + SIGKILL);
  between_->set_rate(1000);
  EXPECT_EQ(run.wait(kHostPatience), 0);
  EXPECT_EQ(second.wait(20s), 0);
  EXPECT_EQ(third.wait(20s), 0);
  EXPECT_EQ(steps_done(), 10);
  // The second worker of the host relays by now, and at most what was under way came twice.
  EXPECT_LT(from_home(link_), 14 * payload_bytes());
  for (const auto& [version, forms] : weights_received(*far_, "run"))
    EXPECT_LE(forms, 2) << "version " << version;
  const std::string words = words_of(*far_);
  EXPECT_NE(words.find("relays weights", words.find("waits to take its place")), std::string::npos);
}

TEST_F(RemoteRelay, AHostWithoutASecondWorkerFallsBackToTheRun) {
  between_->set_rate(8);
  HostProcess& run = launch_four(kTenSteps);
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& first = join_relay();
  ASSERT_NO_FATAL_FAILURE(expect_relaying());
  HostProcess& third = join_third();
  ASSERT_TRUE(comes_true([&] { return from_home(between_) > 400'000; }));
  first.kill(SIGKILL);
  EXPECT_EQ(run.wait(kHostPatience), 0);
  EXPECT_EQ(third.wait(20s), 0);
  EXPECT_EQ(steps_done(), 10);
  const std::string words = words_of(*third_);
  EXPECT_NE(words.find("relay rollout-0 at tcp://10.77.0.2:7702 did not give"), std::string::npos);
}

// A late joiner gets the version that samples from the relay, and a host behind a bad link within
// the cluster delays nobody.
TEST_F(RemoteRelay, ALateAndSlowHostDelaysNobody) {
  HostProcess& run = launch_four({"run.steps=28", "scheduler.mode=async", "scheduler.ahead=2",
                                  "scheduler.max_staleness=2", "eval.prompts=0"});
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& first = join_relay();
  ASSERT_TRUE(comes_true([&] { return steps_done() >= 2; }));
  const int64_t before = from_home(to_third_);
  between_->set_rate(2);
  HostProcess& late = join_third();
  EXPECT_EQ(run.wait(kHostPatience), 0);
  EXPECT_EQ(first.wait(20s), 0);
  EXPECT_EQ(late.wait(20s), 0);
  EXPECT_LT(from_home(to_third_) - before, payload_bytes());
  EXPECT_GT(from_home(between_), payload_bytes() / 2);
  // A version takes 4 s to the slow host, and the run does not wait for it.
  EXPECT_EQ(steps_done(), 28);
}

TEST_F(RemoteRelay, MistakesAreSaid) {
  launch();
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& elsewhere = join({"--pool", "far", "--relay", "tcp://10.9.9.9:7702"});
  EXPECT_EQ(elsewhere.wait(kHostPatience), 2);
  EXPECT_NE(elsewhere.output().find("--relay is tcp://10.9.9.9:7702, which cannot be opened"),
            std::string::npos)
      << elsewhere.output();
  HostProcess& anywhere = join({"--pool", "far", "--relay", "tcp://*:7702"});
  EXPECT_EQ(anywhere.wait(kHostPatience), 2);
  EXPECT_NE(anywhere.output().find("--relay is 'tcp://*:7702'; it is tcp://HOST:PORT"),
            std::string::npos)
      << anywhere.output();
}

}  // namespace
}  // namespace tailrace
