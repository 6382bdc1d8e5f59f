#include "rollout/episode/prefix.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

constexpr int64_t kVocab = 10;

EpisodeSpec spec_of_episode() {
  EpisodeSpec spec;
  spec.lease = {.member = {.prompt = 4, .member = 1}, .attempt = 2};
  spec.task.seed = 11;
  spec.sampling.top_k = 2;
  spec.sampling.stop_strings = {"\n"};
  spec.sampling.stop_tokens = {9};
  spec.limits = {.max_context_tokens = 9,
                 .max_prompt_tokens = 2,
                 .max_response_tokens = 7,
                 .max_action_tokens = 3,
                 .max_turns = 3};
  spec.keeps_sets = true;
  return spec;
}

// Two prompt tokens, an answer of two with an observation of one, an answer of one with an
// observation of none: as an attempt of spec_of_episode() would have stored it.
Trajectory two_turns() {
  using enum TokenRole;
  Trajectory t;
  t.lease = {.member = {.prompt = 4, .member = 1}, .attempt = 0};
  t.env = "scripted";
  t.seed = 11;
  t.outcome = Outcome::kAborted;
  t.sampling = spec_of_episode().sampling;
  t.sampling.max_new_tokens = 3;
  t.turns = 2;
  t.numerics_classes = {"cpu-test"};
  Segment segment;
  segment.tokens = {1, 2, 3, 4, 5, 6};
  segment.roles = {kPrompt, kPrompt, kSampled, kSampled, kObservation, kSampled};
  segment.logprobs = {0, 0, -1, -1, 0, -1};
  segment.versions = {-1, -1, 0, 0, -1, 0};
  segment.classes = {-1, -1, 0, 0, -1, 0};
  segment.turn_begins = {2, 5};
  segment.log_masses = {0, 0, -0.5, 0, 0, 0};
  segment.kept_counts = {0, 0, 2, 1, 0, 2};
  segment.kept_ids = {3, 8, 4, 6, 7};
  t.segments = {segment};
  return t;
}

std::string misfit_of(const Trajectory& prefix, const EpisodeSpec& spec = spec_of_episode()) {
  // It is asked of trajectories that are sound.
  EXPECT_EQ(find_fault(prefix), std::nullopt);
  return find_misfit(prefix, spec, "scripted", kVocab).value_or("");
}

TEST(Prefix, OfTheSameMemberFits) { EXPECT_EQ(misfit_of(two_turns()), ""); }

TEST(Prefix, ThatIsOfAnotherEpisodeDoesNotFit) {
  const std::vector<std::pair<std::function<void(Trajectory&)>, std::string>> lies = {
      {[](Trajectory& t) { t.lease.member.member = 0; }, "is of policy=0"},
      {[](Trajectory& t) { t.lease.member.launch = 1; }, "is of policy=0"},
      {[](Trajectory& t) { t.lane = Lane::kEval; }, "lane=eval"},
      {[](Trajectory& t) { t.env = "other"; }, "was played in other, not in scripted"},
      {[](Trajectory& t) { t.seed = 12; }, "began with the seed 12, not 11"},
      {[](Trajectory& t) { t.sampling.temperature = 0.5; }, "was sampled with temperature 0.5"},
      {[](Trajectory& t) { t.sampling.top_k = 3; }, "top_k 3"},
      {[](Trajectory& t) { t.sampling.stop_strings = {"."}; }, "ended otherwise"},
      {[](Trajectory& t) { t.sampling.stop_tokens = {}; }, "ended otherwise"},
      {[](Trajectory& t) { t.sampling.max_new_tokens = 4; }, "ended otherwise"}};
  for (const auto& [lie, reason] : lies) {
    Trajectory prefix = two_turns();
    lie(prefix);
    EXPECT_NE(misfit_of(prefix).find(reason), std::string::npos) << misfit_of(prefix);
  }
}

