// A hundred kills of whoever has to do with weights, at moments that a seed chooses, in a run over
// two hosts behind slow links: relay, receiver, trainer and scheduler.
#include <charconv>
#include <map>
#include <set>

#include "core/base/random.h"
#include "core/weights/version_folder.h"
#include "scheduler/store/journal.h"
#include "scheduler/store/snapshot.h"
#include "tests/hosts/relay_fixture.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

constexpr int kKillsOfAll = 100;
constexpr uint64_t kSeedOfAll = 3737;
constexpr std::chrono::minutes kPatienceOfAll{12};

class WeightKills : public RelayTest {
 protected:
  // The number inside, of the holder of its lock; 0: nobody holds it.
  pid_t role(const std::string& name) const {
    const std::string text = text_at_home("/tmp/run/roles/" + name + ".lock");
    pid_t pid = 0;
    std::from_chars(text.data(), text.data() + text.size(), pid);
    return pid;
  }

  // Every version that a sample of the last snapshot names is there or can be made again, and has
  // the root by which it was sampled.
  void expect_what_samples_name() {
    const auto seen = scheduler::restore(home_->outside("/tmp/run/journal"));
    ASSERT_TRUE(seen && seen.value().state);
    const scheduler::Policy& policy = seen.value().state->policies.at(0);
    std::set<int64_t> named;
    for (const auto& [id, task] : policy.tasks)
      for (const scheduler::Member& member : task.members) {
        if (!member.has_body) continue;
        for (int64_t v = member.min_version; v <= member.max_version; ++v) named.insert(v);
      }
    EXPECT_FALSE(named.empty());
    const fs::path weights = home_->outside("/tmp/run/weights"), scratch = folder_ / "scratch";
    for (const int64_t version : named) {
      fs::create_directories(scratch);
      const auto payload = payload_of(weights, 0, version, scratch);
      EXPECT_TRUE(payload) << payload.failure().message;
      const auto manifest = read_manifest(weights / manifest_name(0, version));
      ASSERT_TRUE(manifest) << manifest.failure().message;
      const auto known = policy.lineage.find(version);
      EXPECT_TRUE(known == policy.lineage.end() || manifest.value().root == known->second.digest);
      fs::remove_all(scratch);
    }
    fmt::print("{} versions that samples name\n", named.size());
  }
};

TEST_F(WeightKills, LeaveARunThatEndsAndVersionsThatAreProved) {
  link_->set_rate(8);
  to_third_->set_rate(8);
  between_->set_rate(80);
  HostProcess& run = launch_four({"run.steps=100000", "scheduler.mode=async", "scheduler.ahead=2",
                                  "scheduler.max_staleness=2", "eval.prompts=0",
                                  "scheduler.quarantine_limit=1000"});
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess* relay = &join_relay();
  ASSERT_NO_FATAL_FAILURE(expect_relaying());
  HostProcess* third = &join_third();
  Rng rng(kSeedOfAll);
  std::map<std::string, int> kills;
  std::map<std::string, std::chrono::steady_clock::time_point> latest_kills;
  const auto deadline = std::chrono::steady_clock::now() + kPatienceOfAll;
  const auto total = [&] {
    int sum = 0;
    for (const auto& [who, times] : kills) sum += times;
    return sum;
  };
  while (total() < kKillsOfAll && run.is_running() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + rng.below(2'000)));
    const int64_t who = rng.below(4);
    if (who < 2) {
      HostProcess*& worker = who == 0 ? relay : third;
      worker->kill(SIGKILL);
      ASSERT_TRUE(worker->wait(10s));
      ++kills[who == 0 ? "relay" : "receiver"];
      worker = who == 0 ? &join_relay() : &join_third();
      continue;
    }
    const std::string name = who == 2 ? "trainer-0" : "scheduler-0";
    auto& latest = latest_kills[name];
    const auto now = std::chrono::steady_clock::now();
    // One that dies six times within a minute ends its launch.
    if (now - latest < 13s) continue;
    if (const pid_t pid = role(name); pid > 0 && home_->kill_inside(pid, SIGKILL)) {
      ++kills[name];
      latest = now;
    }
  }
  for (const auto& [who, times] : kills) {
    fmt::print("{}: {} kills\n", who, times);
    EXPECT_GE(times, 5) << who;
  }
  EXPECT_EQ(total(), kKillsOfAll) << "seed " << kSeedOfAll;
  ASSERT_TRUE(run.is_running());
  // It goes on: behind the last kill steps are trained.
  const int64_t before = steps_done();
  EXPECT_TRUE(comes_true([&] { return steps_done() >= before + 3; }));
  run.kill(SIGTERM);
  EXPECT_TRUE(run.wait(kHostPatience));
  HostProcess& verified =
      home_->spawn({TAILRACE_BINARY, "weights", "verify", "/tmp/run"}, next_output());
  EXPECT_EQ(verified.wait(kHostPatience), 0) << verified.output();
  expect_what_samples_name();
}

}  // namespace
}  // namespace tailrace
