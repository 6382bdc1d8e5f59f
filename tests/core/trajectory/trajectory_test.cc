#include "core/trajectory/trajectory.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

// A conversation of six tokens, then a rewritten history that continues four of them.
Trajectory two_segments() {
  Trajectory trajectory;
  trajectory.numerics_classes = {"cpu-a", "cpu-b"};
  trajectory.lease = {.member = {.epoch = 1, .prompt = 7, .member = 3}, .attempt = 2};
  trajectory.segments.push_back(
      {.tokens = {1, 5, 6, 9, 8, 2},
       .roles = {TokenRole::kPrompt, TokenRole::kPrompt, TokenRole::kSampled, TokenRole::kSampled,
                 TokenRole::kObservation, TokenRole::kSampled},
       .logprobs = {0, 0, -0.5f, -1.5f, 0, -0.25f},
       .versions = {-1, -1, 4, 4, -1, 5},
       .classes = {-1, -1, 0, 0, -1, 1},
       .turn_begins = {2, 5},
       .turn_numbers = {0, 1}});
  trajectory.segments.push_back({.parent = 0,
                                 .parent_tokens = 4,
                                 .tokens = {3, 2},
                                 .roles = {TokenRole::kObservation, TokenRole::kSampled},
                                 .logprobs = {0, -2},
                                 .versions = {-1, 6},
                                 .classes = {-1, 1},
                                 .turn_begins = {1},
                                 .turn_numbers = {2}});
  trajectory.turns = 3;
  trajectory.turn_rewards = {0.25, 0, 0.75};
  trajectory.turn_anchors = {anchor_of("a"), 0, anchor_of("a")};
  trajectory.reward = 1.0;
  return trajectory;
}

TEST(Trajectory, CountsTokensAndVersionsOverAllSegments) {
  const Trajectory trajectory = two_segments();
  EXPECT_EQ(trajectory.num_tokens(), 8);
  EXPECT_EQ(trajectory.num_sampled(), 4);
  EXPECT_EQ(trajectory.min_version(), 4);
  EXPECT_EQ(trajectory.max_version(), 6);
}

TEST(Trajectory, HasNoVersionBeforeAnythingWasSampled) {
  Trajectory trajectory;
  EXPECT_EQ(trajectory.num_tokens(), 0);
  EXPECT_EQ(trajectory.min_version(), -1);
  EXPECT_EQ(trajectory.max_version(), -1);
  EXPECT_EQ(find_fault(trajectory), std::nullopt);
}

TEST(Trajectory, AcceptsATreeOfSegments) { EXPECT_EQ(find_fault(two_segments()), std::nullopt); }

TEST(Trajectory, AContextIsTheTokensOfASegmentWithAllThatItContinues) {
  const Trajectory trajectory = two_segments();
  EXPECT_EQ(context_of(trajectory.segments, 0), (std::vector<TokenId>{1, 5, 6, 9, 8, 2}));
  EXPECT_EQ(context_of(trajectory.segments, 1), (std::vector<TokenId>{1, 5, 6, 9, 3, 2}));
}

TEST(Trajectory, ScoresBeginAtZeroAndEndBehindWhatWasSampledLast) {
  Trajectory trajectory = two_segments();
  trajectory.segments[1].tokens.push_back(7);
  trajectory.segments[1].roles.push_back(TokenRole::kObservation);
  trajectory.segments[1].teacher_top_ids = {4};
  EXPECT_EQ(begin_scores(trajectory.segments, 1), (std::vector<TokenId>{1, 5, 6, 9, 3, 2}));
  EXPECT_EQ(trajectory.segments[1].teacher_logprobs, (std::vector<float>(3, 0.0f)));
  EXPECT_TRUE(trajectory.segments[1].teacher_top_ids.empty());
  std::ranges::fill(trajectory.segments[0].roles, TokenRole::kPrompt);
  EXPECT_TRUE(begin_scores(trajectory.segments, 0).empty());
}

TEST(Trajectory, KnowsTheAnswerOfEachTokenThatWasSampled) {
  const Trajectory trajectory = two_segments();
  const auto answers = [](const Segment& segment) {
    return answers_of_tokens(segment.roles, segment.turn_begins);
  };
  EXPECT_EQ(answers(trajectory.segments[0]), (std::vector<int32_t>{-1, -1, 0, 0, -1, 1}));
  EXPECT_EQ(answers(trajectory.segments[1]), (std::vector<int32_t>{-1, 0}));
  // Two answers that touch are two turns.
  Segment touching = trajectory.segments[0];
  touching.turn_begins = {2, 3, 5};
  EXPECT_EQ(answers(touching), (std::vector<int32_t>{-1, -1, 0, 1, -1, 2}));
  EXPECT_EQ(answers({}), std::vector<int32_t>{});
}

