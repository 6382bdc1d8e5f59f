// Which member goes first (law 6.9): scenario 27, and what it is for.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "core/base/random.h"
#include "tests/golden/golden.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

Config longest_first(int64_t prompts, int64_t members) {
  Config config = small_config(prompts, members);
  config.mode.dispatch_order = DispatchOrder::kLongestFirst;
  return config;
}

std::string short_name(const MemberId& member) {
  return fmt::format("{}.{}", member.prompt, member.member);
}
std::string granted(const Actions& actions) {
  std::string names;
  for (const Grant& grant : only<Grant>(actions))
    names += (grant.lane == Lane::kEval ? " eval " : " ") + short_name(grant.lease.member);
  return names;
}
std::string in_line(const State& state) {
  std::string names;
  for (const auto& [need, queue] : state.waiting)
    for (const Waiting& waiting : queue) names += " " + short_name(waiting.work.member);
  return names;
}

AttemptResult running(const Harness& h, int64_t prompt, int32_t member, int64_t tokens) {
  for (const Grant& grant : grants_of(h, prompt)) {
    if (grant.lease.member.member != member) continue;
    AttemptResult result = h.result(grant, member);
    result.tokens = tokens;
    return result;
  }
  ADD_FAILURE() << prompt << "." << member << " does not run";
  return {};
}

TEST(SchedulerOrder, S27_AProbeOfEachGroupGoesFirstThenTheLongest) {
  Harness h(longest_first(3, 3));
  h.tell(published(0));
  EXPECT_EQ(in_line(h.state), " 0.0 1.0 2.0 0.1 0.2 1.1 1.2 2.1 2.2");
  h.add_rollout("w0", 3);
  const auto ends = [&](int64_t prompt, int32_t member, int64_t tokens) {
    return granted(h.tell(running(h, prompt, member, tokens)));
  };
  // A probe that still runs is longer than the one that has told.
  EXPECT_EQ(ends(1, 0, 5), " 0.1");
  EXPECT_EQ(ends(0, 0, 50), " 2.1");
  EXPECT_EQ(in_line(h.state), " 2.2 0.2 1.1 1.2");
  EXPECT_EQ(ends(2, 0, 20), " 0.2");
  // A shorter one takes nothing back.
  EXPECT_EQ(ends(2, 1, 3), " 2.2");
  EXPECT_EQ(in_line(h.state), " 1.1 1.2");
  // A retry waits where its siblings would; elsewhere than where it failed.
  AttemptResult broken = running(h, 0, 1, 0);
  broken.outcome = Outcome::kEnvFailed;
  broken.reward.reset();
  EXPECT_EQ(granted(h.tell(broken)), " 1.1");
  EXPECT_EQ(in_line(h.state), " 0.1 1.2");
  h.now += h.state.config.quarantine.longest;
  EXPECT_EQ(ends(1, 1, 4), " 0.1");
  EXPECT_EQ(ends(0, 1, 60), " 1.2");
  h.answer_running();
  EXPECT_EQ(h.count(Place::kReady), 3);
  EXPECT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  expect_golden("scheduler/S27.txt", h.transcript);
}

TEST(SchedulerOrder, S27_ALongerSampleMovesItsSiblings) {
  Harness h = started(longest_first(2, 4), 3);
  EXPECT_EQ(granted(h.tell(running(h, 0, 0, 10))), " 1.1");
  EXPECT_EQ(granted(h.tell(running(h, 1, 0, 20))), " 1.2");
  EXPECT_EQ(in_line(h.state), " 1.3 0.2 0.3");
  EXPECT_EQ(granted(h.tell(running(h, 0, 1, 30))), " 0.2");
  EXPECT_EQ(in_line(h.state), " 0.3 1.3");
}

TEST(SchedulerOrder, S27_AnEvaluationIsServedFirstAsItIsLaunched) {
  Config config = longest_first(2, 2);
  config.eval = {.prompts = 2, .group_size = 2};
  Harness h(config);
  h.tell(published(0));
  EXPECT_EQ(in_line(h.state), " 0.0 0.1 1.0 1.1 0.0 1.0 0.1 1.1");
  const Actions up = h.tell(WorkerUp{.worker = "w0", .slots = 3});
  EXPECT_EQ(granted(h.tell_installed(only<Stage>(up).at(0))), " eval 0.0 eval 0.1 eval 1.0");
}

