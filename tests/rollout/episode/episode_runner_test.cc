#include "rollout/episode/episode_runner.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/random.h"
#include "rollout/episode/task_source.h"
#include "tests/core/base/test_clock.h"
#include "tests/rollout/engine/engine_harness.h"
#include "tests/rollout/engine/fake_tokenizer.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

// A door that environments wait at until the test opens it.
class Door {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    opened_.wait(lock, [&] { return open_; });
  }
  void open() {
    std::unique_lock lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  int arrivals() {
    std::unique_lock lock(mutex_);
    return waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
  int waiting_ = 0;
};

// Plays `turns` turns; observations depend on the task and on all actions so far.
struct Script {
  int turns = 3;
  int pending = 0;  // how often each step answers `pending` first
  std::function<void()> before_pending = [] {};
  int fails_at = -1;   // turn
  int throws_at = -1;  // turn; 0 is reset
  int observation_letters = 5;
  std::string verifier = "";  // scores the episode when it is cut
  std::function<void(int turn)> before_step = [](int) {};
  std::atomic<int>* closed = nullptr;  // counts close()
};

class ScriptedEnvironment final : public sandbox::Environment {
 public:
  explicit ScriptedEnvironment(Script script, std::atomic<int>* alive = nullptr,
                               std::atomic<bool>* overlapped = nullptr)
      : script_(std::move(script)), alive_(alive), overlapped_(overlapped) {
    info_.name = "scripted";
    if (alive_ != nullptr) ++*alive_;
  }
  ~ScriptedEnvironment() override {
    if (alive_ != nullptr) --*alive_;
  }
  const sandbox::EnvironmentInfo& info() const override { return info_; }
  Result<sandbox::Observation> reset(const sandbox::Task& task) override {
    if (script_.throws_at == 0) throw std::runtime_error("no reset today");
    state_ = task.seed;
    return sandbox::Observation{text()};
  }
  Result<sandbox::StepResult> step(const std::string& action) override {
    if (pending_ < script_.pending) {
      ++pending_;
      script_.before_pending();
      sandbox::StepResult result;
      result.pending = true;
      return result;
    }
    pending_ = 0;
    ++turn_;
    in_call_ = true;
    script_.before_step(turn_);
    in_call_ = false;
    if (turn_ == script_.fails_at) return Failure{"scripted failure"};
    if (turn_ == script_.throws_at) throw std::runtime_error("scripted exception");
    // A single other byte in an action changes all observations that follow.
    for (char c : action) state_ = mix({state_, static_cast<uint64_t>(c)});
    sandbox::StepResult result;
    result.observation.text = text();
    // Whole numbers: sums of them are exact.
    result.reward = static_cast<double>(state_ % 8);
    result.terminated = turn_ == script_.turns;
    return result;
  }
  Result<sandbox::StepResult> cut() override {
    sandbox::StepResult result = sandbox::Environment::cut().value();
    result.verifier = script_.verifier;
    if (!script_.verifier.empty()) result.evidence = "turns " + std::to_string(turn_);
    return result;
  }
  void close() override {
    if (in_call_ && overlapped_ != nullptr) *overlapped_ = true;
    if (script_.closed != nullptr) ++*script_.closed;
  }
  std::string sample_action(Rng&) override { return "A"; }

 private:
  std::string text() const {
    Rng rng(state_);
    std::string letters;
    for (int i = 0; i < script_.observation_letters; ++i)
      letters += static_cast<char>('A' + rng.below(60));
    return letters;
  }

  sandbox::EnvironmentInfo info_;
  Script script_;
  std::atomic<int>* alive_;
  std::atomic<bool>* overlapped_;
  std::atomic<bool> in_call_ = false;
  uint64_t state_ = 0;
  int turn_ = 0, pending_ = 0;
};

// Gives out the one environment that a test has made.
class OneEnvironment final : public sandbox::EnvironmentSource {
 public:
  explicit OneEnvironment(std::unique_ptr<sandbox::Environment> environment)
      : info_(environment->info()), environment_(std::move(environment)) {}
  const sandbox::EnvironmentInfo& info() const override { return info_; }
  std::unique_ptr<sandbox::Environment> open() const override { return std::move(environment_); }

 private:
  const sandbox::EnvironmentInfo info_;
  mutable std::unique_ptr<sandbox::Environment> environment_;
};

template <class... Arguments>
EnvironmentCalls::Source scripted(Arguments&&... arguments) {
  return std::make_shared<OneEnvironment>(
      std::make_unique<ScriptedEnvironment>(std::forward<Arguments>(arguments)...));
}

LeaseId lease_of(int64_t prompt, int32_t member) {
  return {.member = {.prompt = prompt, .member = member}};
}

EpisodeSpec spec_of(int64_t prompt, int32_t member) {
  EpisodeSpec spec;
  spec.lease = lease_of(prompt, member);
  spec.task.seed = static_cast<uint64_t>(prompt);
  spec.key = member_key(/*run_seed=*/5, Lane::kTrain, spec.lease.member);
  // Two letters of the alphabet of 61, so that some actions stop and others are cut at
  // max_action_tokens.
  spec.sampling.stop_strings = {"\n", "C"};
  spec.numerics_class = "cpu-test";
  spec.limits = {.max_context_tokens = 100,
                 .max_prompt_tokens = 50,
                 .max_response_tokens = 90,
                 .max_action_tokens = 6,
                 .max_turns = 8};
  return spec;
}

struct Table {
  explicit Table(EngineSetup setup = {}, int env_threads = 1, int64_t store_turns_tokens = 0)
      : model(tiny_config()),
        tokenizer(letters()),
        format(tokenizer),
        engine(model, setup, &tokenizer),
        driver(*engine),
        runner(driver, format,
               {.env_threads = env_threads,
                .step_timeout = 10s,
                .store_turns_tokens = store_turns_tokens},
               clock) {}

  std::vector<FinishedEpisode> poll(std::chrono::microseconds max_wait = {}) {
    runner.prepare(max_wait);
    driver.step();
    return runner.take();
  }

  std::map<LeaseId, FinishedEpisode> play(int64_t count) {
    std::map<LeaseId, FinishedEpisode> done;
    while (static_cast<int64_t>(done.size()) < count) {
      for (FinishedEpisode& episode : poll(10ms)) {
        LeaseId lease = episode.trajectory.lease;
        done[lease] = std::move(episode);
      }
      for (Trajectory& turns : runner.take_turns()) stored[turns.lease].push_back(std::move(turns));
      // Environments that are pending are asked again by this clock, not by the time that passes.
      clock.advance(1ms);
    }
    return done;
  }

  TestClock clock;
  TestModel model;
  FakeTokenizer tokenizer;
  chat::PromptFormat format;
  TestEngine engine;
  GeneratorDriver driver;
  EpisodeRunner runner;
  std::map<LeaseId, std::vector<Trajectory>> stored;  // while play() ran
};

std::map<LeaseId, FinishedEpisode> play_groups(EngineSetup setup, int env_threads, Script script) {
  Table table(setup, env_threads);
  for (int64_t prompt = 0; prompt < 6; ++prompt) {
    for (int32_t member = 0; member < 4; ++member) {
      table.runner.start(spec_of(prompt, member), scripted(script));
    }
  }
  return table.play(24);
}

TEST(EpisodeRunner, PlaysMultiTurnEpisodesWithTheTrainersLogProbabilities) {
  TestModel model(tiny_config());
  auto done = play_groups({}, 1, {.turns = 4});
  ASSERT_EQ(done.size(), 24u);
  for (const auto& [lease, episode] : done) {
    const Trajectory& trajectory = episode.trajectory;
    EXPECT_EQ(trajectory.outcome, Outcome::kFinished);
    EXPECT_EQ(trajectory.turns, 4);
    EXPECT_EQ(trajectory.env, "scripted");
    EXPECT_FALSE(find_fault(trajectory).has_value());
    const Segment& segment = trajectory.segments.at(0);
    std::vector<float> expected = teacher_forced(model, segment.tokens, 1.0f);
    for (size_t i = 1; i < segment.tokens.size(); ++i) {
      if (segment.roles[i] != TokenRole::kSampled) continue;
      ASSERT_EQ(segment.logprobs[i], expected[i - 1]);
    }
  }
}

TEST(EpisodeRunner, GivesTheSameTrajectoriesHoweverTheyShareTheMachine) {
  auto expected = play_groups({}, 1, {.turns = 4});
  auto expect_same = [&](const std::map<LeaseId, FinishedEpisode>& done) {
    for (const auto& [lease, episode] : done) {
      const Trajectory& a = episode.trajectory;
      const Trajectory& b = expected.at(lease).trajectory;
      ASSERT_EQ(a.segments.at(0).tokens, b.segments.at(0).tokens);
      ASSERT_EQ(a.segments.at(0).logprobs, b.segments.at(0).logprobs);
      ASSERT_EQ(a.reward, b.reward);
    }
  };
  // Other batches and more threads; then preemption by a small cache; then answers that come late.
  expect_same(play_groups({.max_batch_tokens = 9, .max_sequences = 5}, 3, {.turns = 4}));
  expect_same(play_groups({.block_tokens = 8, .kv_blocks = 20}, 2, {.turns = 4}));
  expect_same(play_groups({}, 2, {.turns = 4, .pending = 3}));
}

TEST(EpisodeRunner, AFailingEnvironmentEndsItsEpisodeOnly) {
  Table table;
  table.runner.start(spec_of(0, 0), scripted(Script{}));
  table.runner.start(spec_of(1, 0), scripted(Script{.fails_at = 2}));
  table.runner.start(spec_of(2, 0), scripted(Script{.throws_at = 1}));
  table.runner.start(spec_of(3, 0), scripted(Script{.throws_at = 0}));
  auto done = table.play(4);
  EXPECT_EQ(done[lease_of(0, 0)].trajectory.outcome, Outcome::kFinished);
  for (int64_t prompt : {1, 2, 3}) {
    EXPECT_EQ(done[lease_of(prompt, 0)].trajectory.outcome, Outcome::kEnvFailed);
    EXPECT_FALSE(done[lease_of(prompt, 0)].trajectory.reward.has_value());
  }
  EXPECT_EQ(done[lease_of(1, 0)].failure, "scripted failure");
  EXPECT_EQ(done[lease_of(2, 0)].failure, "the environment threw: scripted exception");
  EXPECT_EQ(done[lease_of(3, 0)].failure, "the environment threw: no reset today");
  EXPECT_TRUE(table.engine->idle());
}

TEST(EpisodeRunner, AbandonsAnEnvironmentThatDoesNotReturn) {
  Door door;
  std::atomic<int> alive = 0;
  std::atomic<bool> overlapped = false;
  {
    Table table;
    Script stuck{.before_step = [&](int turn) {
      if (turn == 2) door.wait();
    }};
    table.runner.start(spec_of(0, 0), scripted(stuck, &alive, &overlapped));
    // The call is under way; the deadline counts from its start.
    while (door.arrivals() == 0) EXPECT_TRUE(table.poll(10ms).empty());
    EXPECT_TRUE(table.poll().empty());
    table.clock.advance(10s);
    std::vector<FinishedEpisode> done = table.poll();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].trajectory.outcome, Outcome::kEnvFailed);
    EXPECT_EQ(done[0].failure, "the environment did not answer within its deadline of 10 s");
    EXPECT_EQ(alive, 1) << "its call still runs";
    // The lost thread was replaced: others go on.
    table.runner.start(spec_of(1, 0), scripted(Script{}, &alive));
    EXPECT_EQ(table.play(1).begin()->second.trajectory.outcome, Outcome::kFinished);
  }
  // The table is gone and has not waited for the thread that does not return.
  EXPECT_GE(alive, 1);
  door.open();
  while (alive > 0) std::this_thread::yield();
  EXPECT_FALSE(overlapped) << "closed while its call was running";
}

