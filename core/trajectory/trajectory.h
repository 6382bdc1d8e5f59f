// The result of a rollout and input of a trainer: tokens written once at sampling time, with the
// log-probability, weight version and role of each. Nothing is ever re-tokenised (design rule 2).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"
#include "core/base/expert_shape.h"
#include "core/base/ids.h"
#include "core/base/metric_list.h"
#include "core/generate.h"
#include "core/trajectory/outcome.h"

namespace tailrace {

// The author of a token. Only kSampled tokens are trained on.
enum class TokenRole : uint8_t { kPrompt, kSampled, kObservation };
constexpr auto enum_names(TokenRole) {
  return name_table<TokenRole>({{TokenRole::kPrompt, "prompt"},
                                {TokenRole::kSampled, "sampled"},
                                {TokenRole::kObservation, "observation"}});
}

// Tokens of one unbroken context. A conversation that only grows is one segment; a rewritten
// history opens another, which begins after `parent_tokens` tokens of its parent.
struct Segment {
  int32_t parent = -1;        // index in Trajectory::segments; -1: root
  int32_t parent_tokens = 0;  // how many tokens of the parent's context it continues
  std::vector<TokenId> tokens;
  std::vector<TokenRole> roles;   // same length
  std::vector<float> logprobs;    // same length; 0 where the role is not kSampled
  std::vector<int64_t> versions;  // same length; -1 where the role is not kSampled
  // Same length; who computed it, an index in Trajectory::numerics_classes; -1 where the role is
  // not kSampled.
  std::vector<int32_t> classes;
  // The first token of each answer, ascending. Two answers may touch: an observation can be empty.
  std::vector<int32_t> turn_begins;
  // The turn of the trajectory that each of them answers, ascending; no two answers of a trajectory
  // are of one turn. Same length as turn_begins; empty: not known.
  std::vector<int32_t> turn_numbers = {};
  // For truncated sampling (top-k, top-p, min-p): the natural log of the probability that the kept
  // tokens have together, which the draw is renormalised by. Same length, 0 where the role is not
  // kSampled; empty where truncation has cut nothing.
  std::vector<float> log_masses = {};
  // In runs that keep them: how many tokens each draw was made from (same length, 0 where the role
  // is not kSampled), and their ids, one set after the other, ascending in each.
  std::vector<int32_t> kept_counts = {};
  std::vector<TokenId> kept_ids = {};
  // In runs that record them: the experts that tokens went to, as the pass chose them that the next
  // token was drawn from. [c, experts.per_token()] of the first c tokens, in a row the ids of one
  // sparse layer after the other, ascending in each. Behind those nothing was drawn: the last token
  // of a context, or an observation that has no answer yet.
  std::vector<uint16_t> choices = {};
  // In runs that learn from a teacher: its log-probability of each token, of the distribution that
  // was sampled from (its temperature, no truncation). Same length, 0 where the role is not
  // kSampled; empty: no teacher has scored it.
  std::vector<float> teacher_logprobs = {};
  // Where the run asks for them, the likeliest tokens of the teacher in the place of each sampled
  // one, and their log-probabilities: [sampled tokens, k], the likeliest first. Empty: none.
  std::vector<TokenId> teacher_top_ids = {};
  std::vector<float> teacher_top_logprobs = {};
};

// The tokens of segment `index` with all that it continues. The segments have no fault.
std::vector<TokenId> context_of(std::span<const Segment> segments, size_t index);
// For who is about to set a teacher's scores of segment `index`: they are 0 then, without likeliest
// tokens. Its context up to the last token that was sampled; empty: none was.
std::vector<TokenId> begin_scores(std::span<Segment> segments, size_t index);

// The tokens of a segment in front of the last sampled one: those that something was drawn from.
int64_t num_drawn_from(const Segment& segment);

// Writes behind a segment's tokens what was said to the policy: nothing sampled it, so it has no
// log-probability, version or class.
void append_said(Segment& segment, std::span<const TokenId> tokens, TokenRole role);
// And what it has sampled, in the numerics class of that number.
void append_sampled(Segment& segment, const GeneratedToken& token, int32_t numerics_class);
// For each token of a segment the answer that it is part of, an index in its `turn_begins` (and in
// `turn_numbers` where they are known); -1: nothing sampled it. Masks change nothing about it.
//   roles        [tokens]
//   turn_begins  [answers] ascending
std::vector<int32_t> answers_of_tokens(std::span<const TokenRole> roles,
                                       std::span<const int32_t> turn_begins);
// Names a state for credit across the members of a group: equal for equal texts, never 0, which is
// no state.
uint64_t anchor_of(std::string_view state);
// At the end: where truncation has cut nothing there is nothing to say.
void drop_empty_sets(Segment& segment);

// The facts of an episode besides its tokens.
struct EpisodeFacts {
  LeaseId lease;
  Lane lane = Lane::kTrain;
  std::string env;
  uint64_t seed = 0;  // what the environment was reset with
  Outcome outcome = Outcome::kFinished;
  std::optional<double> reward;  // absent until a verifier has spoken
  // The value that its group is judged by in place of the reward (algo.filter_metric), where a run
  // says so and the sample has it. Known with the reward, and in no body.
  std::optional<double> judged = {};
  std::string verifier;     // empty: the environment gave the reward itself
  std::string evidence;     // what the verifier needs, JSON; without one: why it ended so
  SamplingParams sampling;  // temperature and truncation travel with the log-probabilities
  int32_t turns = 0;
  double env_seconds = 0, generate_seconds = 0;
  MetricList metrics;  // for example {"success", 1}, {"invalid_actions", 2}
};

// More than any episode rewrites its history: each is a sequence of the trainer, with all that it
// continues.
inline constexpr int64_t kMaxSegments = 4096;

struct Trajectory : EpisodeFacts {
  // Numerics classes (design rule 3) of those who sampled it; Segment::classes points here.
  std::vector<std::string> numerics_classes;
  std::vector<Segment> segments;
  ExpertShape experts = {};  // all 0: no choices were recorded
  // Seconds that the episode waited for its environment: [0] for the reset, [i] for the answer to
  // turn i, counted from 1. It ends with the last answer that was heard. What an attempt before it
  // had heard keeps the time that it took then.
  std::vector<float> env_waits = {};
  // The reward that the environment gave for each turn: the part of the reward that came from its
  // steps, 0 where a verifier scores the whole. [turns]; empty: not known.
  std::vector<double> turn_rewards = {};
  // The state that each turn answered, as anchor_of() names it. [turns]; empty: not known.
  std::vector<uint64_t> turn_anchors = {};

  int64_t num_tokens() const;
  int64_t num_sampled() const;
  int64_t min_version() const;  // of sampled tokens; -1 when there is none
  int64_t max_version() const;
};

// The facts of a trajectory that are known without its tokens: it travels in front of them.
struct TrajectoryHeader : EpisodeFacts {
  int64_t num_tokens = 0, num_sampled = 0;
  int64_t min_version = -1, max_version = -1;  // of sampled tokens
};
TrajectoryHeader header_of(const Trajectory& trajectory);

// Lengths that must agree, roles, classes and outcomes in range, parents before children, finite
// log-probabilities, kept sets that hold their token, choices that a router can make, kMaxSegments.
// Returns what is wrong, or nothing. Anything read from a message or a file passes through it.
std::optional<std::string> find_fault(const Trajectory& trajectory);
// The same of the header alone: what tokens would say about it is not known yet.
std::optional<std::string> find_fault(const TrajectoryHeader& header);

}  // namespace tailrace
