#include "scheduler/simulator/episodes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "kernels/base/check.h"

namespace tailrace::simulator {
namespace {

uint64_t key_of(uint64_t seed, uint64_t what, Lane lane, const MemberId& member) {
  return mix({seed, what, static_cast<uint64_t>(lane), static_cast<uint64_t>(member.policy),
              static_cast<uint64_t>(member.dataset), static_cast<uint64_t>(member.epoch),
              static_cast<uint64_t>(member.prompt), static_cast<uint64_t>(member.launch),
              static_cast<uint64_t>(member.member)});
}
// A prompt is the same one in every epoch and launch.
uint64_t key_of_prompt(uint64_t seed, Lane lane, const MemberId& member) {
  return mix({seed, 0x70726f6d7074, static_cast<uint64_t>(lane),
              static_cast<uint64_t>(member.policy), static_cast<uint64_t>(member.dataset),
              static_cast<uint64_t>(member.prompt)});
}

double draw(const Distribution& distribution, Rng& rng) {
  double value = distribution.mean;
  if (distribution.kind == Distribution::Kind::kNormal)
    value = std::max(0.0, value + distribution.spread * rng.normal());
  if (distribution.kind == Distribution::Kind::kLogNormal)
    value *= std::exp(distribution.spread * rng.normal());
  return distribution.largest > 0 ? std::min(value, distribution.largest) : value;
}

// Marsaglia and Tsang, 2000; of a shape below 1 by the one above it.
double gamma(double shape, Rng& rng) {
  if (shape < 1) return gamma(shape + 1, rng) * std::pow(1 - rng.uniform(), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = rng.normal(), root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(1 - rng.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

double beta(double mean, double concentration, Rng& rng) {
  if (mean <= 0 || mean >= 1) return std::clamp(mean, 0.0, 1.0);
  const double a = gamma(mean * concentration, rng);
  const double b = gamma((1 - mean) * concentration, rng);
  return a + b > 0 ? a / (a + b) : mean;
}

}  // namespace

int64_t Episode::tokens() const {
  int64_t sum = 0;
  for (const Turn& turn : turns) sum += turn.tokens;
  return sum;
}

int64_t Episode::context() const {
  int64_t sum = prompt_tokens;
  for (const Turn& turn : turns) sum += turn.tokens + turn.env_tokens;
  return sum;
}

bool Episode::cut(int64_t room) {
  for (size_t i = 0; i < turns.size(); ++i) {
    Turn& turn = turns[i];
    const int64_t all = turn.tokens + turn.env_tokens;
    // A token at least is left to the next one.
    const bool is_last = i + 1 == turns.size();
    if (all < room || (is_last && all == room)) {
      room -= all;
      continue;
    }
    turn.tokens = std::min(turn.tokens, room);
    turn.env_tokens = std::min(turn.env_tokens, room - turn.tokens);
    turns.resize(i + 1);
    truncated = true;
    return true;
  }
  return false;
}

Episode DrawnEpisodes::draw(Lane lane, const MemberId& member, int32_t attempt) const {
  const auto dataset = static_cast<size_t>(member.dataset);
  TR_CHECK(dataset < models_.size(), "there is no model of dataset {}", member.dataset);
  const EpisodeModel& model = models_[dataset];
  const LengthModel& length = model.length;
  Rng of_prompt(key_of_prompt(seed_, lane, member));
  const double prompt_log = length.sigma_prompt > 0 ? length.sigma_prompt * of_prompt.normal() : 0;
  const double chance =
      length.endless > 0 ? beta(length.endless, length.endless_concentration, of_prompt) : 0;
  const uint64_t key = key_of(seed_, 0x657069736f6465, lane, member);
  // Two streams: lengths and rewards are the same in each attempt, the times of others are drawn
  // anew.
  Rng rng(key), times(mix({key, static_cast<uint64_t>(attempt)}));
  Episode episode;
  episode.prompt_tokens = model.prompt_tokens;
  const double limit = length.limit > 0 ? static_cast<double>(length.limit) : 1e15;
  double tokens = limit;
  if (!rng.chance(chance)) {
    tokens = std::min(limit,
                      length.median * std::exp(prompt_log + length.sigma_response * rng.normal()));
  }
  episode.truncated = length.limit > 0 && tokens >= limit;
  const auto turns = std::max<int64_t>(1, std::lround(simulator::draw(model.turns, rng)));
  const auto total = std::max<int64_t>(turns, std::lround(tokens));
  episode.reset_seconds = simulator::draw(model.reset, times);
  episode.turns.reserve(static_cast<size_t>(turns));
  for (int64_t i = 0; i < turns; ++i) {
    // Evenly, so that the parts add up to `total` whatever the rest of the division is.
    episode.turns.push_back({.tokens = total * (i + 1) / turns - total * i / turns,
                             .env_seconds = simulator::draw(model.env, times),
                             .env_tokens = i + 1 < turns ? model.env_tokens : 0});
  }
  if (model.room > 0) episode.cut(model.room);
  episode.reward = rng.chance(model.success) ? 1 : 0;
  episode.verify_seconds = simulator::draw(model.verify, times);
  return episode;
}

ReplayedEpisodes::ReplayedEpisodes(std::vector<Record> records, uint64_t seed)
    : records_(std::move(records)), seed_(seed) {
  if (records_.empty()) throw UserError("there are no recorded episodes to replay");
  for (size_t i = 0; i < records_.size(); ++i) {
    by_name_[records_[i].member] = i;
    by_prompt_[{records_[i].member.dataset, records_[i].member.prompt}].push_back(i);
  }
}

Episode ReplayedEpisodes::draw(Lane lane, const MemberId& member, int32_t) const {
  // Recorded names are of training: a held-out sample of the same numbers is another one.
  const auto named = lane == Lane::kTrain ? by_name_.find(member) : by_name_.end();
  if (named != by_name_.end()) return records_[named->second].episode;
  Rng rng(key_of(seed_, 0x7265706c6179, lane, member));
  const auto prompt = by_prompt_.find({member.dataset, member.prompt});
  if (prompt != by_prompt_.end()) {
    const std::vector<size_t>& own = prompt->second;
    return records_[own[static_cast<size_t>(rng.below(std::ssize(own)))]].episode;
  }
  return records_[static_cast<size_t>(rng.below(std::ssize(records_)))].episode;
}

}  // namespace tailrace::simulator
