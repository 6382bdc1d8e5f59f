#include "rollout/episode/episode.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "kernels/base/check.h"
#include "rollout/engine/stop_tokens.h"
#include "rollout/episode/task_source.h"

namespace tailrace {
namespace {

size_t turn_begin(const Segment& segment, size_t turn) {
  return turn < segment.turn_begins.size() ? static_cast<size_t>(segment.turn_begins[turn])
                                           : segment.tokens.size();
}

// Behind the answer of a turn.
size_t answer_end(const Segment& segment, size_t turn) {
  const auto roles = segment.roles.begin();
  const auto begin = static_cast<int64_t>(turn_begin(segment, turn));
  const auto next = static_cast<int64_t>(turn_begin(segment, turn + 1));
  return static_cast<size_t>(
      std::find_if(roles + begin, roles + next,
                   [](TokenRole role) { return role != TokenRole::kSampled; }) -
      roles);
}

void shorten(Segment& segment, size_t tokens, size_t turns) {
  segment.kept_counts.resize(tokens);
  segment.kept_ids.resize(static_cast<size_t>(
      std::accumulate(segment.kept_counts.begin(), segment.kept_counts.end(), int64_t{0})));
  segment.tokens.resize(tokens);
  segment.roles.resize(tokens);
  segment.logprobs.resize(tokens);
  segment.versions.resize(tokens);
  segment.classes.resize(tokens);
  segment.log_masses.resize(tokens);
  segment.turn_begins.resize(turns);
  segment.turn_numbers.resize(turns);
}

uint64_t anchor_of_observation(const sandbox::Observation& observation) {
  return anchor_of(!observation.state.empty()      ? observation.state
                   : !observation.messages.empty() ? observation.messages
                                                   : observation.text);
}

// Keeps the choices of turns that are over: later ones belong to whoever draws from there.
void shorten_choices(Segment& segment, const ExpertShape& experts) {
  const auto drawn = static_cast<size_t>(num_drawn_from(segment) * experts.per_token());
  segment.choices.resize(std::min(segment.choices.size(), drawn));
}

}  // namespace

EpisodeLimits episode_limits(const RolloutOptions& options, const sandbox::EnvironmentInfo& info) {
  auto or_else = [](int64_t value, int64_t other) { return value > 0 ? value : other; };
  int64_t context = options.engine.max_context_tokens;
  EpisodeLimits limits;
  limits.max_context_tokens = context;
  // One position is left for an answer.
  limits.max_prompt_tokens = or_else(options.max_prompt_tokens, context - 1);
  limits.max_response_tokens = or_else(options.max_response_tokens, context - 1);
  limits.max_action_tokens = or_else(options.max_action_tokens, info.max_action_tokens);
  limits.max_turns = or_else(options.max_turns, info.max_turns);
  return limits;
}

SamplingParams episode_sampling(const SamplingOptions& options,
                                const sandbox::EnvironmentInfo& info, const ModelConfig& model,
                                const chat::PromptFormat& format) {
  SamplingParams sampling = options.params();
  sampling.stop_strings = info.stop_strings;
  sampling.stop_tokens = stop_tokens(model, format);
  return sampling;
}

Episode::Episode(EpisodeSpec spec, std::string env_name, const chat::PromptFormat& format)
    : spec_(std::move(spec)), format_(format) {
  const EpisodeLimits& limits = spec_.limits;
  TR_CHECK(limits.max_context_tokens >= 2 && limits.max_prompt_tokens >= 1 &&
               limits.max_response_tokens >= 1 && limits.max_action_tokens >= 1 &&
               limits.max_turns >= 1,
           "limits {} {} {} {} {}", limits.max_context_tokens, limits.max_prompt_tokens,
           limits.max_response_tokens, limits.max_action_tokens, limits.max_turns);
  trajectory_.lease = spec_.lease;
  trajectory_.lane = spec_.lane;
  trajectory_.env = std::move(env_name);
  trajectory_.seed = spec_.task.seed;
  trajectory_.sampling = spec_.sampling;
  trajectory_.sampling.max_new_tokens = limits.max_action_tokens;
  trajectory_.numerics_classes = {spec_.numerics_class};
  trajectory_.experts = spec_.experts;
  trajectory_.segments.emplace_back();
  if (spec_.prefix) take_over(*std::exchange(spec_.prefix, std::nullopt));
}

void Episode::take_over(Trajectory prefix) {
  TR_CHECK(prefix.segments.size() == 1 && prefix.turns > 0 &&
               std::ssize(prefix.segments[0].turn_begins) == prefix.turns,
           "a prefix of {} segments and {} turns", prefix.segments.size(), prefix.turns);
  trajectory_.segments = std::move(prefix.segments);
  Segment& segment = trajectory_.segments.back();
  // stored() has dropped empty sets. While an episode runs each token has an entry in these
  // vectors.
  segment.log_masses.resize(segment.tokens.size(), 0.0f);
  segment.kept_counts.resize(segment.tokens.size(), 0);
  // This worker's engine has none of it: the first request prefills the whole prefix.
  unsent_ = segment.tokens;
  segment.turn_numbers.resize(segment.turn_begins.size());
  std::iota(segment.turn_numbers.begin(), segment.turn_numbers.end(), 0);
  // The environment says both again, of the turns that it comes to.
  trajectory_.turn_rewards = std::move(prefix.turn_rewards);
  trajectory_.turn_anchors = std::move(prefix.turn_anchors);
  trajectory_.turn_rewards.resize(static_cast<size_t>(prefix.turns));
  trajectory_.turn_anchors.resize(static_cast<size_t>(prefix.turns));
  // The samplers of the prefix keep their places, whoever goes on.
  auto& classes = trajectory_.numerics_classes = std::move(prefix.numerics_classes);
  const auto own = std::ranges::find(classes, spec_.numerics_class);
  numerics_class_ = static_cast<int32_t>(own - classes.begin());
  if (own == classes.end()) classes.push_back(spec_.numerics_class);
  // The sample's cost so far; telling the environment again adds to it.
  trajectory_.env_seconds = prefix.env_seconds;
  trajectory_.generate_seconds = prefix.generate_seconds;
  trajectory_.env_waits = std::move(prefix.env_waits);
  trajectory_.env_waits.resize(static_cast<size_t>(prefix.turns) + 1);
  storable_turns_ = recorded_turns_ = prefix.turns;
  storable_tokens_ = std::ssize(segment.tokens);
}

std::function<void(Result<Heard>&)> Episode::encoder() const {
  const bool is_first = trajectory_.turns == 0;
  return [&format = format_, is_first, last = is_first ? -1 : last_of_answer()](auto& answer) {
    if (!answer) return;
    Heard& heard = answer.value();
    const auto& [text, messages, tools, state] = heard.step.observation;
    // Nobody hears what is pending, or what comes with the end.
    if (heard.step.pending || heard.step.terminated || heard.step.truncated) return;
    if (const auto bytes = std::ssize(text) + std::ssize(messages) + std::ssize(tools);
        bytes > sandbox::kMostObservationBytes) {
      heard.fault =
          fmt::format("{} bytes; at most {} are taken", bytes, sandbox::kMostObservationBytes);
      return;
    }
    auto encoded = is_first ? format.first({text, messages, tools})
                            : format.next({text, messages, tools}, last);
    if (encoded) {
      heard.tokens = std::move(encoded).value();
    } else {
      heard.fault = encoded.failure().message;
    }
  };
}

Episode::Next Episode::observed(Result<Heard> first, double seconds) {
  waited(seconds);
  if (!first) return fail(first.failure().message, first.failure().is_final);
  if (!first.value().fault.empty()) return fail("the first observation: " + first.value().fault);
  std::vector<TokenId> prompt = std::move(first.value().tokens);
  prompt_tokens_ = static_cast<int64_t>(prompt.size());
  if (prompt.empty()) return fail("the first observation has no tokens");
  const EpisodeLimits& limits = spec_.limits;
  int64_t longest = std::min(limits.max_prompt_tokens, limits.max_context_tokens - 1);
  if (prompt_tokens_ > longest) {
    return fail(
        fmt::format("the prompt has {} tokens; at most {} are allowed (rollout.max_prompt_tokens, "
                    "rollout.max_context_tokens)",
                    prompt_tokens_, longest));
  }
  anchor_ = anchor_of_observation(first.value().step.observation);
  return heard(std::move(prompt), TokenRole::kPrompt);
}

// The policy has answered: what is known of the turn before the environment has heard it.
void Episode::begin_turn() {
  const auto turn = static_cast<size_t>(trajectory_.turns++);
  std::vector<double>& rewards = trajectory_.turn_rewards;
  std::vector<uint64_t>& anchors = trajectory_.turn_anchors;
  if (rewards.size() <= turn) rewards.resize(turn + 1);
  if (anchors.size() <= turn) anchors.resize(turn + 1);
  rewards[turn] = 0;
  anchors[turn] = anchor_;
}

// For the reset, the answer to this turn, or its cut.
void Episode::waited(double seconds) {
  trajectory_.env_seconds += seconds;
  if (repeats()) return;
  std::vector<float>& waits = trajectory_.env_waits;
  waits.resize(static_cast<size_t>(trajectory_.turns) + 1);
  waits.back() += static_cast<float>(seconds);
}

// Behind the prompt or an observation: the next answer is generated, or was recorded.
Episode::Next Episode::heard(std::vector<TokenId> tokens, TokenRole role) {
  const Segment& segment = trajectory_.segments.back();
  const auto turn = static_cast<size_t>(trajectory_.turns);
  if (repeats()) {
    const size_t begin = turn > 0 ? answer_end(segment, turn - 1) : 0,
                 end = turn_begin(segment, turn);
    if (!std::ranges::equal(tokens, std::span(segment.tokens).subspan(begin, end - begin)))
      return did_not_repeat(turn > 0 ? "another observation" : "another prompt");
  } else {
    append(std::move(tokens), role);
  }
  // The environment hears the recorded answer once more, and nothing is sampled.
  if (trajectory_.turns < recorded_turns_) {
    const size_t begin = turn_begin(segment, turn), end = answer_end(segment, turn);
    action_ = format_.tokenizer().decode(std::span(segment.tokens).subspan(begin, end - begin));
    begin_turn();
    return Next::kStep;
  }
  storable_turns_ = trajectory_.turns;
  storable_tokens_ = std::ssize(segment.tokens);
  return Next::kGenerate;
}

Episode::Next Episode::answered(const Generation& generation, double seconds) {
  trajectory_.generate_seconds += seconds;
  if (generation.reason == FinishReason::kAborted) return abort();
  Segment& segment = trajectory_.segments.back();
  // Said, not guessed from the roles: an observation may be empty, and two answers then touch.
  if (!generation.tokens.empty()) {
    segment.turn_begins.push_back(static_cast<int32_t>(segment.tokens.size()));
    segment.turn_numbers.push_back(trajectory_.turns);
  }
  std::vector<TokenId> ids;
  for (const GeneratedToken& token : generation.tokens) {
    ids.push_back(token.id);
    append(token);
  }
  record(generation.choices);
  begin_turn();
  bool stopped = generation.reason == FinishReason::kStopToken ||
                 generation.reason == FinishReason::kStopString;
  bool last_turn = trajectory_.turns >= spec_.limits.max_turns;
  // An answer that stopped by itself may have used the last room: it is whole, and stepped() sees
  // that nothing more fits.
  cut_ = !stopped && (room() == 0 || last_turn || generation.reason == FinishReason::kContextFull);
  // All tokens of the turn, also of one that was cut: what the environment judges is what was
  // sampled.
  action_ = format_.tokenizer().decode(ids);
  return Next::kStep;
}

Episode::Next Episode::stepped(Result<Heard> answer, double seconds) {
  waited(seconds);
  if (!answer) return fail(answer.failure().message, answer.failure().is_final);
  Heard& heard_back = answer.value();
  const sandbox::StepResult& result = heard_back.step;
  if (result.pending) return asked_to_cut_ ? Next::kCut : Next::kStep;
  // A NaN would spread over the whole group's advantages. It is a mistake of the environment and
  // not of the policy, so it ends as env_failed and is tried again.
  if (!std::isfinite(result.reward))
    return fail(fmt::format("the reward of turn {} is {}", trajectory_.turns, result.reward));
  for (const auto& [key, value] : result.metrics) {
    if (!std::isfinite(value)) return fail(fmt::format("metric '{}' is {}", key, value));
  }
  reward_ += result.reward;
  trajectory_.turn_rewards[static_cast<size_t>(trajectory_.turns) - 1] += result.reward;
  // An environment without a cut() of its own has no metrics there.
  if (!asked_to_cut_ || !result.metrics.empty()) trajectory_.metrics = result.metrics;
  if (asked_to_cut_ || result.terminated || result.truncated) {
    if (repeats()) return did_not_repeat("its end");
    trajectory_.verifier = result.verifier;
    trajectory_.evidence = result.verifier.empty() ? result.reason : result.evidence;
    // With a verifier there is no reward yet, and 0 would be one.
    if (result.verifier.empty()) {
      trajectory_.reward = reward_;
    } else {
      std::ranges::fill(trajectory_.turn_rewards, 0.0);
    }
    bool finished = result.terminated && !cut_ && !asked_to_cut_;
    return end(finished ? Outcome::kFinished : Outcome::kTruncated);
  }
  if (!heard_back.fault.empty())
    return fail(fmt::format("the observation of turn {}: {}", trajectory_.turns, heard_back.fault));
  anchor_ = anchor_of_observation(result.observation);
  std::vector<TokenId> seen = std::move(heard_back.tokens);
  if (repeats()) return heard(std::move(seen), TokenRole::kObservation);
  // Less than, because one token must be sampled behind it.
  bool fits = static_cast<int64_t>(seen.size()) < room();
  if (cut_ || !fits || trajectory_.turns >= spec_.limits.max_turns) {
    asked_to_cut_ = true;
    return Next::kCut;
  }
  return heard(std::move(seen), TokenRole::kObservation);
}

Episode::Next Episode::abort() { return end(Outcome::kAborted); }

GenerateRequest Episode::request(SessionId session) {
  GenerateRequest request;
  request.session = session;
  request.new_tokens = std::exchange(unsent_, {});
  request.sampling = spec_.sampling;
  // The response limit is ours to keep; the engine knows only the context.
  request.sampling.max_new_tokens = std::min(spec_.limits.max_action_tokens, room());
  request.wants_kept = spec_.keeps_sets;
  request.key = segment_key(spec_.key, trajectory_.segments.size() - 1);
  return request;
}

// -1: the answer has no tokens.
TokenId Episode::last_of_answer() const {
  const Segment& segment = trajectory_.segments.back();
  const auto turn = static_cast<size_t>(trajectory_.turns) - 1;
  const size_t end = answer_end(segment, turn);
  return end > turn_begin(segment, turn) ? segment.tokens[end - 1] : -1;
}

Episode::Next Episode::fail(std::string reason, bool task_broken) {
  failure_ = std::move(reason);
  return end(task_broken ? Outcome::kTaskBroken : Outcome::kEnvFailed);
}

Episode::Next Episode::did_not_repeat(const std::string& what) {
  return fail(
      fmt::format("the environment did not repeat itself: {} in turn {} of the {} that an "
                  "attempt before had played",
                  what, trajectory_.turns, recorded_turns_));
}

Episode::Next Episode::end(Outcome outcome) {
  trajectory_.outcome = outcome;
  // The tokens of the prefix are there, however far the environment has come.
  trajectory_.turns = std::max(trajectory_.turns, recorded_turns_);
  for (Segment& segment : trajectory_.segments) drop_empty_sets(segment);
  return Next::kDone;
}

Trajectory Episode::stored() const {
  TR_CHECK(storable_turns_ > 0, "no turn of {} is over", to_string(spec_.lease));
  Trajectory stored = trajectory_;
  // An outcome that says that the episode is not over: find_misfit() accepts no other as a prefix.
  stored.outcome = Outcome::kAborted;
  stored.turns = storable_turns_;
  stored.metrics.clear();  // the environment says them again
  stored.env_waits.resize(static_cast<size_t>(storable_turns_) + 1);
  stored.turn_rewards.resize(static_cast<size_t>(storable_turns_));
  stored.turn_anchors.resize(static_cast<size_t>(storable_turns_));
  Segment& segment = stored.segments.back();
  shorten(segment, static_cast<size_t>(storable_tokens_), static_cast<size_t>(storable_turns_));
  shorten_choices(segment, stored.experts);
  drop_empty_sets(segment);
  return stored;
}

void Episode::append(std::vector<TokenId> tokens, TokenRole role) {
  append_said(trajectory_.segments.back(), tokens, role);
  unsent_ = std::move(tokens);
}

void Episode::append(const GeneratedToken& token) {
  append_sampled(trajectory_.segments.back(), token, numerics_class_);
}

// Choices that a prefix has recorded stay: they are the ones that sampled it.
void Episode::record(std::span<const uint16_t> choices) {
  if (trajectory_.experts == ExpertShape{}) return;
  std::vector<uint16_t>& recorded = trajectory_.segments.back().choices;
  TR_CHECK(recorded.size() >= num_told_choices_);
  const size_t known = std::min(choices.size(), recorded.size() - num_told_choices_);
  recorded.insert(recorded.end(), choices.begin() + static_cast<int64_t>(known), choices.end());
  num_told_choices_ += choices.size();
}

int64_t Episode::room() const {
  auto length = static_cast<int64_t>(trajectory_.segments.back().tokens.size());
  return std::min(spec_.limits.max_context_tokens - length,
                  spec_.limits.max_response_tokens - (length - prompt_tokens_));
}

}  // namespace tailrace
