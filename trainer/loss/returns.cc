#include "trainer/loss/returns.h"

#include <cmath>

#include "kernels/base/check.h"
#include "trainer/loss/advantage.h"

namespace tailrace {

// Schulman et al. 2016: A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t.
// Returns are A_t + V_t, so that they agree with the advantages for any lambda.
void gae(std::span<const double> rewards, std::span<const double> values, double bootstrap,
         double gamma, double lambda, std::span<double> advantages, std::span<double> returns) {
  const size_t n = rewards.size();
  TR_CHECK(values.size() == n && advantages.size() == n && returns.size() == n, "{} tokens", n);
  double next_value = bootstrap, next_advantage = 0;
  for (size_t t = n; t-- > 0;) {
    const double delta = rewards[t] + gamma * next_value - values[t];
    next_advantage = delta + gamma * lambda * next_advantage;
    next_value = values[t];
    advantages[t] = next_advantage;
    returns[t] = next_advantage + values[t];
  }
}

void add_rewards_to_go(std::span<const double> token_rewards, double gamma,
                       std::span<double> advantages) {
  TR_CHECK(token_rewards.size() == advantages.size(), "{} of {}", token_rewards.size(),
           advantages.size());
  double to_go = 0;
  for (size_t t = token_rewards.size(); t-- > 0;) {
    to_go = token_rewards[t] + gamma * to_go;
    advantages[t] += to_go;
  }
}

void whiten(std::span<double> values) {
  if (values.size() < 2) return;
  constexpr double kEps = 1e-8;
  const auto [mean, std] = mean_std(values);
  const double scale = 1 / std::sqrt(std * std + kEps);
  for (double& value : values) value = (value - mean) * scale;
}

}  // namespace tailrace