TEST(Trajectory, OfAnOlderBuildDoesNotKnowItsTurns) {
  Trajectory trajectory = two_segments();
  for (Segment& segment : trajectory.segments) segment.turn_numbers.clear();
  trajectory.turn_rewards.clear();
  trajectory.turn_anchors.clear();
  EXPECT_EQ(find_fault(trajectory), std::nullopt);
}

TEST(Trajectory, NamesEachKindOfFault) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    const char* message;  // a part of what find_fault says
    std::function<void(Trajectory&)> damage;
  };
  const Case cases[] = {
      {"turns do not begin where its roles say, at token 2",
       [](Trajectory& t) { t.segments[0].turn_begins = {5}; }},
      {"turns do not begin where its roles say, at token 1",
       [](Trajectory& t) {
         t.segments[0].turn_begins = {1, 2, 5};
       }},
      {"turn 2 begins at token 5",
       [](Trajectory& t) {
         t.segments[0].turn_begins = {2, 5, 5};
       }},
      {"turn 2 begins at token 9",
       [](Trajectory& t) {
         t.segments[0].turn_begins = {2, 5, 9};
       }},
      {"turns do not begin",
       [](Trajectory& t) {
         t.segments[0].turn_begins = {-1, 2, 5};
       }},
      {"negative part", [](Trajectory& t) { t.lease.member.prompt = -1; }},
      {"negative part", [](Trajectory& t) { t.lease.attempt = -1; }},
      {"lane 9", [](Trajectory& t) { t.lane = static_cast<Lane>(9); }},
      {"outcome 8", [](Trajectory& t) { t.outcome = static_cast<Outcome>(8); }},
      {"reward inf", [](Trajectory& t) { t.reward = std::numeric_limits<double>::infinity(); }},
      {"-1 turns", [](Trajectory& t) { t.turns = -1; }},
      {"in the environment", [&](Trajectory& t) { t.env_seconds = nan; }},
      {"9 waits for the environment in 3 turns", [](Trajectory& t) { t.env_waits.resize(9); }},
      {"wait 1 for the environment took -1 s",
       [](Trajectory& t) {
         t.turns = 1;
         t.env_waits = {0, -1};
       }},
      {"wait 0 for the environment took nan s",
       [&](Trajectory& t) { t.env_waits = {static_cast<float>(nan)}; }},
      {"metric 'success'",
       [&](Trajectory& t) {
         t.metrics = {{"success", nan}};
       }},
      {"temperature", [&](Trajectory& t) { t.sampling.temperature = nan; }},
      {"top_p", [](Trajectory& t) { t.sampling.top_p = 0; }},
      {"min_p", [](Trajectory& t) { t.sampling.min_p = 2; }},
      {"segment 1: parent 1", [](Trajectory& t) { t.segments[1].parent = 1; }},
      {"segment 0: parent -2", [](Trajectory& t) { t.segments[0].parent = -2; }},
      {"segment 1: it continues 7 tokens of a parent context of 6",
       [](Trajectory& t) { t.segments[1].parent_tokens = 7; }},
      {"segment 0: it continues 1 tokens of a parent context of 0",
       [](Trajectory& t) { t.segments[0].parent_tokens = 1; }},
      {"5 roles", [](Trajectory& t) { t.segments[0].roles.pop_back(); }},
      {"7 log-probabilities", [](Trajectory& t) { t.segments[0].logprobs.push_back(0); }},
      {"5 versions", [](Trajectory& t) { t.segments[0].versions.pop_back(); }},
      {"token 1 has id -3", [](Trajectory& t) { t.segments[0].tokens[1] = -3; }},
      {"token 0 has role 3",
       [](Trajectory& t) { t.segments[1].roles[0] = static_cast<TokenRole>(3); }},
      {"log-probability nan", [&](Trajectory& t) { t.segments[0].logprobs[2] = nan; }},
      {"sampled by version -1", [](Trajectory& t) { t.segments[0].versions[2] = -1; }},
      {"was not sampled", [](Trajectory& t) { t.segments[0].logprobs[0] = -1; }},
      {"was not sampled", [](Trajectory& t) { t.segments[0].versions[4] = 3; }},
      {"7 numerics classes", [](Trajectory& t) { t.segments[0].classes.push_back(0); }},
      {"numerics class 2 of 2", [](Trajectory& t) { t.segments[0].classes[3] = 2; }},
      {"numerics class -1 of 2", [](Trajectory& t) { t.segments[0].classes[3] = -1; }},
      {"was not sampled", [](Trajectory& t) { t.segments[0].classes[4] = 0; }},
      {"segment 0: 2 answers but the numbers of 1 turns",
       [](Trajectory& t) { t.segments[0].turn_numbers.pop_back(); }},
      {"segment 0: the numbers of its turns do not ascend",
       [](Trajectory& t) {
         t.segments[0].turn_numbers = {1, 0};
       }},
      {"do not ascend from 0 to below 3",
       [](Trajectory& t) { t.segments[0].turn_numbers[0] = -1; }},
      {"do not ascend from 0 to below 3", [](Trajectory& t) { t.segments[1].turn_numbers[0] = 3; }},
      {"segment 1: turn 1 is answered in two segments",
       [](Trajectory& t) { t.segments[1].turn_numbers[0] = 1; }},
      {"2 rewards of 3 turns", [](Trajectory& t) { t.turn_rewards.pop_back(); }},
      {"4 anchors of 3 turns", [](Trajectory& t) { t.turn_anchors.push_back(7); }},
      {"turn 1 has the reward nan", [&](Trajectory& t) { t.turn_rewards[1] = nan; }},
      {"6 tokens but 1 scores of a teacher",
       [](Trajectory& t) { t.segments[0].teacher_logprobs = {0}; }},
      {"a teacher gives token 0 the log-probability -1",
       [](Trajectory& t) {
         t.segments[1].teacher_logprobs = {-1, -1};
       }},
      {"a teacher gives token 1 the log-probability nan",
       [&](Trajectory& t) {
         t.segments[1].teacher_logprobs = {0, static_cast<float>(nan)};
       }},
      {"1 likeliest tokens of a teacher for 3 sampled tokens",
       [](Trajectory& t) {
         t.segments[0].teacher_logprobs = {0, 0, -1, -1, 0, -1};
         t.segments[0].teacher_top_ids = {4};
         t.segments[0].teacher_top_logprobs = {-1};
       }},
      {"a teacher gives id 4 the log-probability 1",
       [](Trajectory& t) {
         t.segments[1].teacher_logprobs = {0, -1};
         t.segments[1].teacher_top_ids = {4};
         t.segments[1].teacher_top_logprobs = {1};
       }},
      {"class without a name", [](Trajectory& t) { t.numerics_classes[1] = ""; }},
  };
  for (const Case& c : cases) {
    Trajectory trajectory = two_segments();
    c.damage(trajectory);
    const auto fault = find_fault(trajectory);
    ASSERT_TRUE(fault.has_value()) << c.message;
    EXPECT_NE(fault->find(c.message), std::string::npos) << *fault;
  }
}

