#include "core/trajectory/body_limits.h"

#include <functional>
#include <string>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

// Of 0..9, sampled with top_k = 3: four tokens, and a rewritten history that continues three.
Trajectory branched() {
  Trajectory t;
  t.numerics_classes = {"cpu"};
  t.sampling.temperature = 0.5;
  t.sampling.top_k = 3;
  t.segments.push_back(
      {.tokens = {1, 5, 6, 9},
       .roles = {TokenRole::kPrompt, TokenRole::kPrompt, TokenRole::kSampled, TokenRole::kSampled},
       .logprobs = {0, 0, -0.5f, -1.5f},
       .versions = {-1, -1, 4, 4},
       .classes = {-1, -1, 0, 0},
       .turn_begins = {2},
       .log_masses = {0, 0, -0.25f, -0.125f},
       .kept_counts = {0, 0, 2, 1},
       .kept_ids = {5, 6, 9}});
  t.segments.push_back({.parent = 0,
                        .parent_tokens = 3,
                        .tokens = {3, 2},
                        .roles = {TokenRole::kObservation, TokenRole::kSampled},
                        .logprobs = {0, -2},
                        .versions = {-1, 4},
                        .classes = {-1, 0},
                        .turn_begins = {1},
                        .log_masses = {0, -0.5f},
                        .kept_counts = {0, 1},
                        .kept_ids = {2}});
  return t;
}

BodyLimits limits() { return {.vocab_size = 10, .max_context_tokens = 5, .needs_sets = true}; }

void drop_sets(Trajectory& t) {
  for (Segment& segment : t.segments) {
    segment.kept_counts.clear();
    segment.kept_ids.clear();
  }
}

// Of a body without a fault, behind its name.
std::string unfit(const std::function<void(Trajectory&)>& change, const BodyLimits& limits) {
  Trajectory t = branched();
  change(t);
  EXPECT_EQ(find_fault(t), std::nullopt);
  return find_unfit(t, limits).value_or("");
}

TEST(BodyLimits, TakeWhatIsJustWithinThem) {
  EXPECT_EQ(unfit([](Trajectory&) {}, limits()), "");
  EXPECT_EQ(unfit([](Trajectory&) {}, {}), "");
}

TEST(BodyLimits, NameWhatTheModelCannotTake) {
  EXPECT_EQ(unfit([](Trajectory& t) { t.segments[0].tokens[0] = 10; }, limits()),
            "holds token 10; the vocabulary has 10");
  EXPECT_EQ(unfit(
                [](Trajectory& t) {
                  t.segments[1].kept_ids = {2, 11}, t.segments[1].kept_counts[1] = 2;
                },
                limits()),
            "holds token 11; the vocabulary has 10");
  // Inherited tokens count.
  EXPECT_EQ(unfit([](Trajectory& t) { t.segments[1].parent_tokens = 4; }, limits()),
            "has a context of 6 tokens; the trainer takes 5");
}

TEST(BodyLimits, BoundTheSegments) {
  BodyLimits of_run = limits();
  of_run.max_segments = 2;
  EXPECT_EQ(unfit([](Trajectory&) {}, of_run), "");
  // Each continues five tokens, and would be a sequence of six.
  const auto many = [](Trajectory& t) {
    for (int i = 0; i < 500; ++i) t.segments.push_back(t.segments[1]);
  };
  EXPECT_EQ(unfit(many, of_run), "has 502 segments; its turns allow 2");
  const auto empty = [](Trajectory& t) {
    t.segments.emplace_back().parent = 1;
    t.segments.back().parent_tokens = 2;
  };
  EXPECT_EQ(unfit(empty, limits()), "has a segment without tokens");
}

TEST(BodyLimits, WantSetsOfTruncatedSamplingThatIsTrainedOn) {
  EXPECT_EQ(unfit(drop_sets, limits()),
            "does not say what its tokens were drawn from; algo.sampling_mask = keep needs it of "
            "truncated sampling");
  BodyLimits other = limits();
  other.needs_sets = false;
  EXPECT_EQ(unfit(drop_sets, other), "");
  const auto evaluated = [](Trajectory& t) {
    drop_sets(t);
    t.lane = Lane::kEval;
  };
  EXPECT_EQ(unfit(evaluated, limits()), "");
  const auto whole = [](Trajectory& t) {
    drop_sets(t);
    t.sampling.top_k = 10;
  };
  EXPECT_EQ(unfit(whole, limits()), "") << "that is the whole vocabulary";
}

TEST(BodyLimits, WantTheExpertsOfWhatIsReplayed) {
  constexpr ExpertShape kShape = {.sparse_layers = 1, .chosen = 1, .experts = 4};
  const auto route = [=](Trajectory& t) {
    t.experts = kShape;
    t.segments[0].choices = {0, 1, 2};
    t.segments[1].choices = {3};
  };
  BodyLimits replays = limits(), silent = limits();
  replays.experts = kShape;
  silent.experts = ExpertShape{};
  EXPECT_EQ(unfit(route, replays), "");
  EXPECT_EQ(unfit(route, limits()), "");
  EXPECT_EQ(unfit([](Trajectory&) {}, silent), "");
  constexpr const char* kMissing =
      "does not say which experts its tokens went to; algo.router_replay = replay needs it";
  EXPECT_EQ(unfit([](Trajectory&) {}, replays), kMissing);
  const auto change = [&](const std::function<void(Trajectory&)>& then) {
    return [route, then](Trajectory& t) { route(t), then(t); };
  };
  // The third token was drawn from the first two, the fourth from it.
  EXPECT_EQ(unfit(change([](Trajectory& t) { t.segments[0].choices.pop_back(); }), replays),
            kMissing);
  EXPECT_EQ(unfit(change([](Trajectory& t) { t.segments[1].choices.clear(); }), replays), kMissing);
  EXPECT_EQ(
      unfit(change([](Trajectory& t) { t.experts.experts = 5; }), replays),
      "has choices of 1 of 5 experts in 1 layers; the run's are of 1 of 4 experts in 1 layers");
  EXPECT_EQ(unfit(route, silent).find("has choices of 1 of 4"), 0u);
  // Nobody trains on an evaluation.
  const auto evaluated = [](Trajectory& t) { t.lane = Lane::kEval; };
  EXPECT_EQ(unfit(evaluated, replays), "");
  EXPECT_EQ(unfit(change(evaluated), replays).find("has choices of"), 0u);
}

