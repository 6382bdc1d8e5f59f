// Episodes that go on behind the turns of an attempt before them, with the real engine and the
// environments that come with the binary.

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/text/tokenizer.h"
#include "rollout/episode/episode.h"
#include "rollout/episode/prefix.h"
#include "rollout/episode/task_source.h"
#include "sandbox/builtin/built_in.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/rollout/engine/engine_harness.h"
#include "tests/rollout/episode/played_episode.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kContext = 256;

// Without words that are no action, so that a policy that knows nothing moves now and then.
std::vector<std::string> words_of(const sandbox::EnvironmentInfo& info) {
  std::vector<std::string> words = info.vocabulary;
  if (info.name == "frozen_grid") words.resize(20);
  return words;
}

std::unique_ptr<text::Tokenizer> word_tokenizer(const std::vector<std::string>& words) {
  const TemporaryDirectory folder;
  text::write_word_tokenizer(folder.path(), words);
  return text::load_tokenizer(folder.path());
}

ModelConfig config_for(const text::Tokenizer& tokenizer) {
  ModelConfig config = tiny_config();
  config.vocab_size = tokenizer.vocab_size();
  config.max_positions = kContext;
  return config;
}

struct Played {
  Trajectory trajectory;
  std::string failure;
  std::vector<Trajectory> stored;  // after each of its turns that something followed
};

class ResumeTable {
 public:
  explicit ResumeTable(const std::string& env, sandbox::EnvironmentSettings settings = {})
      : environments_(sandbox::built_in_environments()),
        env_(env),
        settings_(std::move(settings)),
        info_(environments_.make(env_, settings_)->info()),
        tokenizer_(word_tokenizer(words_of(info_))),
        format_(*tokenizer_),
        model_(config_for(*tokenizer_)),
        engine_(model_, {.max_context_tokens = kContext}, tokenizer_.get()) {}

  EpisodeSpec spec(int64_t prompt, int32_t member = 0) const {
    RolloutOptions options;
    options.engine.max_context_tokens = kContext;
    EpisodeSpec spec;
    spec.lease = {.member = {.prompt = prompt, .member = member}};
    spec.task.seed = sandbox::task_seed(1, /*held_out=*/false, prompt);
    spec.key = member_key(/*run_seed=*/5, Lane::kTrain, spec.lease.member);
    spec.limits = episode_limits(options, info_);
    spec.sampling = episode_sampling({}, info_, model_.model.config(), format_);
    spec.numerics_class = "cpu-test";
    return spec;
  }

  Played play(const EpisodeSpec& spec) {
    if (spec.prefix) {
      const auto misfit = find_misfit(*spec.prefix, spec, info_.name, tokenizer_->vocab_size());
      EXPECT_EQ(misfit, std::nullopt) << *misfit;
    }
    auto environment = environments_.make(env_, settings_);
    PlayedEpisode episode(spec, info_.name, format_);
    const SessionId session = next_session_++;
    Played played;
    auto next = episode.observed(environment->reset(episode.task()), 0.5);
    while (next != Episode::Next::kDone) {
      if (next == Episode::Next::kGenerate) {
        if (episode.num_storable() > 0) played.stored.push_back(episode.stored());
        engine_->submit(episode.request(session));
        next = episode.answered(engine_.finish().at(session), 2);
      } else {
        next = episode.stepped(
            next == Episode::Next::kCut ? environment->cut() : environment->step(episode.action()),
            0.25);
      }
    }
    engine_->release(session);
    played.trajectory = std::move(episode.trajectory());
    played.failure = episode.failure();
    return played;
  }

  void install(uint64_t seed, int64_t version) {
    engine_->install(TestModel(model_.model.config(), seed).pack(), version);
  }

 private:
  sandbox::EnvironmentRegistry environments_;
  std::string env_;
  sandbox::EnvironmentSettings settings_;
  sandbox::EnvironmentInfo info_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  chat::PromptFormat format_;
  TestModel model_;
  TestEngine engine_;
  SessionId next_session_ = 1;
};

void expect_same(const Trajectory& a, const Trajectory& b) {
  ASSERT_EQ(a.segments.size(), 1u);
  ASSERT_EQ(b.segments.size(), 1u);
  const Segment &x = a.segments[0], &y = b.segments[0];
  EXPECT_EQ(x.tokens, y.tokens);
  EXPECT_EQ(x.roles, y.roles);
  EXPECT_EQ(x.logprobs, y.logprobs);
  EXPECT_EQ(x.versions, y.versions);
  EXPECT_EQ(x.classes, y.classes);
  EXPECT_EQ(x.turn_begins, y.turn_begins);
  EXPECT_EQ(x.turn_numbers, y.turn_numbers);
  EXPECT_EQ(x.log_masses, y.log_masses);
  EXPECT_EQ(x.kept_counts, y.kept_counts);
  EXPECT_EQ(x.kept_ids, y.kept_ids);
  EXPECT_EQ(a.numerics_classes, b.numerics_classes);
  EXPECT_EQ(a.outcome, b.outcome);
  EXPECT_EQ(a.reward, b.reward);
  EXPECT_EQ(a.verifier, b.verifier);
  EXPECT_EQ(a.evidence, b.evidence);
  EXPECT_EQ(a.turns, b.turns);
  EXPECT_EQ(a.turn_rewards, b.turn_rewards);
  EXPECT_EQ(a.turn_anchors, b.turn_anchors);
  EXPECT_EQ(a.metrics, b.metrics);
  EXPECT_EQ(a.sampling.max_new_tokens, b.sampling.max_new_tokens);
}

