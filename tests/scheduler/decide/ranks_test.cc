// Ranks that train a policy together (law 8.7).
#include "scheduler/state/expects.h"
#include "scheduler/state/waits.h"
#include "tests/golden/golden.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

Config ranks_config(int32_t ranks) {
  Config config = small_config(/*prompts=*/2, /*members=*/2);
  config.trainer_ranks = ranks;
  return config;
}

Actions add_rank(Harness& h, int32_t rank) {
  return h.tell(WorkerUp{.worker = fmt::format("t{}", rank),
                         .session = ++h.incarnations,
                         .role = Role::kTrainer,
                         .incarnation = h.incarnations,
                         .rank = rank});
}

// Who is told to meet, or gets the batch.
template <class Message>
std::vector<WorkerId> told(const Actions& actions) {
  std::vector<WorkerId> workers;
  for (const Message& message : only<Message>(actions)) workers.push_back(message.worker);
  return workers;
}
using Workers = std::vector<WorkerId>;

uint64_t formation_of(const Actions& actions) { return only<FormRanks>(actions).at(0).formation; }

TEST(Ranks, S28_ABatchWaitsForAllRanksAndGoesToEach) {
  Harness h(ranks_config(3));
  h.add_rollout("w0", 8);
  EXPECT_TRUE(add_rank(h, 2).empty());
  publish(h, 0);
  h.answer_running();
  EXPECT_TRUE(only<HandOver>(h.tell(wants(1))).empty());
  // Not the one that completes them, but all: rank 0 has weights to begin with.
  const Actions met = add_rank(h, 1);
  EXPECT_EQ(told<FormRanks>(met), (Workers{"t", "t1", "t2"}));
  EXPECT_EQ(told<HandOver>(met), (Workers{"t", "t1", "t2"}));
  const auto lists = only<HandOver>(met);
  EXPECT_EQ(lists[0].items, lists[2].items);
  EXPECT_EQ((std::vector{lists[0].copy, lists[1].copy, lists[2].copy}),
            (std::vector{false, true, true}));
  // The next step is theirs without another word.
  publish(h, 1);
  h.answer_running();
  const Actions next = h.tell(wants(2));
  EXPECT_TRUE(only<FormRanks>(next).empty());
  EXPECT_EQ(told<HandOver>(next), (Workers{"t", "t1", "t2"}));
  expect_golden("scheduler/S28.txt", h.transcript);
}

Harness training(int32_t ranks, Actions* met = nullptr) {
  Harness h = started(ranks_config(ranks));
  Actions last;
  for (int32_t rank = 1; rank < ranks; ++rank) last = add_rank(h, rank);
  if (met != nullptr) *met = last;
  h.answer_running();
  EXPECT_EQ(only<HandOver>(h.tell(wants(1))).size(), static_cast<size_t>(ranks));
  return h;
}

TEST(Ranks, S29_TheStepBeginsAgainWhenALostRankIsBack) {
  Actions met;
  Harness h = training(2, &met);
  const uint64_t first = formation_of(met);
  h.tell(WorkerDown{"t1", h.state.workers.at("t1").session, /*silent=*/true});
  // Rank 0 has stopped: nobody says that it trains.
  EXPECT_FALSE(h.policy().handed);
  EXPECT_NE(describe_waits(h.state, h.now).find("rank 1 of the trainer is away"),
            std::string::npos);
  const Actions again = add_rank(h, 1);
  EXPECT_EQ(told<FormRanks>(again), (Workers{"t", "t1"}));
  EXPECT_NE(formation_of(again), first);
  EXPECT_EQ(told<HandOver>(again), (Workers{"t", "t1"}));
  expect_golden("scheduler/S29.txt", h.transcript);
}

// It finished the step before it heard.
TEST(Ranks, AStepThatWasPublishedCounts) {
  Harness h = training(2);
  h.tell(WorkerDown{"t1", h.state.workers.at("t1").session});
  publish(h, 1);
  EXPECT_EQ(h.policy().published, 1);
  h.answer_running();
  EXPECT_TRUE(only<HandOver>(h.tell(wants(2))).empty());
  EXPECT_EQ(told<HandOver>(add_rank(h, 1)), (Workers{"t", "t1"}));
}

// Another session of the same process: what was said in the old one may be lost.
TEST(Ranks, ANewSessionOfAnyRankMeetsAnew) {
  Actions met;
  Harness h = training(2, &met);
  const Worker rank = h.state.workers.at("t1");
  const Actions again = h.tell(WorkerUp{.worker = "t1",
                                        .session = rank.session + 100,
                                        .role = Role::kTrainer,
                                        .incarnation = rank.incarnation,
                                        .rank = 1});
  EXPECT_NE(formation_of(again), formation_of(met));
  EXPECT_EQ(told<HandOver>(again), (Workers{"t", "t1"}));
  // Of rank 0 too; it says first what it holds.
  const Worker trainer = h.state.workers.at("t");
  const Actions up = h.tell(WorkerUp{
      .worker = "t", .session = 77, .role = Role::kTrainer, .incarnation = trainer.incarnation});
  EXPECT_EQ(told<FormRanks>(up), (Workers{"t", "t1"}));
  EXPECT_TRUE(only<HandOver>(up).empty());
  EXPECT_EQ(told<HandOver>(h.tell(wants(1))), (Workers{"t", "t1"}));
}

TEST(Ranks, AnotherProcessOfRankZeroSaysFirstWhatItHolds) {
  Harness h = training(2);
  h.tell(durable(0, 0));
  const Actions up =
      h.tell(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = ++h.incarnations});
  EXPECT_TRUE(only<FormRanks>(up).empty());
  EXPECT_EQ(told<FormRanks>(h.tell(rolled_back(0, "a"))), (Workers{"t", "t1"}));
}