TEST(BodyLimits, HaveRoomForRoundingButForNoLie) {
  const auto logprob = [](float value) {
    return [value](Trajectory& t) {
      t.segments[0].logprobs[3] = value;
      t.segments[0].log_masses.clear();
    };
  };
  for (const BodyLimits& of_run : {limits(), BodyLimits{}}) {
    EXPECT_EQ(unfit(logprob(5e-4f), of_run), "");
    EXPECT_EQ(unfit(logprob(5), of_run), "says of token 3 that its log-probability is 5");
    EXPECT_EQ(unfit(logprob(3e38f), of_run).find("says of token 3"), 0u);
    // Of what was kept, with a share of e^-0.125.
    EXPECT_EQ(unfit([](Trajectory& t) { t.segments[0].logprobs[3] = -0.1245f; }, of_run), "");
    EXPECT_EQ(
        unfit([](Trajectory& t) { t.segments[0].logprobs[3] = -0.0625f; }, of_run),
        "says of token 3 that its log-probability is -0.0625, and -0.125 of all that was kept");
  }
  // Scaled logits are as large as 1 / temperature, and so is what is rounded away.
  const auto cold = [](float value) {
    return [value](Trajectory& t) {
      t.sampling.temperature = 1e-3;
      t.segments[0].logprobs[3] = value;
      t.segments[0].log_masses.clear();
    };
  };
  EXPECT_EQ(unfit(cold(0.5f), limits()), "");
  EXPECT_NE(unfit(cold(5), limits()), "");
}

TEST(BodyLimits, TakeTheRunsSamplingOnly) {
  BodyLimits of_run = limits();
  of_run.sampling = branched().sampling;
  of_run.sampling->max_new_tokens = 99;  // the episode's own
  of_run.sampling->stop_tokens = {2};
  EXPECT_EQ(unfit([](Trajectory&) {}, of_run), "");
  EXPECT_EQ(unfit([](Trajectory& t) { t.sampling.temperature = 0.25; }, of_run),
            "was sampled with temperature 0.25, top_k 3, top_p 1, min_p 0; the run says "
            "temperature 0.5, top_k 3, top_p 1, min_p 0");
  const std::function<void(Trajectory&)> others[] = {
      [](Trajectory& t) { t.sampling.temperature = 1e-300; },
      [](Trajectory& t) { t.sampling.top_k = 4; }, [](Trajectory& t) { t.sampling.top_p = 0.5; },
      [](Trajectory& t) { t.sampling.min_p = 0.5; },
      // Evaluations are sampled as training is, where nothing else is said of them.
      [](Trajectory& t) { t.sampling.temperature = 1, t.lane = Lane::kEval; }};
  for (const auto& other : others) EXPECT_EQ(unfit(other, of_run).find("was sampled with"), 0u);
}

TEST(BodyLimits, TakeAnEvaluationByItsOwnSampling) {
  BodyLimits of_run = limits();
  of_run.sampling = of_run.eval_sampling = branched().sampling;
  of_run.eval_sampling->temperature = 1;
  const auto sampled = [](Lane lane, double temperature) {
    return [=](Trajectory& t) { t.sampling.temperature = temperature, t.lane = lane; };
  };
  EXPECT_EQ(unfit(sampled(Lane::kEval, 1), of_run), "");
  EXPECT_EQ(unfit(sampled(Lane::kTrain, 0.5), of_run), "");
  EXPECT_NE(unfit(sampled(Lane::kEval, 0.5), of_run), "");
  EXPECT_NE(unfit(sampled(Lane::kTrain, 1), of_run), "");
}

TEST(BodyLimits, TakeTheGreedyMemberOfARunThatHasOne) {
  BodyLimits of_run = limits();
  of_run.sampling = branched().sampling;
  const auto greedy_member = [](int32_t member, Lane lane = Lane::kTrain) {
    return [=](Trajectory& t) {
      t.lane = lane;
      t.lease.member.member = member;
      t.sampling.temperature = 0;
      for (Segment& segment : t.segments) {
        segment.log_masses.clear();
        segment.kept_counts.clear();
        segment.kept_ids.clear();
      }
    };
  };
  const auto first_member = [](Trajectory& t) { t.lease.member.member = 0; };
  EXPECT_EQ(unfit(first_member, of_run), "");
  EXPECT_NE(unfit(greedy_member(0), of_run), "");
  of_run.greedy_member = true;
  EXPECT_EQ(unfit(greedy_member(0), of_run), "");
  EXPECT_NE(unfit(first_member, of_run), "") << "it was not greedy";
  EXPECT_NE(unfit(greedy_member(1), of_run), "");
  EXPECT_NE(unfit(greedy_member(0, Lane::kEval), of_run), "");
}

}  // namespace
}  // namespace tailrace