// Of two_segments(), as truncated sampling would have recorded it.
Trajectory truncated() {
  Trajectory trajectory = two_segments();
  trajectory.sampling.top_p = 0.5;
  Segment& first = trajectory.segments[0];
  first.log_masses = {0, 0, -0.5f, 0, 0, -0.25f};
  first.kept_counts = {0, 0, 2, 1, 0, 3};
  first.kept_ids = {3, 6, 9, 0, 2, 7};
  Segment& second = trajectory.segments[1];
  second.kept_counts = {0, 1};
  second.kept_ids = {2};
  return trajectory;
}

TEST(Trajectory, SaysWhatTruncationKept) {
  EXPECT_EQ(find_fault(truncated()), std::nullopt);
  struct Case {
    const char* message;
    std::function<void(Trajectory&)> damage;
  };
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Case cases[] = {
      {"cuts nothing", [](Trajectory& t) { t.sampling.top_p = 1; }},
      {"cuts nothing", [](Trajectory& t) { t.sampling.temperature = 0; }},
      {"7 masses", [](Trajectory& t) { t.segments[0].log_masses.push_back(0); }},
      {"1 sets", [](Trajectory& t) { t.segments[1].kept_counts.pop_back(); }},
      {"token 2 has a kept share of logarithm 0.1",
       [](Trajectory& t) { t.segments[0].log_masses[2] = 0.1f; }},
      {"logarithm -inf", [&](Trajectory& t) { t.segments[0].log_masses[2] = -inf; }},
      {"logarithm nan", [&](Trajectory& t) { t.segments[0].log_masses[2] = nan; }},
      {"token 4 has a kept share", [](Trajectory& t) { t.segments[0].log_masses[4] = -1; }},
      {"token 3 was drawn from 0 of 4 ids",
       [](Trajectory& t) { t.segments[0].kept_counts[3] = 0; }},
      {"token 3 was drawn from -1", [](Trajectory& t) { t.segments[0].kept_counts[3] = -1; }},
      {"token 4 was drawn from 1", [](Trajectory& t) { t.segments[0].kept_counts[4] = 1; }},
      {"token 5 was drawn from 4 of 3 ids",
       [](Trajectory& t) { t.segments[0].kept_counts[5] = 4; }},
      {"2 ids were kept for no token",
       [](Trajectory& t) {
         t.segments[1].kept_ids = {2, 3, 4};
       }},
      {"ids were kept for no token", [](Trajectory& t) { t.segments[1].kept_counts.clear(); }},
      {"do not ascend", [](Trajectory& t) { t.segments[0].kept_ids[4] = 0; }},
      {"do not ascend from 0", [](Trajectory& t) { t.segments[0].kept_ids[0] = -1; }},
      {"token 2 has id 6, which was not kept",
       [](Trajectory& t) { t.segments[0].kept_ids[1] = 7; }},
  };
  for (const Case& c : cases) {
    Trajectory trajectory = truncated();
    c.damage(trajectory);
    const auto fault = find_fault(trajectory);
    ASSERT_TRUE(fault.has_value()) << c.message;
    EXPECT_NE(fault->find(c.message), std::string::npos) << *fault;
  }
}