TEST(SchedulerOrder, S27_ARestartMayBringAnotherOrder) {
  Config config = small_config(3, 2);
  Harness h = started(config, 1);
  h.tell(running(h, 0, 0, 10));
  EXPECT_EQ(in_line(h.state), " 1.0 1.1 2.0 2.1");
  config.mode.dispatch_order = DispatchOrder::kLongestFirst;
  h.tell(Restarted{config});
  EXPECT_EQ(in_line(h.state), " 1.0 2.0 1.1 2.1");
  config.mode.dispatch_order = DispatchOrder::kLaunched;
  h.tell(Restarted{config});
  EXPECT_EQ(in_line(h.state), " 1.0 1.1 2.0 2.1");
}

// A step of one mode, in made-up time: tokens of a sample by its prompt and member.
Time time_of_step(DispatchOrder order, const std::vector<std::vector<int64_t>>& tokens) {
  Config config = small_config(std::ssize(tokens), std::ssize(tokens[0]));
  config.mode.dispatch_order = order;
  Harness h(config);
  for (const char* id : {"w0", "w1"}) h.add_rollout(id, 8);
  std::multimap<Time, Grant> ends;
  const auto begin = [&](const Actions& actions) {
    for (const Grant& grant : only<Grant>(actions)) {
      const MemberId& member = grant.lease.member;
      const int64_t length =
          tokens[static_cast<size_t>(member.prompt)][static_cast<size_t>(member.member)];
      ends.emplace(h.now + length * std::chrono::milliseconds(10), grant);
    }
  };
  begin(publish(h, 0));
  h.tell(wants(1));
  const Time start = h.now;
  while (!ends.empty()) {
    const auto [time, grant] = *ends.begin();
    ends.erase(ends.begin());
    h.now = time;
    AttemptResult result = h.result(grant, grant.lease.member.member);
    result.tokens = tokens[static_cast<size_t>(grant.lease.member.prompt)]
                          [static_cast<size_t>(grant.lease.member.member)];
    const Actions actions = h.tell(result);
    if (!only<HandOver>(actions).empty()) return h.now - start;
    begin(actions);
  }
  ADD_FAILURE() << "the step did not end";
  return {};
}

// What the mode is for. 16 prompts x 8 samples have 16 places; lengths are log-normal over prompts,
// and those of a prompt are alike.
TEST(SchedulerOrder, LongestFirstEndsAStepWithALongTailSooner) {
  double launched = 0, longest = 0, least = 0;
  int sooner = 0;
  constexpr int kSteps = 40;
  for (int seed = 0; seed < kSteps; ++seed) {
    Rng rng(static_cast<uint64_t>(seed));
    std::vector<std::vector<int64_t>> tokens(16, std::vector<int64_t>(8));
    double sum = 0;
    int64_t most = 0;
    for (auto& group : tokens) {
      const double base = 100 * std::exp(rng.normal());
      for (int64_t& length : group) {
        length = std::lround(base * std::exp(0.2 * rng.normal()));
        sum += static_cast<double>(length);
        most = std::max(most, length);
      }
    }
    const auto seconds_of = [&](DispatchOrder order) {
      return std::chrono::duration<double>(time_of_step(order, tokens)).count();
    };
    const double a = seconds_of(DispatchOrder::kLaunched);
    const double b = seconds_of(DispatchOrder::kLongestFirst);
    launched += a, longest += b, sooner += b < a;
    // Nobody can do better: all places full to the end, or the longest from the first moment.
    least += 0.01 * std::max(sum / 16, static_cast<double>(most));
  }
  if (std::getenv("TAILRACE_VERBOSE") != nullptr)
    fmt::print("launched {:.1f} s, longest first {:.1f} s, at least {:.1f} s; sooner in {} of {}\n",
               launched / kSteps, longest / kSteps, least / kSteps, sooner, kSteps);
  // Of the time that the order can win, most.
  EXPECT_LT(longest - least, 0.5 * (launched - least));
  EXPECT_GT(sooner, kSteps * 3 / 4);
}

}  // namespace
}  // namespace tailrace::scheduler