// What GiGPO compares: members of a group that stand in one cell have one anchor.
TEST(PlayedEpisodes, HaveTheirRewardsAndStatesTurnByTurn) {
  ResumeTable table("frozen_grid");
  size_t shared = 0;
  for (int64_t prompt = 0; prompt < 8; ++prompt) {
    std::vector<Trajectory> group;
    for (int32_t member = 0; member < 4; ++member)
      group.push_back(table.play(table.spec(prompt, member)).trajectory);
    for (const Trajectory& trajectory : group) {
      ASSERT_EQ(std::ssize(trajectory.turn_rewards), trajectory.turns);
      ASSERT_EQ(std::ssize(trajectory.turn_anchors), trajectory.turns);
      double sum = 0;
      for (const double reward : trajectory.turn_rewards) sum += reward;
      EXPECT_EQ(trajectory.reward, sum);
      EXPECT_EQ(trajectory.turn_anchors[0], group[0].turn_anchors[0]);
      // Behind an action that is none it stands where it stood.
      const auto invalid = trajectory.metrics.at(1).second;
      size_t penalties = 0;
      for (size_t turn = 0; turn + 1 < trajectory.turn_rewards.size(); ++turn) {
        if (trajectory.turn_rewards[turn] == 0) continue;
        ++penalties;
        EXPECT_LT(trajectory.turn_rewards[turn], 0);
        EXPECT_EQ(trajectory.turn_anchors[turn + 1], trajectory.turn_anchors[turn]);
      }
      EXPECT_GE(static_cast<double>(penalties), invalid - 1) << "but for the last one";
      const std::set<uint64_t> cells(trajectory.turn_anchors.begin(),
                                     trajectory.turn_anchors.end());
      EXPECT_LE(cells.size(), trajectory.turn_anchors.size());
      shared += &trajectory != &group[0] && cells.contains(group[0].turn_anchors.back());
      EXPECT_EQ(find_fault(trajectory), std::nullopt);
    }
  }
  EXPECT_GT(shared, 0u);
}

// Stops an episode after each of its turns and lets another attempt go on. Returns how many did.
size_t expect_resumable(ResumeTable& table, const EpisodeSpec& spec) {
  const Played whole = table.play(spec);
  EXPECT_EQ(find_fault(whole.trajectory), std::nullopt);
  for (const Trajectory& prefix : whole.stored) {
    SCOPED_TRACE(fmt::format("{} turns={}", to_string(spec.lease), prefix.turns));
    EXPECT_EQ(find_fault(prefix), std::nullopt);
    EXPECT_EQ(prefix.outcome, Outcome::kAborted);
    EpisodeSpec again = spec;
    again.lease.attempt = 1;
    again.prefix = prefix;
    const Played resumed = table.play(again);
    EXPECT_EQ(resumed.failure, "");
    expect_same(resumed.trajectory, whole.trajectory);
    // And what it stores is what it would have stored.
    const size_t before = static_cast<size_t>(prefix.turns) - 1;
    EXPECT_EQ(resumed.stored.size(), whole.stored.size() - before);
    for (size_t i = 0; i < resumed.stored.size(); ++i)
      expect_same(resumed.stored[i], whole.stored[before + i]);
  }
  return whole.stored.size();
}

TEST(ResumedEpisode, IsTheUndisturbedOneBitForBit) {
  ResumeTable grid("frozen_grid"),
      calculator("calculator", {{"max_turns", "6"}, {"score_by", "number"}});
  size_t resumed = 0, moves = 0;
  for (int64_t prompt = 0; prompt < 24; ++prompt) {
    resumed += expect_resumable(grid, grid.spec(prompt));
    resumed += expect_resumable(calculator, calculator.spec(prompt));
    const Trajectory trajectory = grid.play(grid.spec(prompt)).trajectory;
    moves += static_cast<size_t>(trajectory.turns - trajectory.metrics.at(1).second);
  }
  EXPECT_GT(resumed, 100u);
  EXPECT_GT(moves, 0u) << "where it stands is to be brought back, too";
}

