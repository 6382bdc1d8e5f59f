#include "core/trajectory/trajectory.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/digest_of.h"

namespace tailrace {
namespace {

std::optional<std::string> find_lease_fault(const LeaseId& lease) {
  const MemberId& id = lease.member;
  if (id.policy < 0 || id.dataset < 0 || id.epoch < 0 || id.prompt < 0 || id.launch < 0 ||
      id.member < 0 || lease.attempt < 0) {
    return fmt::format("negative part in id {}", to_string(lease));
  }
  return std::nullopt;
}

std::optional<std::string> find_sampling_fault(const SamplingParams& s) {
  // Written so that a NaN fails as well.
  if (!(s.temperature >= 0 && std::isfinite(s.temperature))) {
    return fmt::format("temperature {} is not a finite number >= 0", s.temperature);
  }
  if (!(s.top_p > 0 && s.top_p <= 1)) return fmt::format("top_p {} is outside (0, 1]", s.top_p);
  if (!(s.min_p >= 0 && s.min_p <= 1)) return fmt::format("min_p {} is outside [0, 1]", s.min_p);
  return std::nullopt;
}

std::optional<std::string> find_token_fault(const Segment& segment, size_t i, size_t num_classes) {
  if (segment.tokens[i] < 0) return fmt::format("token {} has id {}", i, segment.tokens[i]);
  // In a message or a file a role is any byte.
  if (segment.roles[i] > TokenRole::kObservation) {
    return fmt::format("token {} has role {}", i, static_cast<int>(segment.roles[i]));
  }
  if (segment.roles[i] == TokenRole::kSampled) {
    if (!std::isfinite(segment.logprobs[i])) {
      return fmt::format("token {} was sampled with log-probability {}", i, segment.logprobs[i]);
    }
    if (segment.versions[i] < 0) {
      return fmt::format("token {} was sampled by version {}", i, segment.versions[i]);
    }
    if (segment.classes[i] < 0 || static_cast<size_t>(segment.classes[i]) >= num_classes) {
      return fmt::format("token {} was sampled in numerics class {} of {}", i, segment.classes[i],
                         num_classes);
    }
    // Not merely ignored: another value means that roles and numbers have slipped against each
    // other.
  } else if (segment.logprobs[i] != 0 || segment.versions[i] != -1 || segment.classes[i] != -1) {
    return fmt::format(
        "token {} was not sampled but has log-probability {}, version {} and numerics class {}", i,
        segment.logprobs[i], segment.versions[i], segment.classes[i]);
  }
  return std::nullopt;
}

// The set that token `i` was drawn from.
std::optional<std::string> find_set_fault(std::span<const TokenId> set, TokenId token, size_t i) {
  if (set.front() < 0 || std::ranges::adjacent_find(set, std::greater_equal()) != set.end())
    return fmt::format("the ids that were kept for token {} do not ascend from 0", i);
  if (!std::ranges::binary_search(set, token))
    return fmt::format("token {} has id {}, which was not kept", i, token);
  return std::nullopt;
}

// Finds faults in the fields that truncated sampling adds.
std::optional<std::string> find_truncation_fault(const Segment& s, const SamplingParams& sampling) {
  const bool has_masses = !s.log_masses.empty(), has_sets = !s.kept_counts.empty();
  const size_t n = s.tokens.size();
  if ((has_masses && s.log_masses.size() != n) || (has_sets && s.kept_counts.size() != n))
    return fmt::format("{} tokens but {} masses and {} sets of kept tokens", n, s.log_masses.size(),
                       s.kept_counts.size());
  if ((has_masses || has_sets) && !truncates(sampling))
    return "its sampling cuts nothing, but it says what was kept";
  std::span<const TokenId> left = s.kept_ids;
  for (size_t i = 0; i < n; ++i) {
    const bool sampled = s.roles[i] == TokenRole::kSampled;
    // Written so that a NaN fails as well.
    if (has_masses &&
        !(sampled ? s.log_masses[i] <= 0 && std::isfinite(s.log_masses[i]) : s.log_masses[i] == 0))
      return fmt::format("token {} has a kept share of logarithm {}", i, s.log_masses[i]);
    if (!has_sets) continue;
    const int32_t count = s.kept_counts[i];
    // A draw is made from something, and from what is there.
    if (count < 0 || (count > 0) != sampled || static_cast<size_t>(count) > left.size())
      return fmt::format("token {} was drawn from {} of {} ids", i, count, left.size());
    if (!sampled) continue;
    if (auto fault = find_set_fault(left.first(static_cast<size_t>(count)), s.tokens[i], i))
      return fault;
    left = left.subspan(static_cast<size_t>(count));
  }
  if (!left.empty()) return fmt::format("{} ids were kept for no token", left.size());
  return std::nullopt;
}

std::optional<std::string> find_teacher_fault(const Segment& s) {
  if (s.teacher_logprobs.size() != (s.teacher_logprobs.empty() ? 0 : s.tokens.size()) ||
      s.teacher_top_ids.size() != s.teacher_top_logprobs.size())
    return fmt::format("{} tokens but {} scores of a teacher, and {} of {} of its likeliest tokens",
                       s.tokens.size(), s.teacher_logprobs.size(), s.teacher_top_logprobs.size(),
                       s.teacher_top_ids.size());
  for (size_t i = 0; i < s.teacher_logprobs.size(); ++i) {
    const float score = s.teacher_logprobs[i];
    if (!(s.roles[i] == TokenRole::kSampled ? std::isfinite(score) && score <= 0 : score == 0))
      return fmt::format("a teacher gives token {} the log-probability {}", i, score);
  }
  if (s.teacher_top_ids.empty()) return std::nullopt;
  const auto sampled = static_cast<size_t>(std::ranges::count(s.roles, TokenRole::kSampled));
  if (s.teacher_logprobs.empty() || sampled == 0 || s.teacher_top_ids.size() % sampled != 0)
    return fmt::format("{} likeliest tokens of a teacher for {} sampled tokens",
                       s.teacher_top_ids.size(), sampled);
  for (size_t i = 0; i < s.teacher_top_ids.size(); ++i) {
    const float score = s.teacher_top_logprobs[i];
    if (s.teacher_top_ids[i] < 0 || !std::isfinite(score) || score > 0)
      return fmt::format("a teacher gives id {} the log-probability {}", s.teacher_top_ids[i],
                         score);
  }
  return std::nullopt;
}

std::optional<std::string> find_shape_fault(const ExpertShape& shape) {
  const auto [layers, chosen, experts] = shape;
  constexpr int32_t kMost = std::numeric_limits<uint16_t>::max();
  if (shape == ExpertShape{} ||
      (layers >= 1 && layers <= kMost && chosen >= 1 && chosen <= experts && experts <= kMost))
    return std::nullopt;
  return fmt::format("choices of {} of {} experts in {} layers", chosen, experts, layers);
}

// Finds faults in the choices of experts; `shape` itself has none.
std::optional<std::string> find_choice_fault(const Segment& s, const ExpertShape& shape) {
  if (s.choices.empty()) return std::nullopt;
  const int64_t size = std::ssize(s.choices), per_token = shape.per_token();
  if (per_token == 0 || size % per_token != 0 || size / per_token > std::ssize(s.tokens))
    return fmt::format("{} choices of {} tokens, {} each", size, s.tokens.size(), per_token);
  const auto chosen = static_cast<size_t>(shape.chosen);
  for (size_t i = 0; i < s.choices.size(); i += chosen) {
    const auto ids = std::span(s.choices).subspan(i, chosen);
    if (ids.back() >= shape.experts ||
        std::ranges::adjacent_find(ids, std::greater_equal()) != ids.end())
      return fmt::format("the experts of token {} do not ascend, or are not below {}",
                         static_cast<int64_t>(i) / per_token, shape.experts);
  }
  return std::nullopt;
}

// Each run of sampled tokens begins with a turn; turns begin at sampled tokens only.
std::optional<std::string> find_turn_fault(const Segment& segment) {
  size_t turn = 0;
  const auto begins = [&](size_t i) {
    return turn < segment.turn_begins.size() &&
           segment.turn_begins[turn] == static_cast<int64_t>(i);
  };
  bool sampled = false;
  for (size_t i = 0; i < segment.tokens.size(); ++i) {
    const bool was_sampled = std::exchange(sampled, segment.roles[i] == TokenRole::kSampled);
    if (begins(i) ? !sampled : sampled && !was_sampled)
      return fmt::format("the turns do not begin where its roles say, at token {}", i);
    if (begins(i)) ++turn;
  }
  if (turn < segment.turn_begins.size())
    return fmt::format("turn {} begins at token {}", turn, segment.turn_begins[turn]);
  return std::nullopt;
}

// Finds faults in the turn numbers of a segment whose answers begin where its roles say. `answered`
// are the turns that earlier segments answer.
std::optional<std::string> find_number_fault(const Segment& segment, int32_t num_turns,
                                             std::vector<bool>& answered) {
  const std::vector<int32_t>& numbers = segment.turn_numbers;
  if (numbers.empty()) return std::nullopt;
  if (numbers.size() != segment.turn_begins.size())
    return fmt::format("{} answers but the numbers of {} turns", segment.turn_begins.size(),
                       numbers.size());
  if (numbers.front() < 0 || numbers.back() >= num_turns ||
      std::ranges::adjacent_find(numbers, std::greater_equal()) != numbers.end())
    return fmt::format("the numbers of its turns do not ascend from 0 to below {}", num_turns);
  answered.resize(static_cast<size_t>(num_turns));
  for (const int32_t number : numbers) {
    if (answered[static_cast<size_t>(number)])
      return fmt::format("turn {} is answered in two segments", number);
    answered[static_cast<size_t>(number)] = true;
  }
  return std::nullopt;
}

// `contexts` holds the context length (inherited and own tokens) of every earlier segment.
std::optional<std::string> find_segment_fault(const Trajectory& trajectory, const Segment& segment,
                                              const std::vector<int64_t>& contexts) {
  const auto index = static_cast<int64_t>(contexts.size());
  if (segment.parent < -1 || segment.parent >= index) {
    return fmt::format("parent {} is not an earlier segment", segment.parent);
  }
  const int64_t available = segment.parent < 0 ? 0 : contexts[static_cast<size_t>(segment.parent)];
  if (segment.parent_tokens < 0 || segment.parent_tokens > available) {
    return fmt::format("it continues {} tokens of a parent context of {}", segment.parent_tokens,
                       available);
  }
  const size_t n = segment.tokens.size();
  if (segment.roles.size() != n || segment.logprobs.size() != n || segment.versions.size() != n ||
      segment.classes.size() != n) {
    return fmt::format(
        "{} tokens but {} roles, {} log-probabilities, {} versions, {} numerics classes", n,
        segment.roles.size(), segment.logprobs.size(), segment.versions.size(),
        segment.classes.size());
  }
  for (size_t i = 0; i < n; ++i) {
    if (auto fault = find_token_fault(segment, i, trajectory.numerics_classes.size())) return fault;
  }
  if (auto fault = find_truncation_fault(segment, trajectory.sampling)) return fault;
  if (auto fault = find_teacher_fault(segment)) return fault;
  if (auto fault = find_choice_fault(segment, trajectory.experts)) return fault;
  return find_turn_fault(segment);
}

std::optional<std::string> find_facts_fault(const EpisodeFacts& facts) {
  if (auto fault = find_lease_fault(facts.lease)) return fault;
  if (facts.lane > Lane::kEval) return fmt::format("lane {}", static_cast<int>(facts.lane));
  if (facts.outcome > Outcome::kTaskBroken) {
    return fmt::format("outcome {}", static_cast<int>(facts.outcome));
  }
  if (facts.reward && !std::isfinite(*facts.reward)) {
    return fmt::format("reward {}", *facts.reward);
  }
  if (facts.turns < 0) return fmt::format("{} turns", facts.turns);
  // A NaN fails here as well.
  if (!(facts.env_seconds >= 0 && facts.generate_seconds >= 0)) {
    return fmt::format("{} s in the environment, {} s in generation", facts.env_seconds,
                       facts.generate_seconds);
  }
  // A single NaN would spoil the mean of its whole step.
  for (const auto& [key, value] : facts.metrics) {
    if (!std::isfinite(value)) return fmt::format("metric '{}' is {}", key, value);
  }
  return find_sampling_fault(facts.sampling);
}

std::optional<std::string> find_wait_fault(const Trajectory& trajectory) {
  const std::vector<float>& waits = trajectory.env_waits;
  if (std::ssize(waits) > int64_t{trajectory.turns} + 1)
    return fmt::format("{} waits for the environment in {} turns", waits.size(), trajectory.turns);
  const auto bad = std::ranges::find_if(waits, [](float seconds) { return !(seconds >= 0); });
  if (bad == waits.end()) return std::nullopt;
  return fmt::format("wait {} for the environment took {} s", bad - waits.begin(), *bad);
}

std::optional<std::string> find_credit_fault(const Trajectory& trajectory) {
  const auto turns = static_cast<size_t>(trajectory.turns);
  const auto& [rewards, anchors] = std::tie(trajectory.turn_rewards, trajectory.turn_anchors);
  for (const auto& [size, what] :
       {std::pair{rewards.size(), "rewards"}, std::pair{anchors.size(), "anchors"}})
    if (size != 0 && size != turns) return fmt::format("{} {} of {} turns", size, what, turns);
  const auto bad = std::ranges::find_if(rewards, [](double r) { return !std::isfinite(r); });
  if (bad == rewards.end()) return std::nullopt;
  return fmt::format("turn {} has the reward {}", bad - rewards.begin(), *bad);
}

template <class Visit>
void for_each_sampled(const Trajectory& trajectory, const Visit& visit) {
  for (const Segment& segment : trajectory.segments) {
    for (size_t i = 0; i < segment.roles.size(); ++i) {
      if (segment.roles[i] == TokenRole::kSampled) visit(segment, i);
    }
  }
}

}  // namespace

std::vector<TokenId> context_of(std::span<const Segment> segments, size_t index) {
  const Segment& segment = segments[index];
  std::vector<TokenId> tokens;
  // Recursion ends: parents come before their children.
  if (segment.parent >= 0) {
    tokens = context_of(segments, static_cast<size_t>(segment.parent));
    tokens.resize(static_cast<size_t>(segment.parent_tokens));
  }
  tokens.insert(tokens.end(), segment.tokens.begin(), segment.tokens.end());
  return tokens;
}

std::vector<TokenId> begin_scores(std::span<Segment> segments, size_t index) {
  Segment& segment = segments[index];
  segment.teacher_logprobs.assign(segment.tokens.size(), 0.0f);
  segment.teacher_top_ids.clear(), segment.teacher_top_logprobs.clear();
  const auto last =
      std::ranges::find(segment.roles.rbegin(), segment.roles.rend(), TokenRole::kSampled);
  if (last == segment.roles.rend()) return {};
  std::vector<TokenId> context = context_of(segments, index);
  context.resize(context.size() - static_cast<size_t>(last - segment.roles.rbegin()));
  return context;
}

void append_said(Segment& segment, std::span<const TokenId> tokens, TokenRole role) {
  segment.tokens.insert(segment.tokens.end(), tokens.begin(), tokens.end());
  const size_t size = segment.tokens.size();
  segment.roles.resize(size, role);
  segment.logprobs.resize(size, 0.0f);
  segment.versions.resize(size, -1);
  segment.classes.resize(size, -1);
  segment.log_masses.resize(size, 0.0f);
  segment.kept_counts.resize(size, 0);
}

void append_sampled(Segment& segment, const GeneratedToken& token, int32_t numerics_class) {
  segment.tokens.push_back(token.id);
  segment.roles.push_back(TokenRole::kSampled);
  segment.logprobs.push_back(token.logprob);
  segment.versions.push_back(token.version);
  segment.classes.push_back(numerics_class);
  segment.log_masses.push_back(token.log_mass);
  segment.kept_counts.push_back(static_cast<int32_t>(token.kept.size()));
  segment.kept_ids.insert(segment.kept_ids.end(), token.kept.begin(), token.kept.end());
}

void drop_empty_sets(Segment& segment) {
  // Whether sampling truncated is known at the end: a mass of 1 at every token says that nothing
  // was cut, and such columns are no part of the body.
  if (std::ranges::count(segment.log_masses, 0.0f) == std::ssize(segment.log_masses))
    segment.log_masses.clear();
  if (segment.kept_ids.empty()) segment.kept_counts.clear();
}

std::vector<int32_t> answers_of_tokens(std::span<const TokenRole> roles,
                                       std::span<const int32_t> turn_begins) {
  std::vector<int32_t> answers(roles.size(), -1);
  size_t begun = 0;
  for (size_t i = 0; i < roles.size(); ++i) {
    if (begun < turn_begins.size() && std::cmp_equal(turn_begins[begun], i)) ++begun;
    if (roles[i] == TokenRole::kSampled) answers[i] = static_cast<int32_t>(begun) - 1;
  }
  return answers;
}

uint64_t anchor_of(std::string_view state) {
  const uint64_t digest = short_digest_of(state);
  // 0 stands for a state without a name.
  return digest == 0 ? 1 : digest;
}

int64_t num_drawn_from(const Segment& segment) {
  const auto& roles = segment.roles;
  const auto last = std::find(roles.rbegin(), roles.rend(), TokenRole::kSampled);
  return std::max<int64_t>(0, roles.rend() - last - 1);
}

int64_t Trajectory::num_tokens() const {
  int64_t count = 0;
  for (const Segment& segment : segments) count += static_cast<int64_t>(segment.tokens.size());
  return count;
}

int64_t Trajectory::num_sampled() const {
  int64_t count = 0;
  for_each_sampled(*this, [&](const Segment&, size_t) { ++count; });
  return count;
}

int64_t Trajectory::min_version() const {
  int64_t version = -1;
  for_each_sampled(*this, [&](const Segment& segment, size_t i) {
    // -1 stands for none yet, and must not win.
    version = version < 0 ? segment.versions[i] : std::min(version, segment.versions[i]);
  });
  return version;
}

int64_t Trajectory::max_version() const {
  int64_t version = -1;
  for_each_sampled(*this, [&](const Segment& segment, size_t i) {
    version = std::max(version, segment.versions[i]);
  });
  return version;
}

TrajectoryHeader header_of(const Trajectory& trajectory) {
  return {static_cast<const EpisodeFacts&>(trajectory), trajectory.num_tokens(),
          trajectory.num_sampled(), trajectory.min_version(), trajectory.max_version()};
}

std::optional<std::string> find_fault(const TrajectoryHeader& header) {
  if (auto fault = find_facts_fault(header)) return fault;
  // The numbers that the scheduler decides by before anybody reads the tokens; read_all() proves
  // them against the tokens.
  const bool sampled = header.num_sampled > 0;
  if (header.num_sampled < 0 || header.num_tokens < header.num_sampled ||
      sampled != (header.min_version >= 0) || header.max_version < header.min_version) {
    return fmt::format("{} of {} tokens sampled by versions {}..{}", header.num_sampled,
                       header.num_tokens, header.min_version, header.max_version);
  }
  return std::nullopt;
}

std::optional<std::string> find_fault(const Trajectory& trajectory) {
  if (auto fault = find_facts_fault(trajectory)) return fault;
  // A class is compared by its name: two without one would count as the same.
  if (std::ranges::find(trajectory.numerics_classes, "") != trajectory.numerics_classes.end())
    return "a numerics class without a name";
  if (std::ssize(trajectory.segments) > kMaxSegments)
    return fmt::format("{} segments, at most {} are taken", trajectory.segments.size(),
                       kMaxSegments);
  if (auto fault = find_shape_fault(trajectory.experts)) return fault;
  if (auto fault = find_wait_fault(trajectory)) return fault;
  if (auto fault = find_credit_fault(trajectory)) return fault;
  std::vector<int64_t> contexts;
  std::vector<bool> answered;
  // A parent comes before its children, so one pass knows every context.
  for (const Segment& segment : trajectory.segments) {
    auto fault = find_segment_fault(trajectory, segment, contexts);
    if (!fault) fault = find_number_fault(segment, trajectory.turns, answered);
    if (fault) return fmt::format("segment {}: {}", contexts.size(), *fault);
    // Inherited tokens count: a child may branch off inside of what its parent had inherited.
    contexts.push_back(segment.parent_tokens + static_cast<int64_t>(segment.tokens.size()));
  }
  return std::nullopt;
}

}  // namespace tailrace
