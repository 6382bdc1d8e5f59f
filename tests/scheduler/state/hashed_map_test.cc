#include "scheduler/state/hashed_map.h"

#include <map>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/random.h"
#include "scheduler/state/archive.h"

namespace tailrace::scheduler {
namespace {

using Map = HashedMap<TaskId, int64_t>;
using OrderedMap = std::map<TaskId, int64_t>;

TaskId task(int64_t prompt) { return {.policy = 0, .dataset = 1, .epoch = 2, .prompt = prompt}; }

void expect_same(const Map& map, const OrderedMap& reference, int64_t num_prompts) {
  EXPECT_EQ(OrderedMap(map.begin(), map.end()), reference);
  EXPECT_EQ(map.size(), reference.size());
  EXPECT_TRUE(map.consistent());
  for (int64_t prompt = 0; prompt < num_prompts; ++prompt) {
    const auto expected = reference.find(task(prompt));
    const auto found = map.find(task(prompt));
    EXPECT_EQ(map.contains(task(prompt)), expected != reference.end()) << prompt;
    ASSERT_EQ(found == map.end(), expected == reference.end()) << prompt;
    if (found == map.end()) continue;
    EXPECT_EQ(found->second, expected->second) << prompt;
  }
}

TEST(HashedMap, SaysWhatAMapSays) {
  Rng rng(7);
  Map map;
  OrderedMap reference;
  constexpr int64_t kPrompts = 300;
  for (int64_t change = 0; change < 20000; ++change) {
    const TaskId id = task(rng.below(kPrompts));
    // Full and nearly empty again, so that cells move up behind what is gone.
    if (rng.chance(change / 2000 % 2 == 0 ? 0.7 : 0.3)) {
      map[id] = reference[id] = change;
    } else if (const auto it = map.find(id); it != map.end()) {
      const auto next = map.erase(it);
      const auto expected = reference.erase(reference.find(id));
      ASSERT_EQ(next == map.end(), expected == reference.end());
      if (next == map.end()) continue;
      ASSERT_EQ(next->first, expected->first);
    }
    if (change % 1000 == 0) expect_same(map, reference, kPrompts);
  }
  expect_same(map, reference, kPrompts);
  map.clear();
  expect_same(map, {}, kPrompts);
}

TEST(HashedMap, ACopyHasItsOwnAndAMoveTakesAll) {
  Map map;
  for (int64_t prompt = 0; prompt < 50; ++prompt) map[task(prompt)] = prompt;
  Map copy = map;
  map.erase(map.find(task(3)));
  copy.at(task(4)) = 40;
  EXPECT_EQ(copy.at(task(3)), 3);
  EXPECT_EQ(map.at(task(4)), 4);
  const Map taken = std::move(copy);
  EXPECT_EQ(taken.at(task(4)), 40);
  EXPECT_EQ(taken.size(), 50u);
  map = taken;
  EXPECT_EQ(map, taken);
}

TEST(HashedMap, IsInconsistentWhenAKeyWasChangedBehindIt) {
  Map map;
  for (int64_t prompt = 0; prompt < 50; ++prompt) map[task(prompt)] = prompt;
  EXPECT_TRUE(map.consistent());
  EXPECT_TRUE(Map(map).consistent());
  const_cast<TaskId&>(map.find(task(49))->first).prompt = 100;
  EXPECT_FALSE(map.consistent());
}

TEST(HashedMap, IsArchivedAsAMap) {
  Map map;
  OrderedMap reference;
  for (int64_t prompt : {5, 1, 3}) map[task(prompt)] = reference[task(prompt)] = prompt;
  EXPECT_EQ(to_bytes(map), to_bytes(reference));
  const auto back = from_bytes<Map>(to_bytes(reference));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, map);
}

TEST(HashedMapDeathTest, AtNeedsTheKey) {
  Map map;
  map[task(1)] = 1;
  EXPECT_DEATH((void)map.at(task(2)), "no such key");
}

}  // namespace
}  // namespace tailrace::scheduler
