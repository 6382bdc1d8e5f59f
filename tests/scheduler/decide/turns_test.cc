// Law 6.8: what goes on from stored turns, and what begins anew.
#include "tests/golden/golden.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

TurnsStored turns_of(const Grant& grant, int32_t turns, int64_t version) {
  return {.worker = grant.worker,
          .lease = grant.lease,
          .lane = grant.lane,
          .turns = turns,
          .tokens = 10 * turns,
          .min_version = version,
          .max_version = version};
}

BodyId body_of(const TurnsStored& turns) { return {turns.lane, turns.lease, turns.turns}; }

// A worker plays two members, of which it has stored two turns of the first; another one is there.
struct Begun : Harness {
  std::vector<Grant> first;
  TurnsStored stored;

  explicit Begun(Config config = small_config(1, 2)) : Harness(std::move(config)) {
    add_rollout("w0", 8);
    first = only<Grant>(publish(*this, 0));
    stored = turns_of(first.at(0), 2, 0);
    tell(stored);
    add_rollout("w1", 8);
  }
  const Member& member() { return policy().tasks.begin()->second.members.at(0); }
  // What the same member is granted by these.
  Grant again(const Actions& actions) {
    for (const Grant& grant : only<Grant>(actions)) {
      if (grant.lease.member == first[0].lease.member) return grant;
    }
    ADD_FAILURE() << "not granted again\n" << describe_all(actions);
    return {};
  }
};

TEST(SchedulerTurns, S06_WhatIsMovedGoesOnFromItsLastStoredTurn) {
  Begun h;
  const Grant moved = h.again(h.tell(Stalled{"w0"}));
  EXPECT_EQ(moved.worker, "w1");
  EXPECT_EQ(moved.lease.attempt, 2);
  EXPECT_EQ(moved.prefix, body_of(h.stored));
  EXPECT_EQ(h.policy().attempts.resumed_tokens, 20);
  // Its own turns take the place of those that it began with.
  const TurnsStored more = turns_of(moved, 4, 0);
  const auto released = only<Release>(h.tell(more));
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].bodies, std::vector{body_of(h.stored)});
  EXPECT_FALSE(needs_disk(Action(released[0])));
  EXPECT_TRUE(holds_body(h.state, body_of(more)));
  // Whole, it needs none.
  const auto whole = only<Release>(h.tell(h.result(moved, 1.0)));
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].bodies, std::vector{body_of(more)});
  EXPECT_EQ(held_bodies(h.state), std::vector({BodyId{Lane::kTrain, moved.lease}}));
  expect_golden("scheduler/S06-turns.txt", h.transcript);
}

TEST(SchedulerTurns, WhoIsLostOrLeavesLeavesThemBehind) {
  for (const bool silent : {true, false}) {
    Begun h;
    Actions all = h.tell(WorkerDown{"w0", 0, silent});
    if (silent) all = h.wait(h.state.config.deadlines.reconnect);
    const Grant again = h.again(all);
    EXPECT_EQ(again.prefix, body_of(h.stored));
    EXPECT_EQ(again.worker, "w1");
    EXPECT_EQ(h.member().prefix->turns, 2);
    EXPECT_EQ(h.state.leases.at({Lane::kTrain, again.lease.member}).turns, 2);
  }
}

// Its prefix may be what each of them is lost of, or take longer to play again than a lease lasts.
TEST(SchedulerTurns, WhoIsLostWhereItBeganBeginsAnew) {
  for (const bool gets_on : {false, true}) {
    Begun h;
    const Grant second = h.again(h.tell(WorkerDown{"w0"}));
    ASSERT_TRUE(second.prefix);
    if (gets_on) h.tell(turns_of(second, 3, 0));
    h.add_rollout("w2", 8);
    h.tell(WorkerDown{"w1", 0, /*silent=*/true});
    const Grant third = h.again(h.wait(h.state.config.deadlines.reconnect));
    EXPECT_EQ(third.lease.attempt, 3);
    EXPECT_EQ(third.prefix.has_value(), gets_on);
  }
}

TEST(SchedulerTurns, AProcessThatComesBackWithoutItsWorkIsToldThem) {
  Begun h;
  // The same process: it has them, and hears where the turns are all the same.
  const Actions told = h.tell(WorkerUp{.worker = "w0", .session = 5, .slots = 8});
  const auto grants = only<Grant>(told);
  ASSERT_EQ(grants.size(), 2u);
  EXPECT_EQ(grants[0].lease, h.first[0].lease);
  EXPECT_EQ(grants[0].prefix, body_of(h.stored));
  EXPECT_FALSE(grants[1].prefix);
}