TEST(EpisodeRunner, GivesUpAnEnvironmentThatIsPendingForEver) {
  Table table;
  table.runner.start(spec_of(0, 0), scripted(Script{.pending = 1 << 30}));
  std::vector<FinishedEpisode> done;
  while (done.empty()) {
    done = table.poll(1s);
    table.clock.advance(50ms);
  }
  EXPECT_EQ(done[0].trajectory.outcome, Outcome::kEnvFailed);
  EXPECT_EQ(done[0].failure, "the environment was still pending after 10 s");
}

TEST(EpisodeRunner, CountsTheTimeThatAnAnswerWasPending) {
  constexpr int kTurns = 4, kPending = 3;
  for (const auto& [lease, episode] : play_groups({}, 1, {.turns = kTurns, .pending = kPending})) {
    // Asked again after a millisecond or more each time.
    EXPECT_GE(episode.trajectory.env_seconds, 0.999e-3 * kPending * (kTurns - 1))
        << to_string(lease);
  }
}

TEST(EpisodeRunner, TheTimeUntilItHearsThatAnAnswerIsPendingCounts) {
  Table table;
  Script script{.turns = 1, .pending = 1};
  script.before_pending = [&] { table.clock.advance(70ms); };
  table.runner.start(spec_of(0, 0), scripted(script));
  std::vector<FinishedEpisode> done;
  while (done.empty()) {
    done = table.poll(1s);
    table.clock.advance(2ms);
  }
  const std::vector<float>& waits = done[0].trajectory.env_waits;
  ASSERT_EQ(waits.size(), 2u);
  EXPECT_GE(waits[1], 0.07f);
  EXPECT_LT(waits[1], 1.0f);
}