TEST(Prefix, ThatNothingMayFollowDoesNotFit) {
  const std::vector<std::pair<std::function<void(Trajectory&)>, std::string>> lies = {
      {[](Trajectory& t) { t.outcome = Outcome::kFinished; }, "is over: finished"},
      {[](Trajectory& t) { t.reward = 1; }, "is over"},
      {[](Trajectory& t) { t.verifier = "number"; }, "is over"},
      {[](Trajectory& t) { t.segments.push_back(t.segments[0]); }, "has 2 segments"},
      {[](Trajectory& t) { t.segments.clear(); }, "has 0 segments"},
      {[](Trajectory& t) { t.turns = 3; }, "has 2 answers in 3 turns"},
      {[](Trajectory& t) { t.turns = 0, t.segments = {Segment{}}; }, "has 0 answers in 0 turns"},
      {[](Trajectory& t) { t.segments[0].roles[4] = TokenRole::kPrompt; }, "at token 4"},
      {[](Trajectory& t) { t.segments[0].roles[0] = TokenRole::kObservation; }, "at token 0"},
      {[](Trajectory& t) { t.env_seconds = std::numeric_limits<double>::infinity(); }, "for ever"},
      {[](Trajectory& t) { t.numerics_classes.resize(33, "cpu"); }, "33 numerics classes"}};
  for (const auto& [lie, reason] : lies) {
    Trajectory prefix = two_turns();
    lie(prefix);
    EXPECT_NE(misfit_of(prefix).find(reason), std::string::npos) << misfit_of(prefix);
  }
}

TEST(Prefix, BeyondTheLimitsDoesNotFit) {
  const std::vector<std::pair<std::function<void(EpisodeLimits&)>, std::string>> limits = {
      {[](EpisodeLimits& l) { l.max_turns = 2; }, "has 2 turns of 2"},
      {[](EpisodeLimits& l) { l.max_prompt_tokens = 1; }, "leaves no room"},
      {[](EpisodeLimits& l) { l.max_context_tokens = 6; }, "leaves no room"},
      {[](EpisodeLimits& l) { l.max_response_tokens = 4; }, "leaves no room"}};
  for (const auto& [tighten, reason] : limits) {
    EpisodeSpec spec = spec_of_episode();
    tighten(spec.limits);
    EXPECT_NE(misfit_of(two_turns(), spec).find(reason), std::string::npos);
  }
  // One token more, and each of these is enough.
  EpisodeSpec spec = spec_of_episode();
  spec.limits = {.max_context_tokens = 7,
                 .max_prompt_tokens = 2,
                 .max_response_tokens = 5,
                 .max_action_tokens = 3,
                 .max_turns = 3};
  EXPECT_EQ(misfit_of(two_turns(), spec), "");
  // An answer that is longer than it says that answers may be.
  Trajectory prefix = two_turns();
  spec.limits.max_action_tokens = prefix.sampling.max_new_tokens = 1;
  EXPECT_EQ(misfit_of(prefix, spec), "has an answer of 2 tokens");
}

TEST(Prefix, OfTokensThatTheModelDoesNotKnowDoesNotFit) {
  Trajectory prefix = two_turns();
  prefix.segments[0].tokens[4] = kVocab;
  EXPECT_EQ(misfit_of(prefix), "holds token 10; the vocabulary has 10");
}

TEST(Prefix, HasTheExpertsThatTheRunRecordsAndNoOthers) {
  EpisodeSpec spec = spec_of_episode();
  Trajectory with = two_turns();
  with.experts = {.sparse_layers = 1, .chosen = 1, .experts = 4};
  with.segments[0].choices = {0, 1, 2, 3, 0};
  EXPECT_EQ(misfit_of(with, spec).find("has choices of 1 of 4"), 0u);
  spec.experts = with.experts;
  EXPECT_EQ(misfit_of(with, spec), "");
  EXPECT_NE(misfit_of(two_turns(), spec).find("does not say which experts"), std::string::npos);
}

TEST(Prefix, HasTheSetsThatTheRunKeepsAndNoOthers) {
  EpisodeSpec spec = spec_of_episode();
  Trajectory without = two_turns();
  without.segments[0].kept_counts.clear();
  without.segments[0].kept_ids.clear();
  EXPECT_NE(misfit_of(without, spec).find("does not say what its tokens were drawn from"),
            std::string::npos);
  spec.keeps_sets = false;
  EXPECT_EQ(misfit_of(without, spec), "");
  EXPECT_NE(misfit_of(two_turns(), spec).find("which this run does not keep"), std::string::npos);
}

}  // namespace
}  // namespace tailrace