TEST(ResumedEpisode, IsTheUndisturbedOneWhereSamplingIsTruncated) {
  ResumeTable table("frozen_grid");
  for (bool keeps : {false, true}) {
    EpisodeSpec spec = table.spec(3);
    spec.sampling.top_k = 7;
    spec.sampling.top_p = 0.5;
    spec.keeps_sets = keeps;
    EXPECT_GT(expect_resumable(table, spec), 5u);
    const Trajectory trajectory = table.play(spec).trajectory;
    EXPECT_FALSE(trajectory.segments[0].log_masses.empty());
    EXPECT_EQ(trajectory.segments[0].kept_ids.empty(), !keeps);
  }
}

TEST(ResumedEpisode, IsTheUndisturbedOneWhereALimitCutsIt) {
  ResumeTable table("frozen_grid");
  EpisodeSpec turns = table.spec(0), response = table.spec(1);
  turns.limits.max_turns = 4;
  response.limits.max_response_tokens = 40;
  for (const EpisodeSpec& spec : {turns, response}) {
    EXPECT_GT(expect_resumable(table, spec), 1u);
    EXPECT_EQ(table.play(spec).trajectory.outcome, Outcome::kTruncated);
  }
}

// An attempt of a build that did not record them: the environment says them again.
TEST(ResumedEpisode, KnowsItsTurnsThoughItsPrefixDoesNot) {
  ResumeTable table("frozen_grid");
  EpisodeSpec spec = table.spec(2);
  const Played whole = table.play(spec);
  ASSERT_GT(whole.stored.size(), 4u);
  Trajectory prefix = whole.stored[3];
  prefix.turn_rewards.clear();
  prefix.turn_anchors.clear();
  prefix.segments[0].turn_numbers.clear();
  spec.prefix = prefix;
  expect_same(table.play(spec).trajectory, whole.trajectory);
}

TEST(ResumedEpisode, KeepsWhatWasSampledUnderOlderWeightsAndElsewhere) {
  ResumeTable table("frozen_grid");
  const EpisodeSpec spec = table.spec(2);
  const Played old = table.play(spec);
  ASSERT_GT(old.stored.size(), 4u);
  const Trajectory& prefix = old.stored[3];
  table.install(/*seed=*/2, /*version=*/1);
  EpisodeSpec again = spec;
  again.numerics_class = "cpu-other";
  again.prefix = prefix;
  const Played resumed = table.play(again);
  EXPECT_EQ(find_fault(resumed.trajectory), std::nullopt);
  EXPECT_EQ(resumed.trajectory.numerics_classes,
            (std::vector<std::string>{"cpu-test", "cpu-other"}));
  const Segment &a = prefix.segments[0], &b = resumed.trajectory.segments[0];
  for (size_t i = 0; i < b.tokens.size(); ++i) {
    const bool sampled = b.roles[i] == TokenRole::kSampled, is_old = i < a.tokens.size();
    EXPECT_EQ(b.versions[i], !sampled ? -1 : is_old ? 0 : 1);
    EXPECT_EQ(b.classes[i], !sampled ? -1 : is_old ? 0 : 1);
    if (is_old) {
      EXPECT_EQ(b.tokens[i], a.tokens[i]);
      EXPECT_EQ(b.logprobs[i], a.logprobs[i]);
    }
  }
  EXPECT_NE(b.tokens, old.trajectory.segments[0].tokens) << "other weights say other things";
  // Of the first class again, it has its place.
  again.numerics_class = "cpu-test";
  again.prefix = resumed.stored.back();
  EXPECT_EQ(table.play(again).trajectory.numerics_classes, resumed.trajectory.numerics_classes);
}

TEST(ResumedEpisode, AddsTheTimeOfTellingAgainToThatOfTheAttemptBefore) {
  ResumeTable table("frozen_grid");
  EpisodeSpec spec = table.spec(2);
  const Played whole = table.play(spec);
  ASSERT_GT(whole.stored.size(), 4u);
  const Trajectory& prefix = whole.stored[3];
  EXPECT_EQ(prefix.env_seconds, 0.5 + 4 * 0.25);
  EXPECT_EQ(prefix.generate_seconds, 4 * 2.0);
  spec.prefix = prefix;
  const Trajectory resumed = table.play(spec).trajectory;
  EXPECT_EQ(resumed.generate_seconds, whole.trajectory.generate_seconds);
  EXPECT_EQ(resumed.env_seconds, whole.trajectory.env_seconds + 0.5 + 4 * 0.25);
  // Of each turn it keeps the first time alone.
  EXPECT_EQ(prefix.env_waits, (std::vector<float>{0.5f, 0.25f, 0.25f, 0.25f, 0.25f}));
  EXPECT_EQ(resumed.env_waits, whole.trajectory.env_waits);
}

}  // namespace
}  // namespace tailrace