TEST(EpisodeRunner, AnEpisodeCutAtItsTurnsReachesTheVerifierOfItsEnvironment) {
  Table table;
  EpisodeSpec spec = spec_of(0, 0);
  spec.limits.max_turns = 2;
  auto scored = scripted(Script{.turns = 8, .verifier = "number"});
  table.runner.start(spec, std::move(scored));
  spec.lease = lease_of(1, 0);
  table.runner.start(spec, scripted(Script{.turns = 8}));
  auto done = table.play(2);
  const Trajectory& cut = done[lease_of(0, 0)].trajectory;
  EXPECT_EQ(cut.outcome, Outcome::kTruncated);
  EXPECT_EQ(cut.verifier, "number");
  EXPECT_EQ(cut.evidence, "turns 2");
  EXPECT_FALSE(cut.reward.has_value());
  EXPECT_TRUE(done[lease_of(1, 0)].trajectory.reward.has_value());
}

TEST(EpisodeRunner, AHugeObservationTruncatesTheEpisode) {
  Table table;
  EpisodeSpec spec = spec_of(0, 0);
  spec.limits.max_response_tokens = 30;
  table.runner.start(spec, scripted(Script{.observation_letters = 40}));
  auto done = table.play(1);
  EXPECT_EQ(done.begin()->second.trajectory.outcome, Outcome::kTruncated);
  EXPECT_EQ(done.begin()->second.trajectory.turns, 1);
}

