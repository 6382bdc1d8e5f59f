#include "scheduler/state/leases.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/random.h"
#include "scheduler/state/archive.h"

namespace tailrace::scheduler {
namespace {

using LeasesByWork = std::map<WorkId, Lease>;
using DeadlineSet = std::set<std::pair<Time, WorkId>>;

WorkId work(int64_t prompt, int32_t member = 0, Lane lane = Lane::kTrain) {
  return {lane, {.prompt = prompt, .member = member}};
}

Lease lease(Time deadline, const WorkerId& worker = "w0") {
  return {.worker = worker, .attempt = 1, .deadline = deadline};
}

DeadlineSet deadlines_of(const LeasesByWork& leases) {
  DeadlineSet all;
  for (const auto& [id, held] : leases) all.emplace(held.deadline, id);
  return all;
}

TEST(Leases, SayWhatAMapOfThemAndASetOfTheirDeadlinesSay) {
  Rng rng(3);
  Leases leases;
  LeasesByWork reference;
  for (int64_t change = 0; change < 20000; ++change) {
    const WorkId id = work(rng.below(40), static_cast<int32_t>(rng.below(4)),
                           rng.chance(0.3) ? Lane::kEval : Lane::kTrain);
    // Few moments, so that many have the same deadline.
    const Time deadline(rng.below(50));
    const auto held = reference.find(id);
    ASSERT_EQ(leases.contains(id), held != reference.end());
    if (held == reference.end()) {
      const Lease added = lease(deadline, fmt::format("w{}", rng.below(5)));
      EXPECT_EQ(leases.add(id, added), added);
      reference.emplace(id, added);
    } else if (rng.chance(0.3)) {
      leases.renew(id, deadline);
      held->second.deadline = deadline;
    } else if (rng.chance(change / 2000 % 2 == 0 ? 0.3 : 0.9)) {
      EXPECT_EQ(leases.take(id), held->second);
      reference.erase(held);
    } else {
      EXPECT_EQ(leases.at(id), held->second);
    }
    ASSERT_EQ(leases.size(), reference.size());
    ASSERT_TRUE(leases.consistent());
    const WorkerId worker = fmt::format("w{}", rng.below(5));
    std::vector<WorkId> its;
    for (const auto& [member, of] : reference)
      if (of.worker == worker) its.push_back(member);
    ASSERT_EQ(leases.of(worker), its);
    if (reference.empty()) continue;
    // Of all that may be next the first in order: what expires does so in one order.
    const DeadlineSet deadlines = deadlines_of(reference);
    ASSERT_EQ(leases.next_deadline(), deadlines.begin()->first);
    ASSERT_EQ(leases.next(), deadlines.begin()->second);
  }
  EXPECT_EQ(leases.in_order(), reference);
  const Leases copy = leases;
  leases = {};
  EXPECT_TRUE(copy.consistent());
  EXPECT_TRUE(leases.consistent());
}

TEST(Leases, AreFoundInOrder) {
  Leases leases;
  for (const auto& id : {work(3), work(1, 2), work(2), work(1), work(9, 0, Lane::kEval)})
    leases.add(id, lease(Time(5), id.member.prompt == 2 ? "w1" : "w0"));
  EXPECT_EQ(leases.where([](const Lease& held) { return held.worker == "w0"; }),
            (std::vector{work(9, 0, Lane::kEval), work(1), work(1, 2), work(3)}));
  EXPECT_EQ(leases.of("w0"), (std::vector{work(9, 0, Lane::kEval), work(1), work(1, 2), work(3)}));
  EXPECT_EQ(leases.of("w1"), std::vector{work(2)});
  leases.take(work(2));
  EXPECT_TRUE(leases.of("w1").empty());
}

// The format of snapshots: a map of leases and a set of deadlines, whatever was added when.
TEST(Leases, AreArchivedAsAMapAndASet) {
  Leases leases;
  LeasesByWork reference;
  for (int64_t prompt : {5, 1, 3, 2}) {
    leases.add(work(prompt), lease(Time(10 - prompt)));
    if (prompt != 5) reference.emplace(work(prompt), lease(Time(10 - prompt)));
  }
  leases.take(work(5));
  EXPECT_EQ(to_bytes(leases), to_bytes(std::pair(reference, deadlines_of(reference))));
  const auto back = from_bytes<Leases>(to_bytes(leases));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, leases);
  EXPECT_EQ(back->next(), work(3));
  EXPECT_EQ(back->of("w0"), leases.of("w0"));
}

// What a heap or a hash that went wrong would look like.
TEST(Leases, AreInconsistentWhenAMemberAWorkerOrADeadlineWasChangedBehindThem) {
  Leases leases;
  for (int64_t prompt = 0; prompt < 20; ++prompt) leases.add(work(prompt), lease(Time(prompt)));
  leases.take(work(7));
  EXPECT_TRUE(leases.consistent());
  auto& deadline = const_cast<Lease&>(leases.at(work(11))).deadline;
  deadline += Time(1);
  EXPECT_FALSE(leases.consistent());
  deadline -= Time(1);
  EXPECT_TRUE(leases.consistent());
  auto& worker = const_cast<Lease&>(leases.at(work(11))).worker;
  worker = "w1";
  EXPECT_FALSE(leases.consistent());
  worker = "w0";
  EXPECT_TRUE(leases.consistent());
  const_cast<WorkId&>(leases.next()).member.prompt = 100;
  EXPECT_FALSE(leases.consistent());
}

TEST(Leases, AreRefusedWithTheDeadlinesOfOthers) {
  const LeasesByWork reference{{work(1), lease(Time(5))}, {work(2), lease(Time(6))}};
  DeadlineSet deadlines = deadlines_of(reference);
  EXPECT_TRUE(from_bytes<Leases>(to_bytes(std::pair(reference, deadlines))));
  deadlines.erase(deadlines.begin());
  EXPECT_FALSE(from_bytes<Leases>(to_bytes(std::pair(reference, deadlines))));
  deadlines.emplace(Time(7), work(1));
  EXPECT_FALSE(from_bytes<Leases>(to_bytes(std::pair(reference, deadlines))));
}

TEST(LeasesDeathTest, OfAMemberThatHasNone) {
  Leases leases;
  leases.add(work(1), lease(Time(5)));
  EXPECT_DEATH((void)leases.at(work(2)), "prompt=2 .* has no lease");
  EXPECT_DEATH((void)leases.take(work(2)), "prompt=2 .* has no lease");
}

TEST(Leases, ThatWereMovedAwayAreNone) {
  Leases leases;
  leases.add(work(1), lease(Time(5)));
  Leases others = std::move(leases);
  EXPECT_EQ(others.next(), work(1));
  leases = Leases();
  EXPECT_FALSE(leases.contains(work(1)));
  leases.add(work(1), lease(Time(6)));
  EXPECT_EQ(leases.size(), 1u);
}

}  // namespace
}  // namespace tailrace::scheduler
