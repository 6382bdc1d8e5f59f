// Generator: token ids in, token stream out. What episodes, the gateway, `generate` and `eval` talk
// to; the decode engine implements it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tailrace {

using TokenId = int32_t;

// How tokens are drawn. Log-probabilities are always log softmax(logits / temperature) before any
// truncation, natural log (design rule 2). temperature == 0 is greedy; its log-probabilities are at
// T = 1.
struct SamplingParams {
  double temperature = 1.0;
  int64_t top_k = -1;  // -1 or 0: off
  double top_p = 1.0;  // nucleus; 1: off
  double min_p = 0.0;  // keep tokens with p >= min_p * max p; 0: off
  int64_t max_new_tokens = 16;
  std::vector<TokenId> stop_tokens;  // sampled stop tokens are kept as the last token
  // Matched on decoded text; the tokens sampled so far are kept.
  std::vector<std::string> stop_strings;
};

// Draws come from a part of the vocabulary, renormalised. Greedy ones come from no distribution.
inline bool truncates(const SamplingParams& sampling,
                      int64_t vocab_size = std::numeric_limits<int64_t>::max()) {
  return sampling.temperature > 0 && (sampling.top_p < 1 || sampling.min_p > 0 ||
                                      (sampling.top_k > 0 && sampling.top_k < vocab_size));
}

// Most tokens that the set of one draw may have where sets travel with the tokens, and most ids in
// the sets of an episode: half of what a message holds (core/wire).
inline constexpr int64_t kMaxKeptTokens = 4096, kMaxKeptIds = int64_t{32} << 20;

// The factor that logits are multiplied by, in the sampler and in the trainer: both must round it
// the same way.
inline float inverse_temperature(const SamplingParams& sampling) {
  return sampling.temperature > 0 ? static_cast<float>(1.0 / sampling.temperature) : 1.0f;
}

// Names the random numbers of a sequence; the number for the token at absolute position p is
// philox(mix(parts), p), so that attempts of one member share it and relaunches do not.
struct SampleKey {
  uint64_t value = 0;
};

struct GeneratedToken {
  TokenId id = 0;
  float logprob = 0;
  int64_t version = 0;  // weight version that sampled it
  // For truncated sampling: natural log of the probability that the kept tokens had together; the
  // draw's own log-probability is logprob - log_mass.
  float log_mass = 0;
  std::vector<TokenId> kept = {};  // their ids, ascending; where the request wants them
};

enum class FinishReason : uint8_t { kStopToken, kStopString, kLength, kContextFull, kAborted };

// A conversation whose KV is kept between calls until release().
using SessionId = int64_t;

struct GenerateRequest {
  SessionId session = 0;  // chosen by the caller, unique while alive
  // Appended to the session's tokens before sampling: the prompt on the first call (at least one
  // token), then observations (may be empty).
  std::vector<TokenId> new_tokens;
  SamplingParams sampling;
  SampleKey key;
  bool wants_kept = false;  // GeneratedToken::kept
};

struct Generation {
  SessionId session = 0;
  std::vector<GeneratedToken> tokens;
  FinishReason reason = FinishReason::kLength;
  // The experts that tokens of the session went to, of an engine that keeps them: [tokens, sparse
  // layers * k], each as it was first computed. They go on where those of the session's last answer
  // ended; the token sampled last has none yet, for nothing was computed of it.
  std::vector<uint16_t> choices = {};
};

// Thread: the owner's thread only. Requests are queued; step() makes progress on all of them
// together (continuous batching), so that an implementation can be driven by any loop.
class Generator {
 public:
  virtual ~Generator() = default;

  virtual void submit(GenerateRequest request) = 0;
  // Ends the session, whatever it is doing; its KV is given back. A running request of it is
  // reported as kAborted by the next step().
  virtual void release(SessionId session) = 0;
  // One forward pass over all that can run; returns what finished. Empty while idle.
  virtual std::vector<Generation> step() = 0;
  virtual bool idle() const = 0;
  // The tokens sampled so far in a session with a request, for a caller that shows an answer while
  // it comes. Until the next call of any other kind.
  virtual std::span<const GeneratedToken> so_far(SessionId) const { return {}; }

  virtual int64_t max_context_tokens() const = 0;
  virtual int64_t version() const = 0;
};

}  // namespace tailrace