TEST(EpisodeRunner, AnAbortedEpisodeKeepsItsTokens) {
  Table table;
  std::atomic<int> alive = 0;
  for (int32_t member = 0; member < 3; ++member) {
    table.runner.start(spec_of(0, member), scripted(Script{.turns = 8}, &alive));
  }
  std::vector<FinishedEpisode> done;
  // In the middle of the episodes, wherever that is.
  while (table.engine->stats().sampled_tokens < 10) EXPECT_TRUE(table.poll(10ms).empty());
  EXPECT_TRUE(table.runner.abort(lease_of(0, 1), Lane::kTrain));
  EXPECT_FALSE(table.runner.abort(lease_of(0, 1), Lane::kTrain));
  EXPECT_FALSE(table.runner.abort(lease_of(0, 0), Lane::kEval));
  done = table.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].trajectory.outcome, Outcome::kAborted);
  EXPECT_GE(done[0].trajectory.num_tokens(), 5);
  EXPECT_EQ(table.runner.num_running(), 2);
  const auto running = table.runner.running();
  ASSERT_EQ(running.size(), 2u);
  for (const BodyId& id : running) EXPECT_TRUE(table.runner.abort(id.lease, id.lane));
  EXPECT_EQ(table.poll().size(), 2u);
  EXPECT_EQ(table.runner.num_running(), 0);
  // Environments are closed on their threads: the runner hands them over in poll().
  while (alive > 0) EXPECT_TRUE(table.poll(1ms).empty());
  EXPECT_TRUE(table.engine->idle());
  EXPECT_EQ(table.engine->num_free_blocks() + table.engine->num_cached_blocks(),
            table.engine->num_blocks());
}

