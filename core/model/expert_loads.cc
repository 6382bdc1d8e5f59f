#include "core/model/expert_loads.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/base/check.h"
#include "kernels/ops/router.h"

namespace tailrace {

ExpertLoads::ExpertLoads(const ModelConfig& config)
    : num_experts(config.num_experts),
      choices(static_cast<size_t>(config.num_sparse_layers() * num_experts)),
      losses(choices.size()) {}

int64_t ExpertLoads::num_layers() const {
  return num_experts == 0 ? 0 : std::ssize(choices) / num_experts;
}

namespace {

template <class Values>
auto of_layer(Values& values, int64_t layer, int64_t experts) {
  return std::span(values).subspan(static_cast<size_t>(layer * experts),
                                   static_cast<size_t>(experts));
}

}  // namespace

std::span<int64_t> ExpertLoads::choices_of(int64_t layer) {
  return of_layer(choices, layer, num_experts);
}
std::span<const int64_t> ExpertLoads::choices_of(int64_t layer) const {
  return of_layer(choices, layer, num_experts);
}
std::span<double> ExpertLoads::losses_of(int64_t layer) {
  return of_layer(losses, layer, num_experts);
}

void ExpertLoads::compare(ConstMatrix probabilities, std::span<const float> bias,
                          MatrixView<const int32_t> chosen) {
  std::array<float, kMaxExperts> of_all;
  const auto scores = std::span(of_all).first(static_cast<size_t>(num_experts));
  for (int64_t t = 0; t < chosen.rows; ++t) {
    const std::span ids(chosen.row(t), static_cast<size_t>(chosen.cols));
    // A token without given choices has this mark in its whole row; its choices are the router's
    // own.
    if (ids.front() == kChoose) continue;
    for (size_t e = 0; e < scores.size(); ++e)
      scores[e] = probabilities.row(t)[e] + (bias.empty() ? 0 : bias[e]);
    // Among equal scores the router takes the lower id (kernels/ops/router.h).
    const auto goes_before = [&](size_t a, size_t b) {
      return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    };
    given += chosen.cols;
    for (const int32_t id : ids) {
      int64_t before = 0;
      for (size_t e = 0; e < scores.size(); ++e) before += goes_before(e, static_cast<size_t>(id));
      // The router would choose an expert if fewer than k others go before it.
      moved += before >= chosen.cols;
    }
  }
}

void ExpertLoads::clear() {
  tokens = given = moved = 0;
  std::ranges::fill(choices, 0);
  std::ranges::fill(losses, 0.0);
}

void ExpertLoads::add(const ExpertLoads& other) {
  TR_CHECK(choices.size() == other.choices.size());
  tokens += other.tokens;
  given += other.given;
  moved += other.moved;
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i] += other.choices[i];
    losses[i] += other.losses[i];
  }
}

double ExpertLoads::balance_loss() const {
  if (tokens == 0 || num_layers() == 0) return 0;
  return std::accumulate(losses.begin(), losses.end(), 0.0) /
         static_cast<double>(tokens * num_layers());
}

ExpertLoads::Peak ExpertLoads::peak() const {
  Peak peak;
  const auto layers = static_cast<double>(num_layers());
  for (int64_t layer = 0; layer < num_layers(); ++layer) {
    const std::span<const int64_t> counts = choices_of(layer);
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    // A layer that saw no tokens has no ratio, and counts as 0 in the mean.
    if (sum == 0) continue;
    const double ratio = static_cast<double>(*std::ranges::max_element(counts) * num_experts) /
                         static_cast<double>(sum);
    peak.mean += ratio / layers;
    peak.worst = std::max(peak.worst, ratio);
  }
  return peak;
}

double ExpertLoads::idle_share() const {
  if (choices.empty()) return 0;
  return static_cast<double>(std::ranges::count(choices, 0)) / static_cast<double>(choices.size());
}

}  // namespace tailrace
