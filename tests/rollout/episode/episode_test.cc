#include "rollout/episode/episode.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/rollout/engine/fake_tokenizer.h"
#include "tests/rollout/episode/played_episode.h"

namespace tailrace {
namespace {

using Next = Episode::Next;

// "ab" is one token when it is encoded, but a policy may sample it as two.
const FakeTokenizer& pieces() {
  static const FakeTokenizer tokenizer({"a", "b", "ab", "c", "\n", "?"});
  return tokenizer;
}

const chat::PromptFormat& plain() {
  static const chat::PromptFormat format(pieces());
  return format;
}

EpisodeSpec spec_of(EpisodeLimits limits = {}) {
  auto or_else = [](int64_t& value, int64_t other) { value = value > 0 ? value : other; };
  or_else(limits.max_context_tokens, 100);
  or_else(limits.max_prompt_tokens, 99);
  or_else(limits.max_response_tokens, 99);
  or_else(limits.max_action_tokens, 3);
  or_else(limits.max_turns, 5);
  EpisodeSpec spec;
  spec.task.seed = 11;
  spec.limits = limits;
  spec.sampling.stop_strings = {"\n"};
  spec.numerics_class = "cpu-test";
  return spec;
}

Generation sampled(const std::vector<TokenId>& ids, FinishReason reason, int64_t version = 7) {
  Generation generation;
  // By id, so that a log-probability in the wrong place shows.
  for (TokenId id : ids)
    generation.tokens.push_back({id, -0.5f * static_cast<float>(id + 1), version});
  generation.reason = reason;
  return generation;
}

sandbox::StepResult seen(const std::string& text, double reward = 0) {
  sandbox::StepResult result;
  result.observation.text = text;
  result.reward = reward;
  return result;
}

sandbox::StepResult over(double reward) {
  sandbox::StepResult result;
  result.reward = reward;
  result.terminated = true;
  result.metrics = {{"success", 1}};
  return result;
}

sandbox::StepResult cut_off() {
  sandbox::StepResult result;
  result.truncated = true;
  return result;
}

void expect_sound(PlayedEpisode& episode) {
  auto fault = find_fault(episode.trajectory());
  EXPECT_FALSE(fault.has_value()) << *fault;
}

TEST(Episode, KeepsSampledIdsVerbatimAndMarksWhoWroteEachToken) {
  PlayedEpisode episode(spec_of(), "scripted", plain());
  EXPECT_EQ(episode.observed(sandbox::Observation{"cab"}, 1.0), Next::kGenerate);
  GenerateRequest first = episode.request(4);
  EXPECT_EQ(first.new_tokens, (std::vector<TokenId>{3, 2}));
  EXPECT_EQ(first.sampling.max_new_tokens, 3);
  EXPECT_EQ(episode.answered(sampled({0, 1, 4}, FinishReason::kStopString), 2.0), Next::kStep);
  // The ids 0 and 1 stay what they are: encoding "ab" again would give 2.
  EXPECT_EQ(episode.action(), "ab\n");
  EXPECT_EQ(episode.stepped(seen("?c", 0.25), 1.0), Next::kGenerate);
  EXPECT_EQ(episode.request(4).new_tokens, (std::vector<TokenId>{5, 3}));
  EXPECT_EQ(episode.answered(sampled({4}, FinishReason::kStopString, 8), 2.0), Next::kStep);
  EXPECT_EQ(episode.stepped(over(1), 1.0), Next::kDone);

  const Trajectory& trajectory = episode.trajectory();
  const Segment& segment = trajectory.segments.at(0);
  using enum TokenRole;
  EXPECT_EQ(segment.tokens, (std::vector<TokenId>{3, 2, 0, 1, 4, 5, 3, 4}));
  EXPECT_EQ(segment.roles, (std::vector<TokenRole>{kPrompt, kPrompt, kSampled, kSampled, kSampled,
                                                   kObservation, kObservation, kSampled}));
  EXPECT_EQ(segment.logprobs, (std::vector<float>{0, 0, -0.5, -1, -2.5, 0, 0, -2.5}));
  EXPECT_EQ(segment.versions, (std::vector<int64_t>{-1, -1, 7, 7, 7, -1, -1, 8}));
  EXPECT_EQ(segment.classes, (std::vector<int32_t>{-1, -1, 0, 0, 0, -1, -1, 0}));
  EXPECT_EQ(episode.trajectory().numerics_classes, std::vector<std::string>{"cpu-test"});
  EXPECT_EQ(trajectory.outcome, Outcome::kFinished);
  EXPECT_EQ(trajectory.reward, 1.25);
  EXPECT_EQ(trajectory.turns, 2);
  EXPECT_EQ(trajectory.seed, 11u);
  EXPECT_EQ(trajectory.env_seconds, 3.0);
  EXPECT_EQ(trajectory.env_waits, (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(trajectory.generate_seconds, 4.0);
  EXPECT_EQ(trajectory.metrics.at(0).first, "success");
  expect_sound(episode);
}

// An answer that ended its turn itself is not ended twice, and one that was cut is ended for it.
TEST(Episode, WritesTurnsAsTheChatTemplateDoes) {
  const auto tokenizer = text::load_tokenizer(std::filesystem::path(TAILRACE_SOURCE_DIR) /
                                              "tests/data/tokenizers/minimind");
  const chat::PromptFormat format(
      *tokenizer,
      chat::ChatTemplate::parse("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                                "<|im_end|>\n{% endfor %}<|im_start|>assistant{{ '\n' }}",
                                "t"),
      {});
  const TokenId end = tokenizer->id_of("<|im_end|>");
  PlayedEpisode episode(spec_of({.max_action_tokens = 20}), "scripted", format);
  EXPECT_EQ(episode.observed(sandbox::Observation{"Go <|im_end|>"}, 0), Next::kGenerate);
  std::vector<TokenId> answer = tokenizer->encode("left");
  answer.push_back(end);
  episode.answered(sampled(answer, FinishReason::kStopToken), 0);
  EXPECT_EQ(episode.action(), "left");
  EXPECT_EQ(episode.stepped(seen("On"), 0), Next::kGenerate);
  episode.answered(sampled(tokenizer->encode("right, I"), FinishReason::kLength), 0);
  sandbox::StepResult told;
  told.observation.messages = R"([{"role":"tool","content":"On"}])";
  EXPECT_EQ(episode.stepped(told, 0), Next::kGenerate);
  const Segment& segment = episode.trajectory().segments.at(0);
  EXPECT_EQ(tokenizer->decode(segment.tokens, /*keep_special=*/true),
            "<|im_start|>user\nGo <|im_end|><|im_end|>\n<|im_start|>assistant\nleft<|im_end|>\n"
            "<|im_start|>user\nOn<|im_end|>\n<|im_start|>assistant\nright, I<|im_end|>\n"
            "<|im_start|>tool\nOn<|im_end|>\n<|im_start|>assistant\n");
  // Five turns have ended; the environment's words in the first of them are no token.
  EXPECT_EQ(std::ranges::count(segment.tokens, end), 5);
  episode.answered(sampled({end}, FinishReason::kStopToken), 0);
  episode.stepped(over(1), 0);
  expect_sound(episode);
}

// Without a template nobody could write them.
TEST(Episode, FailsOverMessagesWithoutATemplate) {
  PlayedEpisode episode(spec_of(), "scripted", plain());
  sandbox::Observation said;
  said.messages = R"([{"role":"user","content":"a"}])";
  EXPECT_EQ(episode.observed(said, 0), Next::kDone);
  EXPECT_EQ(episode.trajectory().outcome, Outcome::kEnvFailed);
  EXPECT_NE(episode.failure().find("chat template"), std::string::npos) << episode.failure();
}

TEST(Episode, RecordsWhatTruncationKeptWhereItIsAsked) {
  for (bool keeps : {false, true}) {
    EpisodeSpec spec = spec_of();
    spec.sampling.top_k = 2;
    spec.keeps_sets = keeps;
    PlayedEpisode episode(spec, "scripted", plain());
    episode.observed(sandbox::Observation{"a"}, 0);
    EXPECT_EQ(episode.request(1).wants_kept, keeps);
    Generation answer = sampled({3, 1}, FinishReason::kLength);
    answer.tokens[1].log_mass = -0.5f;
    if (keeps) answer.tokens[0].kept = {2, 3}, answer.tokens[1].kept = {1};
    episode.answered(answer, 0);
    episode.stepped(seen("b"), 0);
    // A turn that nothing was cut of.
    answer = sampled({4}, FinishReason::kStopString);
    if (keeps) answer.tokens[0].kept = {0, 4};
    episode.answered(answer, 0);
    episode.stepped(over(1), 0);
    const Segment& segment = episode.trajectory().segments[0];
    EXPECT_EQ(segment.log_masses, (std::vector<float>{0, 0, -0.5f, 0, 0}));
    EXPECT_EQ(segment.kept_counts,
              keeps ? (std::vector<int32_t>{0, 2, 1, 0, 2}) : std::vector<int32_t>());
    EXPECT_EQ(segment.kept_ids,
              keeps ? (std::vector<TokenId>{2, 3, 1, 0, 4}) : std::vector<TokenId>());
    expect_sound(episode);
  }
}

// One of four experts in one layer.
TEST(Episode, RecordsTheExpertsOfItsTokensWhereItIsAsked) {
  for (const bool records : {false, true}) {
    EpisodeSpec spec = spec_of();
    if (records) spec.experts = {.sparse_layers = 1, .chosen = 1, .experts = 4};
    PlayedEpisode episode(spec, "scripted", plain());
    episode.observed(sandbox::Observation{"a"}, 0);
    Generation answer = sampled({3, 1}, FinishReason::kLength);
    answer.choices = {0, 1};
    episode.answered(answer, 0);
    EXPECT_EQ(episode.stepped(seen("b"), 0), Next::kGenerate);
    answer = sampled({4}, FinishReason::kStopString);
    answer.choices = {2, 3};
    episode.answered(answer, 0);
    // The turn that is over: what was computed of its last token is for who goes on.
    EXPECT_EQ(episode.stored().segments[0].choices,
              records ? (std::vector<uint16_t>{0, 1}) : std::vector<uint16_t>());
    Trajectory stored = episode.stored();
    EXPECT_EQ(find_fault(stored), std::nullopt);
    episode.stepped(over(1), 0);
    EXPECT_EQ(episode.trajectory().segments[0].choices,
              records ? (std::vector<uint16_t>{0, 1, 2, 3}) : std::vector<uint16_t>());
    EXPECT_EQ(episode.trajectory().experts, spec.experts);
    expect_sound(episode);

    // Behind them: what another generator tells of tokens that were recorded changes nothing.
    spec.prefix = std::move(stored);
    PlayedEpisode resumed(spec, "scripted", plain());
    EXPECT_EQ(resumed.observed(sandbox::Observation{"a"}, 0), Next::kStep);
    EXPECT_EQ(resumed.stepped(seen("b"), 0), Next::kGenerate);
    answer = sampled({4}, FinishReason::kStopString);
    answer.choices = {3, 3, 1, 0};
    resumed.answered(answer, 0);
    resumed.stepped(over(1), 0);
    EXPECT_EQ(resumed.trajectory().segments[0].choices,
              records ? (std::vector<uint16_t>{0, 1, 1, 0}) : std::vector<uint16_t>());
    expect_sound(resumed);
  }
}

TEST(Episode, SaysNothingOfTruncationThatCutNothing) {
  PlayedEpisode episode(spec_of(), "scripted", plain());
  episode.observed(sandbox::Observation{"a"}, 0);
  episode.answered(sampled({3, 4}, FinishReason::kStopString), 0);
  episode.stepped(over(1), 0);
  EXPECT_TRUE(episode.trajectory().segments[0].log_masses.empty());
  EXPECT_TRUE(episode.trajectory().segments[0].kept_counts.empty());
  expect_sound(episode);
}

TEST(Episode, GivesAnActionThatDoesNotStopToTheEnvironmentAsItIs) {
  PlayedEpisode episode(spec_of(), "scripted", plain());
  episode.observed(sandbox::Observation{"c"}, 0);
  EXPECT_EQ(episode.answered(sampled({0, 0, 0}, FinishReason::kLength), 0), Next::kStep);
  EXPECT_EQ(episode.action(), "aaa");
  EXPECT_EQ(episode.stepped(seen("?"), 0), Next::kGenerate);
}

TEST(Episode, StepsOnceMoreWhenTheResponseIsFullAndIsTruncated) {
  PlayedEpisode episode(spec_of({.max_response_tokens = 5}), "scripted", plain());
  episode.observed(sandbox::Observation{"cc"}, 0);
  episode.answered(sampled({0, 0, 4}, FinishReason::kStopString), 0);
  EXPECT_EQ(episode.stepped(seen("?", 0.5), 0), Next::kGenerate);
  EXPECT_EQ(episode.request(1).sampling.max_new_tokens, 1);
  EXPECT_EQ(episode.answered(sampled({0}, FinishReason::kLength), 0), Next::kStep);
  EXPECT_EQ(episode.stepped(over(1), 0), Next::kDone);
  EXPECT_EQ(episode.trajectory().outcome, Outcome::kTruncated);
  EXPECT_EQ(episode.trajectory().reward, 1.5);
  expect_sound(episode);
}

TEST(Episode, AnAnswerThatStopsWithTheLastTokenIsFinished) {
  PlayedEpisode episode(spec_of({.max_response_tokens = 3}), "scripted", plain());
  episode.observed(sandbox::Observation{"cc"}, 0);
  episode.answered(sampled({0, 0, 4}, FinishReason::kStopString), 0);
  EXPECT_EQ(episode.stepped(over(1), 0), Next::kDone);
  EXPECT_EQ(episode.trajectory().outcome, Outcome::kFinished);
}

TEST(Episode, IsTruncatedWhenTheNextObservationDoesNotFit) {
  PlayedEpisode episode(spec_of({.max_context_tokens = 8}), "scripted", plain());
  episode.observed(sandbox::Observation{"cc"}, 0);
  episode.answered(sampled({0, 0, 4}, FinishReason::kStopString), 0);
  EXPECT_EQ(episode.stepped(seen("???", 0.5), 0), Next::kCut);
  EXPECT_EQ(episode.stepped(cut_off(), 0), Next::kDone);
  EXPECT_EQ(episode.trajectory().outcome, Outcome::kTruncated);
  EXPECT_EQ(episode.trajectory().reward, 0.5);
  EXPECT_EQ(episode.trajectory().num_tokens(), 5);
  expect_sound(episode);
}

TEST(Episode, IsTruncatedAfterItsTurns) {
  PlayedEpisode episode(spec_of({.max_turns = 2}), "scripted", plain());
  episode.observed(sandbox::Observation{"c"}, 0);
  episode.answered(sampled({4}, FinishReason::kStopString), 0);
  EXPECT_EQ(episode.stepped(seen("?", 0.5), 0), Next::kGenerate);
  episode.answered(sampled({4}, FinishReason::kStopString), 0);
  sandbox::StepResult last = seen("?", 0.5);
  last.metrics = {{"success", 0}};
  EXPECT_EQ(episode.stepped(last, 0), Next::kCut);
  EXPECT_EQ(episode.stepped(cut_off(), 0), Next::kDone);
  EXPECT_EQ(episode.trajectory().outcome, Outcome::kTruncated);
  EXPECT_EQ(episode.trajectory().reward, 1.0);
  EXPECT_EQ(episode.trajectory().metrics.size(), 1u) << "a cut without metrics keeps the step's";
}

TEST(Episode, ThatIsCutReachesTheVerifierWithWhatThereIs) {
  PlayedEpisode episode(spec_of({.max_turns = 1}), "scripted", plain());
  episode.observed(sandbox::Observation{"c"}, 0);
  episode.answered(sampled({4}, FinishReason::kStopString), 0);
  EXPECT_EQ(episode.stepped(seen("?"), 0), Next::kCut);
  sandbox::StepResult pending;
  pending.pending = true;
  EXPECT_EQ(episode.stepped(pending, 0), Next::kCut);
  sandbox::StepResult last = cut_off();
  last.verifier = "number";
  last.evidence = "{}";
  EXPECT_EQ(episode.stepped(last, 0), Next::kDone);
  EXPECT_EQ(episode.trajectory().outcome, Outcome::kTruncated);
  EXPECT_FALSE(episode.trajectory().reward.has_value()) << "an unscored episode is no zero";
  EXPECT_EQ(episode.trajectory().verifier, "number");
  EXPECT_EQ(episode.trajectory().evidence, "{}");
}

TEST(Episode, ThatCannotBeCutIsAFailure) {
  PlayedEpisode episode(spec_of({.max_turns = 1}), "scripted", plain());
  episode.observed(sandbox::Observation{"c"}, 0);
  episode.answered(sampled({4}, FinishReason::kStopString), 0);
  EXPECT_EQ(episode.stepped(seen("?"), 0), Next::kCut);
  EXPECT_EQ(episode.stepped(Failure{"no evidence"}, 0), Next::kDone);
  EXPECT_EQ(episode.trajectory().outcome, Outcome::kEnvFailed);
  EXPECT_FALSE(episode.trajectory().reward.has_value());
}

TEST(Episode, OfATaskThatNobodyCanPlaySaysSo) {
  for (bool at_once : {true, false}) {
    PlayedEpisode episode(spec_of(), "scripted", plain());
    const Failure broken{.message = "no way out", .is_final = true};
    if (!at_once) {
      episode.observed(sandbox::Observation{"c"}, 0);
      episode.answered(sampled({4}, FinishReason::kStopString), 0);
    }
    EXPECT_EQ(at_once ? episode.observed(broken, 0) : episode.stepped(broken, 0), Next::kDone);
    EXPECT_EQ(episode.trajectory().outcome, Outcome::kTaskBroken);
    EXPECT_FALSE(episode.trajectory().reward.has_value());
    EXPECT_EQ(episode.failure(), "no way out");
  }
}

TEST(Episode, AsksAgainWhileTheEnvironmentIsPending) {
  PlayedEpisode episode(spec_of(), "scripted", plain());
  episode.observed(sandbox::Observation{"c"}, 0);
  episode.answered(sampled({4}, FinishReason::kStopString), 0);
  sandbox::StepResult pending;
  pending.pending = true;
  EXPECT_EQ(episode.stepped(pending, 0), Next::kStep);
  EXPECT_EQ(episode.action(), "\n");
  EXPECT_EQ(episode.stepped(over(1), 0), Next::kDone);
  EXPECT_EQ(episode.trajectory().turns, 1);
}

TEST(Episode, LeavesTheRewardToTheVerifier) {
  PlayedEpisode episode(spec_of(), "scripted", plain());
  episode.observed(sandbox::Observation{"c"}, 0);
  episode.answered(sampled({4}, FinishReason::kStopString), 0);
  sandbox::StepResult last = over(0);
  last.verifier = "number";
  last.evidence = "{}";
  episode.stepped(last, 0);
  EXPECT_FALSE(episode.trajectory().reward.has_value());
  EXPECT_EQ(episode.trajectory().verifier, "number");
  EXPECT_EQ(episode.trajectory().evidence, "{}");
}

TEST(Episode, AFailureOfTheEnvironmentIsNoReward) {
  PlayedEpisode first(spec_of(), "scripted", plain());
  EXPECT_EQ(first.observed(Failure{"no such row"}, 0), Next::kDone);
  EXPECT_EQ(first.trajectory().outcome, Outcome::kEnvFailed);
  EXPECT_EQ(first.failure(), "no such row");

  PlayedEpisode second(spec_of(), "scripted", plain());
  second.observed(sandbox::Observation{"c"}, 0);
  second.answered(sampled({4}, FinishReason::kStopString), 0);
  EXPECT_EQ(second.stepped(Failure{"disk full"}, 0), Next::kDone);
  EXPECT_EQ(second.trajectory().outcome, Outcome::kEnvFailed);
  EXPECT_FALSE(second.trajectory().reward.has_value());
  EXPECT_EQ(second.trajectory().num_sampled(), 1);
  expect_sound(second);

  PlayedEpisode third(spec_of(), "scripted", plain());
  third.observed(sandbox::Observation{"c"}, 0);
  third.answered(sampled({4}, FinishReason::kStopString), 0);
  // NaN is no reward: one of them would make the group's advantages NaN.
  EXPECT_EQ(third.stepped(over(NAN), 0), Next::kDone);
  EXPECT_EQ(third.failure(), "the reward of turn 1 is nan");
  expect_sound(third);
}

TEST(Episode, RefusesAPromptThatIsTooLongWithBothNumbers) {
  PlayedEpisode episode(spec_of({.max_prompt_tokens = 3}), "scripted", plain());
  EXPECT_EQ(episode.observed(sandbox::Observation{"cccc"}, 0), Next::kDone);
  EXPECT_EQ(episode.trajectory().outcome, Outcome::kEnvFailed);
  EXPECT_NE(episode.failure().find("the prompt has 4 tokens; at most 3 are allowed"),
            std::string::npos);
  PlayedEpisode empty(spec_of(), "scripted", plain());
  EXPECT_EQ(empty.observed(sandbox::Observation{""}, 0), Next::kDone);
  EXPECT_EQ(empty.failure(), "the first observation has no tokens");
}

TEST(Episode, TakesWhatTheOptionsLeaveOpenFromTheEnvironment) {
  RolloutOptions options;
  options.engine.max_context_tokens = 64;
  sandbox::EnvironmentInfo info;
  info.max_turns = 14;
  info.max_action_tokens = 3;
  info.stop_strings = {"\n"};
  EpisodeLimits limits = episode_limits(options, info);
  EXPECT_EQ(limits.max_turns, 14);
  EXPECT_EQ(limits.max_action_tokens, 3);
  EXPECT_EQ(limits.max_prompt_tokens, 63);
  options.max_turns = 2;
  options.max_response_tokens = 10;
  limits = episode_limits(options, info);
  EXPECT_EQ(limits.max_turns, 2);
  EXPECT_EQ(limits.max_response_tokens, 10);
  ModelConfig model;
  model.eos_tokens = {3, 5};
  SamplingParams sampling = episode_sampling(options.sampling, info, model, plain());
  EXPECT_EQ(sampling.stop_strings, info.stop_strings);
  EXPECT_EQ(sampling.stop_tokens, (std::vector<TokenId>{3, 5}));
}

TEST(Episode, TextThatTheTokenizerRefusesFailsTheEpisodeAlone) {
  PlayedEpisode first(spec_of(), "test", plain());
  EXPECT_EQ(first.observed(sandbox::Observation{"a</s>"}, 0), Next::kDone);
  EXPECT_EQ(first.trajectory().outcome, Outcome::kEnvFailed);
  EXPECT_EQ(first.failure(), "the first observation: it holds </s>");

  PlayedEpisode later(spec_of(), "test", plain());
  later.observed(sandbox::Observation{"a"}, 0);
  later.answered(sampled({1}, FinishReason::kStopToken), 0);
  EXPECT_EQ(later.stepped(seen("b</s>"), 0), Next::kDone);
  EXPECT_EQ(later.trajectory().outcome, Outcome::kEnvFailed);
  EXPECT_EQ(later.failure(), "the observation of turn 1: it holds </s>");
}

TEST(Episode, AnEmptyObservationMergesNoTurns) {
  PlayedEpisode episode(spec_of(), "test", plain());
  episode.observed(sandbox::Observation{"ab"}, 0);
  episode.answered(sampled({0, 1}, FinishReason::kLength), 0);
  EXPECT_EQ(episode.stepped(seen(""), 0), Next::kGenerate);
  episode.answered(sampled({3}, FinishReason::kStopToken), 0);
  episode.stepped(over(1), 0);
  const Trajectory& t = episode.trajectory();
  EXPECT_EQ(t.turns, 2);
  EXPECT_EQ(t.segments[0].turn_begins, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(t.segments[0].turn_numbers, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(find_fault(t), std::nullopt);
}

TEST(Episode, KnowsWhatTheEnvironmentGaveForEachTurn) {
  PlayedEpisode episode(spec_of(), "test", plain());
  episode.observed(sandbox::Observation{.text = "ab", .state = "start"}, 0);
  episode.answered(sampled({}, FinishReason::kStopString), 0);
  episode.stepped(seen("c", 0.25), 0);
  sandbox::StepResult pending;
  pending.pending = true;
  episode.answered(sampled({0, 1}, FinishReason::kLength), 0);
  episode.stepped(pending, 0);
  sandbox::StepResult back = seen("?", -0.5);
  back.observation.state = "start";
  episode.stepped(back, 0);
  episode.answered(sampled({3}, FinishReason::kStopToken), 0);
  episode.stepped(over(1), 0);
  const Trajectory& t = episode.trajectory();
  EXPECT_EQ(t.turn_rewards, (std::vector<double>{0.25, -0.5, 1}));
  EXPECT_EQ(t.reward, 0.75);
  EXPECT_EQ(t.turn_anchors,
            (std::vector<uint64_t>{anchor_of("start"), anchor_of("c"), anchor_of("start")}));
  // An answer without a token is a turn, too.
  EXPECT_EQ(t.segments[0].turn_numbers, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(find_fault(t), std::nullopt);
}

TEST(Episode, AVerdictIsOfTheTrajectoryAlone) {
  PlayedEpisode episode(spec_of(), "test", plain());
  episode.observed(sandbox::Observation{"ab"}, 0);
  episode.answered(sampled({0}, FinishReason::kLength), 0);
  episode.stepped(seen("c", 0.25), 0);
  episode.answered(sampled({1}, FinishReason::kLength), 0);
  sandbox::StepResult end = over(1);
  end.verifier = "number";
  episode.stepped(end, 0);
  EXPECT_FALSE(episode.trajectory().reward.has_value());
  EXPECT_EQ(episode.trajectory().turn_rewards, (std::vector<double>{0, 0}));
}

// Two turns, about to generate the third.
PlayedEpisode after_two_turns(const std::string& second_observation) {
  PlayedEpisode episode(spec_of(), "scripted", plain());
  episode.observed(sandbox::Observation{"cab"}, 0);
  episode.request(1);
  episode.answered(sampled({0, 1}, FinishReason::kLength), 0);
  episode.stepped(seen("?c", 0.25), 0);
  episode.request(1);
  episode.answered(sampled({4}, FinishReason::kStopString), 0);
  EXPECT_EQ(episode.stepped(seen(second_observation, 0.5), 0), Next::kGenerate);
  return episode;
}

TEST(Episode, StoresTheTurnsThatAreOver) {
  PlayedEpisode young(spec_of(), "scripted", plain());
  young.observed(sandbox::Observation{"cab"}, 0);
  EXPECT_EQ(young.num_storable(), 0);
  young.answered(sampled({4}, FinishReason::kStopString), 0);
  EXPECT_EQ(young.num_storable(), 0) << "what the environment says to it is not known";
  for (const std::string observation : {"", "?"}) {
    PlayedEpisode episode = after_two_turns(observation);
    const Trajectory stored = episode.stored();
    EXPECT_EQ(stored.num_tokens(), episode.num_storable());
    EXPECT_EQ(stored.turns, 2);
    EXPECT_EQ(stored.turn_rewards, (std::vector<double>{0.25, 0.5}));
    EXPECT_EQ(stored.turn_anchors, (std::vector<uint64_t>{anchor_of("cab"), anchor_of("?c")}));
    EXPECT_EQ(stored.outcome, Outcome::kAborted);
    EXPECT_FALSE(stored.reward.has_value());
    EXPECT_EQ(find_fault(stored), std::nullopt);
    // Whatever the third turn comes to, until something follows it.
    episode.answered(sampled({3, 3, 3}, FinishReason::kLength), 0);
    const Trajectory later = episode.stored();
    EXPECT_EQ(later.segments[0].tokens, stored.segments[0].tokens);
    EXPECT_EQ(later.segments[0].turn_begins, stored.segments[0].turn_begins);
    EXPECT_EQ(later.turns, 2);
    EXPECT_EQ(find_fault(later), std::nullopt);
    episode.stepped(seen("c"), 0);
    EXPECT_EQ(episode.stored().turns, 3);
  }
}

TEST(Episode, GoesOnBehindItsPrefixWithoutSamplingItAgain) {
  for (const std::string observation : {"", "?"}) {
    EpisodeSpec spec = spec_of();
    spec.prefix = after_two_turns(observation).stored();
    const Segment recorded = spec.prefix->segments[0];
    PlayedEpisode episode(spec, "scripted", plain());
    EXPECT_EQ(episode.observed(sandbox::Observation{"cab"}, 0), Next::kStep);
    EXPECT_EQ(episode.action(), "ab");
    sandbox::StepResult pending;
    pending.pending = true;
    EXPECT_EQ(episode.stepped(pending, 0), Next::kStep);
    EXPECT_EQ(episode.action(), "ab");
    EXPECT_EQ(episode.stepped(seen("?c", 0.25), 0), Next::kStep);
    EXPECT_EQ(episode.action(), "\n");
    EXPECT_EQ(episode.stepped(seen(observation, 0.5), 0), Next::kGenerate);
    // All of it: the generator has not seen the session.
    EXPECT_EQ(episode.request(1).new_tokens, recorded.tokens);
    EXPECT_EQ(episode.stored().segments[0].tokens, recorded.tokens);
    episode.answered(sampled({4}, FinishReason::kStopString, 9), 0);
    EXPECT_EQ(episode.stepped(over(1), 0), Next::kDone);
    const Trajectory& trajectory = episode.trajectory();
    EXPECT_EQ(trajectory.turns, 3);
    EXPECT_EQ(trajectory.reward, 1.75);
    EXPECT_EQ(trajectory.turn_rewards, (std::vector<double>{0.25, 0.5, 1}));
    EXPECT_EQ(trajectory.turn_anchors,
              (std::vector<uint64_t>{anchor_of("cab"), anchor_of("?c"), anchor_of(observation)}));
    EXPECT_EQ(trajectory.outcome, Outcome::kFinished);
    const Segment& segment = trajectory.segments[0];
    // The ids 0 and 1 stay what they are, here as well.
    EXPECT_TRUE(std::ranges::equal(recorded.tokens,
                                   std::span(segment.tokens).first(recorded.tokens.size())));
    EXPECT_TRUE(std::ranges::equal(recorded.logprobs,
                                   std::span(segment.logprobs).first(recorded.tokens.size())));
    EXPECT_EQ(segment.turn_begins.size(), 3u);
    EXPECT_EQ(segment.versions.back(), 9);
    expect_sound(episode);
  }
}

TEST(Episode, AnEnvironmentThatDoesNotRepeatItselfFails) {
  EpisodeSpec spec = spec_of();
  spec.prefix = after_two_turns("?").stored();
  const auto expect_failed = [](PlayedEpisode& episode, const std::string& reason) {
    EXPECT_EQ(episode.failure(), "the environment did not repeat itself: " + reason +
                                     " of the 2 that an attempt before had played");
    EXPECT_EQ(episode.trajectory().outcome, Outcome::kEnvFailed);
    EXPECT_FALSE(episode.trajectory().reward.has_value());
    expect_sound(episode);
  };
  PlayedEpisode other_prompt(spec, "scripted", plain());
  EXPECT_EQ(other_prompt.observed(sandbox::Observation{"caba"}, 0), Next::kDone);
  expect_failed(other_prompt, "another prompt in turn 0");

  PlayedEpisode shorter(spec, "scripted", plain());
  shorter.observed(sandbox::Observation{"cab"}, 0);
  EXPECT_EQ(shorter.stepped(seen("?"), 0), Next::kDone);
  expect_failed(shorter, "another observation in turn 1");

  PlayedEpisode longer(spec, "scripted", plain());
  longer.observed(sandbox::Observation{"cab"}, 0);
  longer.stepped(seen("?c"), 0);
  EXPECT_EQ(longer.stepped(seen("?c"), 0), Next::kDone);
  expect_failed(longer, "another observation in turn 2");

  for (bool terminated : {false, true}) {
    PlayedEpisode ended(spec, "scripted", plain());
    ended.observed(sandbox::Observation{"cab"}, 0);
    ended.stepped(seen("?c"), 0);
    EXPECT_EQ(ended.stepped(terminated ? over(1) : cut_off(), 0), Next::kDone);
    expect_failed(ended, "its end in turn 2");
  }
  // One that says why keeps its word.
  PlayedEpisode failed(spec, "scripted", plain());
  failed.observed(sandbox::Observation{"cab"}, 0);
  EXPECT_EQ(failed.stepped(Failure{"disk full"}, 0), Next::kDone);
  EXPECT_EQ(failed.failure(), "disk full");
  expect_sound(failed);
}

}  // namespace
}  // namespace tailrace