// Also in the middle of a call: behind it, on its thread.
TEST(EpisodeRunner, EveryEnvironmentIsClosedOnce) {
  Table table({}, /*env_threads=*/4);
  Door door;
  std::atomic<int> alive = 0, closed = 0;
  std::atomic<bool> overlapped = false;
  const auto start = [&](int32_t member, Script script) {
    script.closed = &closed;
    table.runner.start(spec_of(0, member), scripted(std::move(script), &alive, &overlapped));
  };
  start(0, {.turns = 2});
  start(1, {.fails_at = 1});
  start(2, {.throws_at = 0});
  table.play(3);
  start(3, {.turns = 8, .before_step = [&](int) { door.wait(); }});
  while (door.arrivals() == 0) EXPECT_TRUE(table.poll(1ms).empty());
  EXPECT_TRUE(table.runner.abort(lease_of(0, 3), Lane::kTrain));
  EXPECT_EQ(table.poll().size(), 1u);
  door.open();
  while (alive > 0) EXPECT_TRUE(table.poll(1ms).empty());
  EXPECT_EQ(closed, 4);
  EXPECT_FALSE(overlapped);
}

// Whole numbers of turns, each further than the one before by the threshold and by half.
TEST(EpisodeRunner, GivesTheTurnsOfAnEpisodeThatHasGrown) {
  constexpr int64_t kThreshold = 12, kPrompt = 5;
  Table table({}, 1, kThreshold);
  for (int32_t member = 0; member < 4; ++member)
    table.runner.start(spec_of(0, member), scripted(Script{.turns = 8}));
  const auto done = table.play(4);
  ASSERT_EQ(table.stored.size(), 4u);
  for (const auto& [lease, stored] : table.stored) {
    const Trajectory& whole = done.at(lease).trajectory;
    int64_t before = 0, together = 0;
    for (const Trajectory& turns : stored) {
      const int64_t tokens = turns.num_tokens();
      EXPECT_GE(tokens - std::max(before, kPrompt), kThreshold);
      EXPECT_GE(2 * (tokens - before), before);
      // Not much later than it could be: a turn is 11 tokens at most.
      EXPECT_LT(tokens, std::max(std::max(before, kPrompt) + kThreshold, before * 3 / 2) + 12);
      const Segment &a = turns.segments.at(0), &b = whole.segments.at(0);
      EXPECT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), b.tokens.begin()));
      EXPECT_EQ(find_fault(turns), std::nullopt);
      before = tokens;
      together += tokens;
    }
    EXPECT_GE(stored.size(), 2u);
    EXPECT_LE(together, 3 * whole.num_tokens());
  }
}

TEST(EpisodeRunner, GivesNoTurnsWhileItRunsWhereTheThresholdIsZero) {
  Table table;
  table.runner.start(spec_of(0, 0), scripted(Script{.turns = 8}));
  table.play(1);
  EXPECT_TRUE(table.stored.empty());
}

// What it leaves behind goes on elsewhere, to the same end.
TEST(EpisodeRunner, GivesAllTurnsWhenItsCallerLeaves) {
  const Script script{.turns = 6, .pending = 1};
  Table table;
  for (int32_t member = 0; member < 4; ++member)
    table.runner.start(spec_of(0, member), scripted(script));
  std::map<LeaseId, Trajectory> left;
  while (left.size() < 4) {
    table.poll(10ms);
    table.clock.advance(1ms);
    for (Trajectory& turns : table.runner.take_turns(/*leaving=*/true)) {
      EXPECT_FALSE(left.contains(turns.lease) && left[turns.lease].turns >= turns.turns)
          << "what was given is not given again";
      left[turns.lease] = std::move(turns);
    }
  }
  const auto whole = play_groups({}, 1, script);
  Table other;
  for (const auto& [lease, turns] : left) {
    EpisodeSpec spec = spec_of(0, lease.member.member);
    spec.prefix = turns;
    other.runner.start(spec, scripted(script));
  }
  EXPECT_TRUE(other.runner.take_turns(/*leaving=*/true).empty()) << "a prefix is stored already";
  const auto resumed = other.play(4);
  for (const auto& [lease, episode] : resumed) {
    const Trajectory &a = episode.trajectory, &b = whole.at(lease).trajectory;
    EXPECT_EQ(a.outcome, Outcome::kFinished) << episode.failure;
    EXPECT_EQ(a.segments.at(0).tokens, b.segments.at(0).tokens);
    EXPECT_EQ(a.segments.at(0).logprobs, b.segments.at(0).logprobs);
    EXPECT_EQ(a.reward, b.reward);
  }
}

}  // namespace
}  // namespace tailrace