TEST(SchedulerTurns, WhatAnAnswerEndsBeginsAnew) {
  for (const Outcome outcome : {Outcome::kEnvFailed, Outcome::kLost}) {
    Begun h;
    const Actions failed = h.tell(h.failure(h.first[0], outcome));
    EXPECT_FALSE(h.again(failed).prefix);
    const auto released = only<Release>(failed);
    ASSERT_EQ(released.size(), 1u);
    EXPECT_EQ(released[0].bodies, std::vector{body_of(h.stored)});
    // They are no sample that was discarded.
    EXPECT_EQ(h.policy().attempts.discarded, 0);
  }
}

TEST(SchedulerTurns, AMemberThatFailsForGoodKeepsNothing) {
  Config config = small_config(1, 2);
  config.retries.lost = 0;
  Begun h(config);
  const auto released = only<Release>(h.wait(h.state.config.deadlines.lease));
  ASSERT_FALSE(released.empty());
  EXPECT_EQ(released[0].bodies, std::vector{body_of(h.stored)});
}

TEST(SchedulerTurns, ProgressRenewsTheLease) {
  Begun h;
  const Time whole = h.state.config.deadlines.lease;
  h.wait(whole / 2);
  h.tell(turns_of(h.first[0], 3, 0));
  const Actions late = h.wait(whole / 2);
  // Its sibling has said nothing.
  const auto aborts = only<Abort>(late);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].lease, h.first[1].lease);
  EXPECT_TRUE(h.state.leases.contains({Lane::kTrain, h.first[0].lease.member}));
}

TEST(SchedulerTurns, OnlyThePresentHoldersNewTurnsCount) {
  Begun h;
  const State before = h.state;
  EXPECT_TRUE(h.tell(h.stored).empty());                    // once more
  EXPECT_TRUE(h.tell(turns_of(h.first[0], 1, 0)).empty());  // older
  TurnsStored other = turns_of(h.first[0], 3, 0);
  other.worker = "w1";
  EXPECT_TRUE(h.tell(other).empty());
  TurnsStored attempt = turns_of(h.first[0], 3, 0);
  attempt.lease.attempt = 7;
  EXPECT_TRUE(h.tell(attempt).empty());
  EXPECT_TRUE(h.tell(turns_of(h.first[0], 3, 1)).empty());  // by weights that nobody published
  TurnsStored same = turns_of(h.first[0], 3, 0);
  same.tokens = h.stored.tokens;  // more turns of the same tokens
  EXPECT_TRUE(h.tell(same).empty());
  TurnsStored more = turns_of(h.first[0], 3, 0);
  more.turns = 1000;  // than it has tokens
  EXPECT_TRUE(h.tell(more).empty());
  TurnsStored unsaid = turns_of(h.first[0], 3, -1);
  EXPECT_TRUE(h.tell(unsaid).empty());
  EXPECT_EQ(h.state, before);
  h.tell(Stalled{"w0"});
  const State moved = h.state;
  EXPECT_TRUE(h.tell(turns_of(h.first[0], 4, 0)).empty());  // it no longer holds it
  EXPECT_EQ(h.state, moved);
}

// A step is trained while the members of the next one run on.
Config async_config(OnStale on_stale, int64_t bound) {
  Config config = small_config(1, 2);
  config.mode.ahead = {3, 1};
  config.mode.on_stale = on_stale;
  config.mode.max_staleness = bound;
  return config;
}

// Turns by version 0 of a member whose worker is lost after `steps` steps; the group that it is of
// has the youngest prompt.
struct Aged : Harness {
  Grant grant;
  TurnsStored stored;

  Aged(Config config, int64_t steps) : Harness(std::move(config)) {
    add_rollout("w0", 64);
    const auto first = only<Grant>(publish(*this, 0));
    grant = first.back();
    stored = turns_of(grant, 2, 0);
    tell(stored);
    for (int64_t step = 1; step <= steps; ++step) {
      for (const auto& [work, lease] : state.leases.in_order()) {
        if (work.member.prompt == step - 1) tell(result(grant_of(work, lease), work.member.member));
      }
      tell(wants(step));
      publish(*this, step);
    }
    add_rollout("w1", 64);
  }
  std::optional<BodyId> granted_from() {
    for (const Grant& again : only<Grant>(tell(WorkerDown{"w0"}))) {
      if (again.lease.member == grant.lease.member) return again.prefix;
    }
    ADD_FAILURE() << "not granted again";
    return {};
  }
};

TEST(SchedulerTurns, OldTurnsAreGoneOnFromWhereOldTokensMayBeTrained) {
  Aged h(async_config(OnStale::kMask, 3), 2);
  EXPECT_EQ(h.granted_from(), body_of(h.stored));
  // The group is as old as they are, whatever weights its worker has now.
  EXPECT_EQ(oldest_version(*find_task(h.state, Lane::kTrain, h.grant.lease.member)), 0);
}

