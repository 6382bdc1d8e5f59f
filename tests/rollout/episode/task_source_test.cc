#include "rollout/episode/task_source.h"

#include <set>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(MemberKey, AttemptsShareTheirNumbersAndLaunchesLanesAndMembersDoNot) {
  MemberId member{.policy = 1, .dataset = 2, .epoch = 3, .prompt = 4, .launch = 5, .member = 6};
  uint64_t key = member_key(9, Lane::kTrain, member).value;
  std::set<uint64_t> keys = {key, member_key(10, Lane::kTrain, member).value,
                             member_key(9, Lane::kEval, member).value};
  for (int field = 0; field < 6; ++field) {
    MemberId other = member;
    if (field == 0) ++other.policy;
    if (field == 1) ++other.dataset;
    if (field == 2) ++other.epoch;
    if (field == 3) ++other.prompt;
    if (field == 4) ++other.launch;
    if (field == 5) ++other.member;
    keys.insert(member_key(9, Lane::kTrain, other).value);
  }
  EXPECT_EQ(keys.size(), 9u);
  MemberId later = member;
  ++later.epoch, ++later.launch;
  EXPECT_EQ(member_key(9, Lane::kEval, later).value, member_key(9, Lane::kEval, member).value);
}

TEST(TaskSource, ADatasetBeginsAgainAfterItsLastRowAndHeldOutRowsAreTheirOwn) {
  const TaskSource source(7, {{"a"}, {"b"}}, {{"held"}});
  EXPECT_EQ(source.task(Lane::kTrain, {.prompt = 0}).data, "a");
  EXPECT_EQ(source.task(Lane::kTrain, {.prompt = 3}).data, "b");
  EXPECT_EQ(source.task(Lane::kEval, {.prompt = 3}).data, "held");
}

// Two of one environment play other episodes; the first plays what it would play alone.
TEST(TaskSource, EachDatasetHasSeedsOfItsOwn) {
  const TaskSource source(7);
  std::set<uint64_t> seeds;
  for (int32_t dataset = 0; dataset < 3; ++dataset) {
    for (int64_t prompt = 0; prompt < 100; ++prompt) {
      for (const Lane lane : {Lane::kTrain, Lane::kEval})
        seeds.insert(source.task(lane, {.dataset = dataset, .prompt = prompt}).seed);
    }
  }
  EXPECT_EQ(seeds.size(), 600u);
  EXPECT_EQ(source.task(Lane::kTrain, {.prompt = 5}).seed, sandbox::task_seed(7, false, 5));
}

TEST(TaskSource, EpisodesOfEvaluationNeverShareASeedWithTraining) {
  const TaskSource source(7);
  std::set<uint64_t> seeds;
  for (int64_t prompt = 0; prompt < 100; ++prompt) {
    seeds.insert(source.task(Lane::kTrain, {.prompt = prompt}).seed);
    seeds.insert(source.task(Lane::kEval, {.prompt = prompt}).seed);
  }
  EXPECT_EQ(seeds.size(), 200u);
  // Members of a group play the same task.
  EXPECT_EQ(source.task(Lane::kTrain, {.prompt = 3, .member = 1}).seed,
            source.task(Lane::kTrain, {.prompt = 3, .member = 2}).seed);
}

TEST(SegmentKey, TheFirstSegmentHasTheMembersOwn) {
  const SampleKey member = member_key(1, Lane::kTrain, {.prompt = 3});
  EXPECT_EQ(segment_key(member, 0).value, member.value);
  EXPECT_NE(segment_key(member, 1).value, member.value);
  EXPECT_NE(segment_key(member, 1).value, segment_key(member, 2).value);
}

}  // namespace
}  // namespace tailrace
