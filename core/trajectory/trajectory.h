// What a rollout produces and a trainer consumes: tokens written once at sampling time, with the
// log-probability, weight version and role of each. Nothing is ever re-tokenised (design rule 2).
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/generate.h"

namespace tailrace {

using PolicyId = int32_t;

// A task is a prompt of an epoch; a group is its members; a launch is one start of a group; an
// attempt is one lease of a piece of work. (design section 2, words)
struct MemberId {
  PolicyId policy = 0;
  int32_t domain = 0;
  int64_t epoch = 0;
  int64_t prompt = 0;  // index in the domain's dataset or seed stream
  int32_t launch = 0;
  int32_t member = 0;
  friend auto operator<=>(const MemberId&, const MemberId&) = default;
};

struct LeaseId {
  MemberId member;
  int32_t attempt = 0;
  friend auto operator<=>(const LeaseId&, const LeaseId&) = default;
};

// Training or evaluation: evaluation uses held-out prompts and never reaches the trainer.
enum class Lane : uint8_t { kTrain, kEval };

// Who wrote a token. Only kSampled tokens are trained on.
enum class TokenRole : uint8_t { kPrompt, kSampled, kObservation };

// How an attempt ended (design section 5). The first two enter group statistics.
enum class Outcome : uint8_t {
  kFinished,
  kTruncated,
  kEnvFailed,
  kVerifierFailed,
  kLost,
  kStale,
  kAborted,
};

// Tokens of one unbroken context. A conversation that only grows is one segment; a rewritten
// history opens another, which begins after `parent_tokens` tokens of its parent.
struct Segment {
  int32_t parent = -1;        // index in Trajectory::segments; -1: root
  int32_t parent_tokens = 0;  // how many tokens of the parent's context it continues
  std::vector<TokenId> tokens;
  std::vector<TokenRole> roles;   // same length
  std::vector<float> logprobs;    // same length; 0 where the role is not kSampled
  std::vector<int64_t> versions;  // same length; -1 where the role is not kSampled
};

struct Trajectory {
  LeaseId lease;
  Lane lane = Lane::kTrain;
  std::string env;
  uint64_t seed = 0;  // what the environment was reset with
  std::vector<Segment> segments;
  Outcome outcome = Outcome::kFinished;
  std::optional<double> reward;  // absent until a verifier has spoken
  std::string verifier;          // empty: the environment gave the reward itself
  std::string evidence;          // what the verifier needs, JSON; of env_failed: the reason
  SamplingParams sampling;       // temperature and truncation travel with the log-probabilities
  int32_t turns = 0;
  double env_seconds = 0, generate_seconds = 0;
  std::vector<std::pair<std::string, double>>
      metrics;  // for example {"success", 1}, {"invalid_actions", 2}

  int64_t num_tokens() const;
  int64_t num_sampled() const;
  int64_t min_version() const;  // of sampled tokens; -1 when there is none
  int64_t max_version() const;
};

// Lengths that must agree, roles and outcomes in range, parents before children, finite log-probs.
// Returns what is wrong, or nothing. Anything read from a message or a file passes through it.
std::optional<std::string> find_fault(const Trajectory& trajectory);

std::string_view name(Outcome outcome);
std::string to_string(const MemberId& id);
std::string to_string(const LeaseId& id);

}  // namespace tailrace