TEST(Ranks, OnlyRankZeroSpeaksForThePolicy) {
  Harness h = training(2);
  const State before = h.state;
  RolledBack greeting = rolled_back(7, "other");
  greeting.worker = "t1";
  EXPECT_FALSE(expects(h.state, greeting));
  EXPECT_TRUE(h.tell(greeting).empty());
  Published version = published(1, "other");
  version.worker = "t1";
  EXPECT_FALSE(expects(h.state, version));
  EXPECT_TRUE(h.tell(version).empty());
  TrainerWants question = wants(1);
  question.worker = "t1";
  EXPECT_FALSE(expects(h.state, question));
  EXPECT_TRUE(h.tell(question).empty());
  EXPECT_TRUE(h.state == before);
}

// Nobody does the work of a rank but itself: one that is given up for good ends the run.
TEST(Ranks, ARankHasNoStandIn) {
  Config config = ranks_config(2);
  config.quarantine.limit = 2;
  Harness h = started(config);
  for (int i = 0; i < 2; ++i) {
    add_rank(h, 1);
    const Actions failed = h.tell(WorkerFailed{"t1", "it computes otherwise"});
    EXPECT_EQ(only<Halt>(failed).size(), i == 1 ? 1u : 0u) << i;
    h.tell(WorkerDown{"t1", h.state.workers.at("t1").session});
    h.wait(config.quarantine.longest);
  }
}

TEST(Ranks, ARankThatTheRunHasNoUseForIsLeftAlone) {
  Harness h = training(2);
  EXPECT_TRUE(add_rank(h, 2).empty());
  EXPECT_TRUE(h.policy().handed);
  h.tell(WorkerDown{"t2", h.state.workers.at("t2").session});
  EXPECT_TRUE(h.policy().handed);
}

// No worker of ours: a rank is one all its life.
TEST(Ranks, WhoSaysThatItIsAnotherRankNowIsAnotherProcess) {
  Harness h = training(3);
  const Worker rank = h.state.workers.at("t1");
  const auto say = [&](int32_t other) {
    return h.tell(WorkerUp{.worker = "t1",
                           .session = ++h.incarnations,
                           .role = Role::kTrainer,
                           .incarnation = rank.incarnation,
                           .rank = other});
  };
  EXPECT_TRUE(told<FormRanks>(say(2)).empty());
  EXPECT_EQ(h.policy().ranks, (std::map<int32_t, WorkerId>{{2, "t1"}}));
  EXPECT_TRUE(told<FormRanks>(say(0)).empty());
  // Of rank 2 the other one is there still.
  EXPECT_EQ(h.policy().ranks, (std::map<int32_t, WorkerId>{{2, "t2"}}));
  EXPECT_EQ(told<FormRanks>(say(1)), (Workers{"t", "t1", "t2"}));
}

TEST(Ranks, OfTwoWithOneRankTheOtherOneIsLeftWhenOneGoes) {
  Harness h = training(2);
  const auto up = [&](const char* name) {
    return h.tell(WorkerUp{.worker = name,
                           .session = ++h.incarnations,
                           .role = Role::kTrainer,
                           .incarnation = h.incarnations,
                           .rank = 1});
  };
  EXPECT_EQ(told<FormRanks>(up("u1")), (Workers{"t", "u1"}));
  const Actions gone = h.tell(WorkerDown{"u1", h.state.workers.at("u1").session});
  EXPECT_EQ(told<FormRanks>(gone), (Workers{"t", "t1"}));
  EXPECT_EQ(told<HandOver>(gone), (Workers{"t", "t1"}));
  // Of two the one that waits may go.
  up("u1");
  EXPECT_TRUE(told<FormRanks>(h.tell(WorkerDown{"t1", h.state.workers.at("t1").session})).empty());
}

// A training on rows before there is a version: rank 0 says that it is at one.
TEST(Ranks, TrainAStageTogetherAndMeetAnewBehindIt) {
  Harness h(ranks_config(2));
  h.add_rollout("w0", 8);
  EXPECT_TRUE(told<FormRanks>(add_rank(h, 1)).empty());
  EXPECT_EQ(describe_waits(h.state, h.now).find("rank 1"), std::string::npos);
  const auto at = [](int64_t number) {
    return TrainingStage{{"t"}, {.number = number, .of = 3, .name = "sft"}};
  };
  const Actions met = h.tell(at(1));
  EXPECT_EQ(told<FormRanks>(met), (Workers{"t", "t1"}));
  EXPECT_TRUE(h.tell(at(2)).empty());
  // Each comes back as another process.
  h.tell(WorkerDown{"t1", h.state.workers.at("t1").session});
  EXPECT_NE(describe_waits(h.state, h.now).find("rank 1 of the trainer is away"),
            std::string::npos);
  const Actions again = add_rank(h, 1);
  EXPECT_EQ(told<FormRanks>(again), (Workers{"t", "t1"}));
  EXPECT_NE(formation_of(again), formation_of(met));
  h.tell(WorkerDown{"t", h.state.workers.at("t").session});
  const Actions back = h.add_trainer(-1);
  EXPECT_EQ(told<FormRanks>(back), (Workers{"t", "t1"}));
  // Behind the last stage nobody trains with what belonged to it.
  const Actions first = publish(h, 0);
  EXPECT_EQ(told<FormRanks>(first), (Workers{"t", "t1"}));
  EXPECT_NE(formation_of(first), formation_of(back));
  h.answer_running();
  EXPECT_EQ(told<HandOver>(h.tell(wants(1))), (Workers{"t", "t1"}));
  EXPECT_TRUE(told<FormRanks>(publish(h, 1)).empty());
}

}  // namespace
}  // namespace tailrace::scheduler
