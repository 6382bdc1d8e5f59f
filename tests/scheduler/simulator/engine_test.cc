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
  engine.drop_cache();
  EXPECT_NEAR(engine.totals().prefilled, 200 + decoded, 1e-6);
  EXPECT_EQ(engine.decoded(1), decoded);
  engine.remove(1);
  EXPECT_EQ(engine.next(), std::nullopt);
}

}  // namespace
}  // namespace tailrace::simulator