TEST(SchedulerTurns, WhereTheBoundIsStrictOnlyNewTurnsAre) {
  Aged waits(async_config(OnStale::kWait, 3), 1);
  EXPECT_FALSE(waits.granted_from());
  EXPECT_EQ(oldest_version(*find_task(waits.state, Lane::kTrain, waits.grant.lease.member)), 1);
  EXPECT_FALSE(holds_body(waits.state, body_of(waits.stored)));
  Aged fresh(async_config(OnStale::kWait, 3), 0);
  EXPECT_EQ(fresh.granted_from(), body_of(fresh.stored));
  Aged drops(async_config(OnStale::kDrop, 3), 2);
  EXPECT_EQ(drops.granted_from(), body_of(drops.stored));
}

TEST(SchedulerTurns, TurnsThatAreLostAreSampledAgain) {
  Begun h;
  const Actions actions = h.tell(BodiesLost{{body_of(h.stored)}});
  EXPECT_TRUE(only<Release>(actions).empty());
  EXPECT_TRUE(only<Abort>(actions).empty());
  const Grant anew = h.again(h.tell(Stalled{"w0"}));
  EXPECT_FALSE(anew.prefix);
  // Lost while a grant that named them was on its way: it begins anew, and may store its first.
  const TurnsStored stored = turns_of(anew, 3, 0);
  h.tell(stored);
  h.add_rollout("w2", 8);
  const Grant third = h.again(h.tell(WorkerDown{"w1"}));
  ASSERT_TRUE(third.prefix);
  h.tell(BodiesLost{{body_of(stored)}});
  h.tell(turns_of(third, 1, 0));
  EXPECT_TRUE(holds_body(h.state, body_of(turns_of(third, 1, 0))));
}

TEST(SchedulerTurns, TheyOutliveAStop) {
  Begun h;
  h.tell(StopRequested{});
  EXPECT_TRUE(holds_body(h.state, body_of(h.stored)));
  h.tell(Restarted{});
  h.tell(WorkerUp{.worker = "w1", .session = 9, .slots = 8});
  h.add_trainer(0);
  const Actions all = h.install_open();
  EXPECT_EQ(h.again(all).prefix, body_of(h.stored));
}

TEST(SchedulerTurns, AForkLeavesNone) {
  Begun h;
  h.add_trainer(0, "b");
  EXPECT_TRUE(held_bodies(h.state).empty());
}

// One worker keeps the version that is evaluated: what another has begun by newer weights does not
// go on there.
TEST(Turns, OlderWeightsDoNotGoOnFromThem) {
  Config config = small_config(1, 2);
  config.eval = {.prompts = 2, .group_size = 1, .interval_steps = 0};
  config.mode = {.ahead = {6, 1}, .max_staleness = 6};
  Harness h(config);
  h.add_rollout("w0", 8);
  h.add_rollout("w1", 8);
  h.install_all(h.tell(published(0)));
  const auto running = h.state.leases.in_order();
  for (const auto& [work, lease] : running) {
    const bool first = work.lane == Lane::kTrain && work.member.prompt == 0;
    if (first || (work.lane == Lane::kEval && lease.worker == "w1"))
      h.tell(h.result(Harness::grant_of(work, lease), work.member.member));
  }
  h.tell(wants(1));
  publish(h, 1);
  h.install_open();
  ASSERT_EQ(h.state.workers.at("w0").version, 0);
  ASSERT_EQ(h.state.workers.at("w1").version, 1);
  const WorkId work = h.state.leases.of("w1").at(0);
  h.tell(TurnsStored{.worker = "w1",
                     .lease = {work.member, h.state.leases.at(work).attempt},
                     .lane = work.lane,
                     .turns = 3,
                     .tokens = 50,
                     .min_version = 1,
                     .max_version = 1});
  const auto is_it = [&](const Grant& grant) { return grant.lease.member == work.member; };
  EXPECT_TRUE(std::ranges::none_of(only<Grant>(h.tell(WorkerDown{"w1", 0})), is_it));
  const auto stages = only<Stage>(h.tell(WorkerUp{.worker = "w2", .slots = 8}));
  ASSERT_EQ(stages.size(), 1u);
  const auto grants = only<Grant>(h.tell_installed(stages[0]));
  const auto grant = std::ranges::find_if(grants, is_it);
  ASSERT_NE(grant, grants.end());
  EXPECT_EQ(grant->worker, "w2");
  ASSERT_TRUE(grant->prefix);
  EXPECT_EQ(grant->prefix->turns, 3);
}

}  // namespace
}  // namespace tailrace::scheduler
