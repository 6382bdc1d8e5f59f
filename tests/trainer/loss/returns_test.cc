#include "trainer/loss/returns.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/loss/tokens.h"
#include "trainer/loss/advantage.h"

namespace tailrace {
namespace {

using namespace testing;  // NOLINT: the columns of a loss call

TEST(Returns, ReinforcePlusPlusMatchesGoldenRfpp1) {
  // Rewards 1 and 0 on the last tokens, minus 0.1 k1 on each.
  std::vector<double> first = {1, 1}, second = {0, 0, 0};
  const std::vector<double> k1_first = {-.01, .005}, k1_second = {-.02, -0.0, -.01};
  add_rewards_to_go(k1_first, 1, first);
  add_rewards_to_go(k1_second, 1, second);
  expect_numbers(first, {.995, 1.005});
  expect_numbers(second, {-.03, -.01, -.01});
  std::vector<double> all = first;
  all.insert(all.end(), second.begin(), second.end());
  whiten(all);
  expect_numbers(all, {1.086327, 1.104283, -0.754145, -0.718233, -0.718233});
}

TEST(Returns, ReinforcePlusPlusBaselineMatchesGoldenRfpp2) {
  const std::vector<double> rewards = {1, 0, 0, 1, 1, 1, 1, 0};
  const std::vector<int32_t> groups = {0, 4, 8};
  const auto centred = group_advantages(AdvantageKind::kGroupMean, 0, rewards, groups).advantage;
  std::vector<double> one_each = centred;
  whiten(one_each);
  expect_numbers(one_each, {1, -1, -1, 1, .5, .5, .5, -1.5});
  // F11: not Lite PPO's raw deviation, .517549.
  EXPECT_GT(std::abs(one_each[0] - centred[0] / .517549), .03);
  std::vector<double> by_token;
  const std::vector<size_t> lengths = {2, 1, 1, 2, 1, 1, 1, 3};
  for (size_t i = 0; i < lengths.size(); ++i)
    by_token.insert(by_token.end(), lengths[i], centred[i]);
  whiten(by_token);
  expect_numbers({by_token[0], by_token[2], by_token[3], by_token[4], by_token[6], by_token[9]},
                 {0.980926, -0.830014, -0.830014, 0.980926, 0.528191, -1.282749});
}

TEST(Returns, WhiteningMatchesGoldenWh1) {
  std::vector<double> values = {1, 2, 4};
  whiten(values);
  expect_numbers(values, {-0.872872, -0.218218, 1.091089});
  std::vector<double> one = {3};
  whiten(one);
  EXPECT_EQ(one[0], 3);
}

TEST(Returns, GaeMatchesGoldenGae1) {
  const std::vector<double> rewards = {0, 0, 1}, values = {.2, .5, .8};
  std::vector<double> advantages(3), returns(3);
  const auto with = [&](double gamma, double lambda) {
    gae(rewards, values, 0, gamma, lambda, advantages, returns);
  };
  with(1, 1);
  expect_numbers(advantages, {.8, .5, .2});
  with(1, .95);
  expect_numbers(advantages, {.7655, .49, .2});
  expect_numbers(returns, {.9655, .99, 1});
  with(.9, .95);
  expect_numbers(advantages, {0.584305, .391, .2});
  expect_numbers(returns, {0.784305, .891, 1});
}

TEST(Returns, GaeOfACutEpisodeGoesOnWithTheValueBehindIt) {
  const std::vector<double> rewards = {0, 0}, values = {.5, .5};
  std::vector<double> advantages(2), returns(2);
  gae(rewards, values, 0, 1, 1, advantages, returns);
  expect_numbers(advantages, {-.5, -.5});
  gae(rewards, values, .5, 1, 1, advantages, returns);
  expect_numbers(advantages, {0, 0});
}

}  // namespace
}  // namespace tailrace
