#include "scheduler/simulator/engine.h"

#include <cmath>

#include <gtest/gtest.h>

namespace tailrace::simulator {
namespace {

Hardware hardware() {
  return {.decode = {.step = 0.01, .sequence = 0.001, .context = 1e-6},
          .prefill_tokens_per_s = 1000};
}

// Until nothing decodes; when each ended.
std::map<Engine::Id, double> ends_of(Engine& engine) {
  std::map<Engine::Id, double> ends;
  while (const auto next = engine.next()) {
    std::vector<Engine::Id> ended;
    engine.advance(*next, ended);
    for (const Engine::Id id : ended) ends[id] = engine.now();
  }
  return ends;
}

// The same, one step after the other.
std::map<Engine::Id, double> ends_step_by_step(const std::map<Engine::Id, std::pair<int, int>>& all,
                                               const DecodeModel& model, double from) {
  std::map<Engine::Id, double> ends;
  double now = from;
  for (int step = 0; ends.size() < all.size(); ++step) {
    double sequences = 0, context = 0;
    for (const auto& [id, lengths] : all) {
      if (step >= lengths.second) continue;
      ++sequences;
      context += lengths.first + step;
    }
    // A step of the closed form grows while it runs, by half a token of each.
    now += model.seconds(sequences, context + sequences / 2);
    for (const auto& [id, lengths] : all)
      if (step + 1 == lengths.second) ends[id] = now;
  }
  return ends;
}

TEST(SimulatedEngine, TheClosedFormIsTheSumOfItsSteps) {
  Engine engine(hardware());
  const std::map<Engine::Id, std::pair<int, int>> all = {
      {1, {100, 50}}, {2, {200, 7}}, {3, {50, 300}}, {4, {10, 50}}, {5, {0, 1}}};
  double prefilled = 0;
  for (const auto& [id, lengths] : all) {
    engine.decode(id, lengths.first, lengths.second);
    prefilled += lengths.first;
  }
  const auto expected = ends_step_by_step(all, hardware().decode, prefilled / 1000);
  const auto ends = ends_of(engine);
  ASSERT_EQ(ends.size(), expected.size());
  for (const auto& [id, at] : expected) EXPECT_NEAR(ends.at(id), at, 1e-6) << id;
  EXPECT_NEAR(engine.totals().tokens, 50 + 7 + 300 + 50 + 1, 1e-3);
}

TEST(SimulatedEngine, HowOftenSomebodyLooksChangesNothing) {
  Engine often(hardware()), seldom(hardware());
  for (Engine::Id id = 0; id < 20; ++id) {
    often.decode(id, 10 * id, 5 + 13 * id % 90);
    seldom.decode(id, 10 * id, 5 + 13 * id % 90);
  }
  std::map<Engine::Id, double> ends;
  for (double now = 0; often.next(); now += 0.0007) {
    std::vector<Engine::Id> ended;
    often.advance(now, ended);
    for (const Engine::Id id : ended) ends[id] = now;
  }
  const auto expected = ends_of(seldom);
  ASSERT_EQ(ends.size(), expected.size());
  for (const auto& [id, at] : expected) EXPECT_NEAR(ends.at(id), at, 0.00071) << id;
}

// A KV cache of 1,000 tokens and three sequences that want 450 each in the end: the youngest
// waits, and its context is computed again.
TEST(SimulatedEngine, AFullCachePreemptsTheYoungestAndComputesItAgain) {
  Hardware small = hardware();
  small.kv_tokens = 1000;
  Engine engine(small);
  for (Engine::Id id = 1; id <= 3; ++id) engine.decode(id, 250, 200);
  const auto ends = ends_of(engine);
  ASSERT_EQ(ends.size(), 3U);
  EXPECT_EQ(engine.totals().preemptions, 1);
  EXPECT_GT(ends.at(3), ends.at(1));
  EXPECT_NEAR(ends.at(1), ends.at(2), 1e-9);
  // 750 tokens of prompts, and the third's prompt with what it had decoded, once more.
  EXPECT_NEAR(engine.totals().prefilled, 750 + 250 + (1000 - 750) / 3.0, 0.01);
  EXPECT_NEAR(engine.totals().tokens, 600, 1e-3);
}

// Two turns: what the first left in the cache is not computed again, unless it had to go.
TEST(SimulatedEngine, WhatATurnLeavesInTheCacheIsThereForTheNextOne) {
  for (const bool full : {false, true}) {
    Hardware small = hardware();
    small.kv_tokens = 200;
    Engine engine(small);
    engine.decode(1, 50, 50);
    ends_of(engine);
    EXPECT_NEAR(engine.totals().prefilled, 50, 1e-9);
    if (full) {
      engine.decode(2, 150, 20);
      ends_of(engine);
      engine.remove(2);
    }
    const double before = engine.totals().prefilled;
    engine.decode(1, 110, 10);
    ends_of(engine);
    EXPECT_NEAR(engine.totals().prefilled - before, full ? 110 : 10, 1e-9);
  }
}

TEST(SimulatedEngine, NewWeightsComputeWhatDecodesAgain) {
  Engine engine(hardware());
  engine.decode(1, 100, 100);
  std::vector<Engine::Id> ended;
  engine.advance(0.1 + 50 * 0.0111 + 0.0061, ended);
  const double decoded = engine.decoded(1);
  EXPECT_GT(decoded, 45);
  const double end = *engine.next();
  engine.drop_cache();
  EXPECT_EQ(engine.decoded(1), decoded);
  EXPECT_NEAR(*engine.next(), end + (100 + decoded) / 1000, 1e-6);
  ends_of(engine);
  EXPECT_NEAR(engine.totals().prefilled, 200 + decoded, 1e-3);
}

// 100 s of prefill are owed. Each switch owes them anew, not once more.
TEST(SimulatedEngine, WhatIsOwedIsNotCountedAgainByASwitch) {
  Engine engine(hardware());
  for (Engine::Id id = 0; id < 10; ++id) engine.decode(id, 10000, 10);
  std::vector<Engine::Id> ended;
  for (int i = 1; i <= 5; ++i) {
    engine.advance(i, ended);
    engine.drop_cache();
    engine.stall(0.1);
  }
  ASSERT_TRUE(ended.empty());
  const double decoding = 10 * hardware().decode.seconds(10, 1e5 + 50);
  for (const auto& [id, at] : ends_of(engine)) EXPECT_NEAR(at, 105 + 0.1 + decoding, 1e-6) << id;
}

TEST(SimulatedEngine, WhatIsRemovedBeforeItsPrefillIsNotPrefilled) {
  for (const bool first : {false, true}) {
    Engine engine(hardware());
    for (Engine::Id id = 0; id < 100; ++id) engine.decode(id, 1000, 8);
    const Engine::Id last = first ? 0 : 99;
    for (Engine::Id id = 0; id < 100; ++id)
      if (id != last) engine.remove(id);
    const auto ends = ends_of(engine);
    ASSERT_EQ(ends.size(), 1U);
    EXPECT_NEAR(ends.at(last), 1 + 8 * hardware().decode.seconds(1, 1004), 1e-6);
    EXPECT_NEAR(engine.totals().prefilled, 1000, 1e-6);
  }
}

// 16 siblings with a prompt of 8,000 tokens: with a prompt of their own each they would be two.
TEST(SimulatedEngine, SiblingsShareThePromptInTheCache) {
  Hardware small = hardware();
  small.kv_tokens = 20000;
  Engine engine(small);
  for (Engine::Id id = 0; id < 16; ++id) engine.decode(id, 8000, 100, {.key = 7, .tokens = 8000});
  EXPECT_EQ(engine.decoding(), 16);
  EXPECT_EQ(ends_of(engine).size(), 16U);
  EXPECT_EQ(engine.totals().preemptions, 0);
  EXPECT_NEAR(engine.totals().prefilled, 8000, 1e-3);
  // A second turn of all; then another prompt, for which what waits must go.
  for (Engine::Id id = 0; id < 16; ++id) engine.decode(id, 8110, 100, {.key = 7, .tokens = 8000});
  EXPECT_EQ(engine.decoding(), 16);
  ends_of(engine);
  EXPECT_NEAR(engine.totals().prefilled, 8000 + 16 * 10, 1e-3);
  engine.decode(99, 19000, 10, {.key = 8, .tokens = 19000});
  EXPECT_EQ(engine.decoding(), 1);
  ends_of(engine);
  engine.remove(99);
  engine.decode(0, 8220, 10, {.key = 7, .tokens = 8000});
  ends_of(engine);
  EXPECT_NEAR(engine.totals().prefilled, 8160 + 19000 + 8220, 1e-3);
}

// The first to come computes the prompt; without it another one does. And new weights compute the
// prompt once.
TEST(SimulatedEngine, APromptIsOwedUntilItsLastHolderHasGone) {
  Engine engine(hardware());
  for (Engine::Id id = 0; id < 4; ++id) engine.decode(id, 1000, 10, {.key = 7, .tokens = 1000});
  for (Engine::Id id = 0; id < 3; ++id) engine.remove(id);
  std::vector<Engine::Id> ended;
  engine.advance(0.5, ended);
  engine.drop_cache();
  const auto ends = ends_of(engine);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_NEAR(ends.at(3), 1.5 + 10 * hardware().decode.seconds(1, 1005), 1e-6);
  engine.remove(3);
  engine.decode(4, 1000, 10, {.key = 7, .tokens = 1000});
  engine.decode(5, 1000, 10, {.key = 7, .tokens = 1000});
  engine.remove(4);
  engine.remove(5);
  const double before = engine.totals().prefilled;
  engine.decode(6, 10, 1);
  EXPECT_NEAR(*engine.next(), engine.now() + 0.01 + hardware().decode.seconds(1, 10.5), 1e-6);
  ends_of(engine);
  EXPECT_NEAR(engine.totals().prefilled - before, 10, 1e-6);
}

// One that waits for room keeps nothing from those that decode.
TEST(SimulatedEngine, OneThatWaitsInLinePreemptsNobody) {
  Hardware small = hardware();
  small.kv_tokens = 1000;
  Engine engine(small);
  engine.decode(1, 500, 300, {.key = 7, .tokens = 500});
  engine.decode(2, 100, 5);
  std::vector<Engine::Id> ended;
  engine.advance(*engine.next(), ended);
  ASSERT_EQ(ended, std::vector<Engine::Id>{2});
  // Its turn is in the cache, and it has no room for the next one until 1 ends.
  engine.decode(2, 700, 5);
  EXPECT_EQ(engine.queued(), 1);
  engine.decode(3, 900, 5, {.key = 7, .tokens = 500});
  const auto ends = ends_of(engine);
  EXPECT_EQ(engine.totals().preemptions, 0);
  EXPECT_LT(ends.at(1), ends.at(2));
}

}  // namespace
}  // namespace tailrace::simulator
