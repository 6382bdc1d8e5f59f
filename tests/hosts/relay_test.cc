// Two hosts of one cluster behind slow links, and a fast one between them: weights cross from the
// run to one of them, which hands them on.
//
//   alpha (the run) --slow-- beta --fast-- gamma --slow-- alpha
#include "tests/hosts/remote_fixture.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

const std::string kAddressC = "10.77.0.3";
constexpr char kRelayAt[] = "tcp://10.77.0.2:7702";
// So many that the first host has not done all before the other has a version.
const std::vector<std::string> kManySteps = {"run.steps=16", "eval.prompts=0"};

class RemoteRelay : public RemoteTest {
 protected:
  void SetUp() override {
    RemoteTest::SetUp();
    if (IsSkipped()) return;
    third_.emplace("gamma", HostOptions{.hidden = {fs::path(TAILRACE_SOURCE_DIR) / "tests/data"}});
    make_keys("box8");
    carry_keys("box8", *third_);
    connect({.rate_mbit = 20, .delay = 5ms});
    to_third_.emplace(*home_, *third_,
                      LinkOptions{.address_b = kAddressC, .rate_mbit = 20, .delay = 5ms});
    between_.emplace(
        *far_, *third_,
        LinkOptions{
            .address_a = kAddressB, .address_b = kAddressC, .rate_mbit = 1000, .delay = 100us});
  }
  void TearDown() override {
    if (HasFailure() && third_) {
      show_worker_logs(*far_);
      show_worker_logs(*third_);
    }
    between_.reset();
    to_third_.reset();
    third_.reset();
    RemoteTest::TearDown();
  }

  static std::vector<fs::path> worker_logs(const Host& host) {
    std::vector<fs::path> logs;
    std::error_code ignored;
    for (const auto& log : fs::directory_iterator(host.outside("/tmp/work/logs"), ignored))
      logs.push_back(log.path());
    return logs;
  }
  static void show_worker_logs(const Host& host) {
    for (const fs::path& log : worker_logs(host))
      fmt::print("{} {}:\n{}", host.name(), log.filename().string(), read_file(log).value());
  }
  // What the workers of a host have written.
  static std::string words_of(const Host& host) {
    std::string words;
    for (const fs::path& log : worker_logs(host)) words += read_file(log).value();
    return words;
  }

  HostProcess& launch_four(std::vector<std::string> more = {}) {
    more.insert(more.end(),
                {"rollout.pools=[{name: far, workers: 4, cluster: west}]", "reward.workers=1"});
    return launch(more);
  }
  HostProcess& join_relay() { return join({"--pool", "far", "--relay", kRelayAt}); }
  HostProcess& join_third() {
    return third_->spawn(
        {TAILRACE_BINARY, "worker", "--join", kListen, "--key", "/tmp/keys/box8.key",
         "--server-key", "/tmp/keys/server.pub", "--work-dir", "/tmp/work", "--pool", "far"},
        next_output());
  }
  int64_t from_home(const std::optional<LinkEmulator>& link) const {
    return link->counters(Direction::kAToB).passed_bytes;
  }
  // All versions are of one size; the trainer removes old ones.
  int64_t payload_bytes() const {
    int64_t bytes = 0;
    for (const auto& file : fs::directory_iterator(home_->outside("/tmp/run/weights")))
      if (file.path().extension() == ".safetensors") bytes = static_cast<int64_t>(file.file_size());
    return bytes;
  }
  void expect_relaying(const std::string& words = "relays weights to other hosts") {
    ASSERT_TRUE(comes_true([&] { return words_of(*far_).find(words) != std::string::npos; }));
  }

  std::optional<Host> third_;
  std::optional<LinkEmulator> to_third_, between_;
};

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
  const std::string words = words_of(*third_);
  EXPECT_NE(words.find("received p0-v1.safetensors from=rollout-0 bytes="), std::string::npos);
  // Four versions to one host, and to the other what is no weights.
  EXPECT_LT(from_home(link_), 5 * payload_bytes());
  EXPECT_LT(from_home(to_third_), payload_bytes() / 2);
  EXPECT_GT(from_home(between_), 2 * payload_bytes());
}

// In the middle of a version that it hands on: the other host goes on, by whoever takes its place
// or by the run.
TEST_F(RemoteRelay, ARelayThatIsKilledInTheMiddleIsReplaced) {
  between_->set_rate(8);
  HostProcess& run = launch_four(kManySteps);
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
  EXPECT_EQ(steps_done(), 16);
  // The second worker of the host relays by now, and little came twice.
  EXPECT_LT(from_home(link_), 20 * payload_bytes());
  const std::string words = words_of(*far_);
  EXPECT_NE(words.find("relays weights", words.find("waits to take its place")), std::string::npos);
}

TEST_F(RemoteRelay, AHostWithoutASecondWorkerFallsBackToTheRun) {
  between_->set_rate(8);
  HostProcess& run = launch_four(kManySteps);
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& first = join_relay();
  ASSERT_NO_FATAL_FAILURE(expect_relaying());
  HostProcess& third = join_third();
  ASSERT_TRUE(comes_true([&] { return from_home(between_) > 400'000; }));
  first.kill(SIGKILL);
  EXPECT_EQ(run.wait(kHostPatience), 0);
  EXPECT_EQ(third.wait(20s), 0);
  EXPECT_EQ(steps_done(), 16);
  const std::string words = words_of(*third_);
  EXPECT_NE(words.find("relay rollout-0 at tcp://10.77.0.2:7702 did not give"), std::string::npos);
}

// A late joiner gets the version that samples from the relay, and a host behind a bad link within
// the cluster delays nobody.
TEST_F(RemoteRelay, ALateAndSlowHostDelaysNobody) {
  HostProcess& run = launch_four({"run.steps=40", "scheduler.mode=async", "scheduler.ahead=2",
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
  EXPECT_EQ(steps_done(), 40);
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