// Of two_segments(), as a model with two of four experts in two layers would have recorded it. Of
// the last token of each nothing was computed.
Trajectory routed() {
  Trajectory trajectory = two_segments();
  trajectory.experts = {.sparse_layers = 2, .chosen = 2, .experts = 4};
  for (Segment& segment : trajectory.segments)
    for (size_t i = 0; i + 1 < segment.tokens.size(); ++i)
      segment.choices.insert(segment.choices.end(), {0, 3, 1, 2});
  return trajectory;
}

TEST(Trajectory, SaysWhichExpertsItsTokensWentTo) {
  EXPECT_EQ(find_fault(routed()), std::nullopt);
  EXPECT_EQ(num_drawn_from(routed().segments[0]), 5);
  Segment prompt;
  prompt.tokens = {1};
  prompt.roles = {TokenRole::kPrompt};
  EXPECT_EQ(num_drawn_from(prompt), 0);
  struct Case {
    const char* message;
    std::function<void(Trajectory&)> damage;
  };
  const Case cases[] = {
      {"19 choices of 6 tokens, 4 each", [](Trajectory& t) { t.segments[0].choices.pop_back(); }},
      {"28 choices of 6 tokens",
       [](Trajectory& t) {
         for (int i = 0; i < 8; ++i) t.segments[0].choices.push_back(t.segments[0].choices[i % 4]);
       }},
      {"20 choices of 6 tokens, 0 each", [](Trajectory& t) { t.experts = {}; }},
      {"choices of 2 of 1 experts in 2 layers", [](Trajectory& t) { t.experts.experts = 1; }},
      {"choices of 2 of 4 experts in -2 layers",
       [](Trajectory& t) { t.experts.sparse_layers = -2; }},
      {"choices of 0 of 4", [](Trajectory& t) { t.experts.chosen = 0; }},
      {"experts of token 4 do not ascend", [](Trajectory& t) { t.segments[0].choices[19] = 1; }},
      {"experts of token 0 do not ascend, or are not below 4",
       [](Trajectory& t) { t.segments[1].choices[1] = 4; }},
  };
  for (const Case& c : cases) {
    Trajectory trajectory = routed();
    c.damage(trajectory);
    const auto fault = find_fault(trajectory);
    ASSERT_TRUE(fault.has_value()) << c.message;
    EXPECT_NE(fault->find(c.message), std::string::npos) << *fault;
  }
}

TEST(Trajectory, ASegmentMayContinueWhatItsParentInherited) {
  Trajectory trajectory = two_segments();
  // Segment 1 has a context of 4 + 2 tokens; a child may continue all six, but not seven.
  Segment child;
  child.parent = 1;
  child.parent_tokens = 6;
  trajectory.segments.push_back(child);
  EXPECT_EQ(find_fault(trajectory), std::nullopt);
  trajectory.segments[2].parent_tokens = 7;
  EXPECT_NE(find_fault(trajectory), std::nullopt);
}

TEST(Trajectory, OutcomesAndIdsHaveNames) {
  EXPECT_EQ(name_of(Outcome::kFinished), "finished");
  EXPECT_EQ(name_of(Outcome::kVerifierFailed), "verifier_failed");
  EXPECT_EQ(name_of(Outcome::kAborted), "aborted");
  EXPECT_EQ(to_string(two_segments().lease),
            "policy=0 dataset=0 epoch=1 prompt=7 launch=0 member=3 attempt=2");
}

TEST(MemberId, OrdersByEpochThenPromptThenMember) {
  const MemberId a{.epoch = 0, .prompt = 9}, b{.epoch = 1, .prompt = 0};
  EXPECT_LT(a, b);
  EXPECT_LT(b, (MemberId{.epoch = 1, .prompt = 0, .launch = 0, .member = 1}));
}

}  // namespace
}  // namespace tailrace
