#include "reward/command/weighted.h"

#include <algorithm>
#include <exception>
#include <future>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "reward/command/retold.h"
#include "reward/judge.h"

namespace tailrace {
namespace {

class WeightedVerifier final : public Verifier {
 public:
  explicit WeightedVerifier(std::vector<WeightedPart> parts) : parts_(std::move(parts)) {}

  Result<Score> score(const std::string& evidence, Time budget) const override {
    const auto retold = RetoldEpisode::read(evidence);
    if (!retold) return retold.failure();
    const std::optional<std::string>& own = retold.value().evidence;
    for (const WeightedPart& part : parts_)
      if (!part.is_retold && !own)
        return Failure{fmt::format(
            "{}: the environment rewards by itself and gives a verifier nothing to score",
            part.name)};
    const std::vector<Result<Score>> scores = score_parts(evidence, own, budget);
    Score sum;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const WeightedPart& part = parts_[i];
      const Result<Score>& score = scores[i];
      if (!score)
        return Failure{.message = fmt::format("{}: {}", part.name, score.failure().message),
                       .is_final = score.failure().is_final};
      sum.reward += part.weight * score.value().reward;
      sum.metrics.emplace_back("reward_" + part.name, score.value().reward);
      for (const auto& [name, value] : score.value().metrics)
        sum.metrics.emplace_back(fmt::format("{}_{}", part.name, name), value);
    }
    if (!is_reward(sum.reward)) return Failure{"the weighted sum: " + no_reward(sum.reward)};
    // Part a with the metric b_c, and part a_b with the metric c.
    std::set<std::string> names;
    for (const auto& [name, value] : sum.metrics)
      if (!names.insert(name).second)
        return Failure{fmt::format("the parts give the metric {} twice. Rename one of them", name)};
    return sum;
  }

  Time least_budget() const override {
    Time sum{0}, most{0};  // of those that are asked one after the other, and at once
    for (const WeightedPart& part : parts_) {
      const Time least = part.verifier->least_budget();
      if (part.is_retold)
        most = std::max(most, least);
      else
        sum += least;
    }
    return std::max(sum, most);
  }
  Result<void> check_machine() const override {
    return each([](const Verifier& verifier) { return verifier.check_machine(); });
  }
  Result<void> check_hidden(const std::filesystem::path& path) const override {
    return each([&](const Verifier& verifier) { return verifier.check_hidden(path); });
  }
  Result<void> check_row(const std::string& row, Time budget) const override {
    return each([&](const Verifier& verifier) { return verifier.check_row(row, budget); });
  }

 private:
  // A verifier may come from a plugin: what it throws is its failure.
  static Result<Score> score_part(const WeightedPart& part, const std::string& evidence,
                                  Time budget) {
    try {
      Result<Score> score = part.verifier->score(evidence, budget);
      if (score && !is_reward(score.value().reward))
        return Failure{no_reward(score.value().reward)};
      return score;
    } catch (const std::exception& error) {
      return Failure{error.what()};
    }
  }

  // Programs work at the same time, each within the whole budget. Verifiers run on this thread,
  // whose calls are watched, one after the other.
  std::vector<Result<Score>> score_parts(const std::string& evidence,
                                         const std::optional<std::string>& own, Time budget) const {
    const Time begin = steady_now();
    std::vector<std::future<Result<Score>>> asked(parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i)
      if (parts_[i].is_retold)
        asked[i] = std::async(parts_.size() > 1 ? std::launch::async : std::launch::deferred,
                              [&, i] { return score_part(parts_[i], evidence, budget); });
    std::vector<Result<Score>> scores;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Time left = std::max(Time{0}, budget - (steady_now() - begin));
      scores.push_back(parts_[i].is_retold ? asked[i].get() : score_part(parts_[i], *own, left));
    }
    return scores;
  }

  template <class Ask>
  Result<void> each(const Ask& ask) const {
    for (const WeightedPart& part : parts_)
      if (const Result<void> fit = ask(*part.verifier); !fit)
        return Failure{fmt::format("{}: {}", part.name, fit.failure().message)};
    return {};
  }

  const std::vector<WeightedPart> parts_;
};

}  // namespace

std::unique_ptr<Verifier> make_weighted_verifier(std::vector<WeightedPart> parts) {
  return std::make_unique<WeightedVerifier>(std::move(parts));
}

}  // namespace tailrace
