#include "cli/view/progress.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tailrace {
namespace {

MetricsRow step_row(int64_t step) {
  return {.step = step,
          .version = step - 1,
          .unix_seconds = 1000 + 2.0 * static_cast<double>(step),
          .values = {{"reward/mean", 0.5},
                     {"env/success", 0.64},
                     {"rollout/response_tokens/mean", 23.44},
                     {"perf/tokens_per_s", 18230.4}}};
}

ProgressState state_of(int64_t steps) {
  ProgressState state{"quickstart", 80, {}};
  for (int64_t step = 1; step <= steps; ++step) state.rows.push_back(step_row(step));
  return state;
}

int columns_of(const std::string& line) {
  int columns = 0;
  for (char c : line) columns += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return columns;
}

TEST(SecondsLeft, CountsTheStepsThatAreNotDone) {
  EXPECT_LT(seconds_left(state_of(1)), 0);
  EXPECT_EQ(seconds_left(state_of(11)), 2 * 69);
  EXPECT_EQ(seconds_left(state_of(80)), 0);
}

TEST(ProgressLine, TellsAStepAnEvaluationAndTheWarmUp) {
  ProgressState state = state_of(12);
  EXPECT_EQ(progress_line(state, state.rows.back()),
            "step 12/80  reward 0.500  success 0.64  length 23.4  18.23k tokens/s  2m16s left");
  MetricsRow eval{.step = 20, .values = {{"eval/reward", 0.9}, {"eval/success", 0.9375}}};
  EXPECT_EQ(progress_line(state, eval), "held-out at step 20:  reward 0.900  success 0.938");
  MetricsRow warm_up{.step = 40, .version = -1, .values = {{"sft/loss", 1.2345}}};
  EXPECT_EQ(progress_line(state, warm_up), "supervised update 40  loss 1.234");
  const std::vector<std::pair<std::string, double>> held_out = {{"sft/eval_loss", 1.5},
                                                                {"sft/eval_token_accuracy", 0.25}};
  warm_up.values.insert(warm_up.values.end(), held_out.begin(), held_out.end());
  EXPECT_EQ(progress_line(state, warm_up),
            "supervised update 40  loss 1.234  held-out loss 1.500  token accuracy 0.25");
  EXPECT_EQ(progress_line(state, {.step = 0, .version = -1, .values = held_out}),
            "supervised update 0  held-out loss 1.500  token accuracy 0.25");
  EXPECT_EQ(progress_line(state, MetricsRow{}), "");
}

TEST(ProgressLine, TellsHowManySupervisedUpdatesAndSecondsAreLeft) {
  ProgressState state = state_of(0);
  for (int64_t update : {0, 44, 88, 132}) {
    MetricsRow row{.step = update,
                   .version = -1,
                   .unix_seconds = 50 + 0.5 * static_cast<double>(update),
                   .values = {{"sft/updates", 2241}}};
    // The first is measured before there is an update.
    row.values.emplace_back(update == 0 ? "sft/eval_loss" : "sft/loss", 1.726);
    state.rows.push_back(row);
    if (update == 0) {
      EXPECT_EQ(progress_line(state, row), "supervised update 0/2241  held-out loss 1.726");
    }
  }
  EXPECT_EQ(progress_line(state, state.rows.back()),
            "supervised update 132/2241  loss 1.726  17m35s left");
}

TEST(ProgressLine, TellsAnUpdateOnPreferencesAndOfARewardModel) {
  ProgressState state = state_of(0);
  // Each stage has its own pace.
  for (const auto& [stage, kind] : {std::pair{1.0, "reward_model"}, {2.0, "preference"}})
    for (int64_t update : {1, 2, 3}) {
      const bool pairs = kind == std::string("preference");
      MetricsRow row{.step = update,
                     .version = -1,
                     .unix_seconds = 100 * stage + 2 * stage * static_cast<double>(update),
                     .values = {{fmt::format("{}/loss", kind), 0.6875},
                                {pairs ? "rewards/accuracies" : "reward_model/accuracy", 0.75},
                                {fmt::format("{}/updates", kind), 13}}};
      if (stage > 1) row.values.emplace_back("stage", stage);
      state.rows.push_back(row);
    }
  EXPECT_EQ(progress_line(state, state.rows[2]),
            "reward model update 3/13  loss 0.688  accuracy 0.75  20s left");
  EXPECT_EQ(progress_line(state, state.rows[5]),
            "preference update 3/13  loss 0.688  accuracy 0.75  40s left");
  MetricsRow held_out{.step = 0,
                      .version = -1,
                      .values = {{"preference/eval_loss", 0.5}, {"eval_rewards/accuracies", 0.25}}};
  EXPECT_EQ(progress_line(state, held_out),
            "preference update 0  held-out loss 0.500  accuracy 0.25");
  // Unpaired rows have none.
  held_out.values.pop_back();
  EXPECT_EQ(progress_line(state, held_out), "preference update 0  held-out loss 0.500");
  EXPECT_EQ(progress_line(state, {.step = 2,
                                  .version = -1,
                                  .values = {{"reward_model/eval_loss", 0.5},
                                             {"reward_model/eval_accuracy", 1}}}),
            "reward model update 2  held-out loss 0.500  accuracy 1.00");
}

TEST(ProgressLine, TellsTheRewardOfEachDataset) {
  ProgressState state = state_of(12);
  MetricsRow row{.step = 12,
                 .values = {{"reward/mean", 0.5},
                            {"reward/grid/mean", 0.625},
                            {"reward/sums/mean", 0.125},
                            {"reward/std", 1}}};
  EXPECT_EQ(progress_line(state, row),
            "step 12/80  reward 0.500 (grid 0.62, sums 0.12)  2m16s left");
  MetricsRow eval{.step = 12,
                  .values = {{"eval/reward", 0.5}, {"eval/grid/reward", 1}, {"eval/success", 1}}};
  EXPECT_EQ(progress_line(state, eval),
            "held-out at step 12:  reward 0.500 (grid 1.00)  success 1.000");
}

TEST(ProgressBlock, FitsTheTerminal) {
  ProgressState state = state_of(40);
  state.rows.push_back({.step = 40, .values = {{"eval/success", 0.75}}});
  for (int columns : {20, 60, 80, 200}) {
    auto lines = progress_block(state, columns);
    EXPECT_EQ(lines.size(), 4u);
    for (const auto& line : lines) EXPECT_LE(columns_of(line), columns) << line;
  }
  auto lines = progress_block(state, 100);
  EXPECT_EQ(lines[0].substr(0, 24), "quickstart  step 40/80  ");
  EXPECT_EQ(lines[3], "  held-out at step 40:  success 0.750");
  EXPECT_EQ(progress_block(ProgressState{"a", 5, {}}, 80),
            (std::vector<std::string>{"a  starting"}));
}

std::string written(std::FILE* file) {
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  return text;
}

TEST(ProgressView, WritesPlainLinesWhereThereIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  {
    ProgressView view(file, false, "run", 80);
    view.say("starting");
    view.add(step_row(1));
  }
  EXPECT_EQ(written(file),
            "starting\nstep 1/80  reward 0.500  success 0.64  length 23.4  18.23k tokens/s\n");
  std::fclose(file);
}

TEST(ProgressView, SaysAFindingOnceWhenItAppears) {
  for (const bool terminal : {false, true}) {
    std::FILE* file = std::tmpfile();
    {
      ProgressView view(file, terminal, "run", 80);
      for (int64_t step = 1; step <= 20; ++step) {
        MetricsRow row = step_row(step);
        row.values.emplace_back("rollout/zero_signal_frac", step == 4 ? 0.99 : 1);
        row.values.emplace_back("reward/min", 0);
        row.values.emplace_back("reward/max", 1);
        view.add(row);
        view.add({.step = step, .values = {{"eval/reward", 0.9}}});  // is no step
      }
    }
    const std::string text = written(file);
    const size_t at = text.find("warning: no_signal since step 1: ");
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_GT(at, text.find("step 3/80"));
    EXPECT_LT(at, text.find("step 4/80"));
    EXPECT_EQ(text.find("warning", at + 1), std::string::npos) << "it came back in step 7";
    std::fclose(file);
  }
}

TEST(ProgressView, DoesNotSayAgainWhatAnEarlierLaunchHasSaid) {
  Health health;
  MetricsRow row = step_row(1);
  row.values.emplace_back("policy/updates_skipped", 1);
  ASSERT_EQ(health.add(row).size(), 1u);
  std::FILE* file = std::tmpfile();
  {
    ProgressView view(file, false, "run", 80, health);
    row.step = 2;
    view.add(row);
  }
  EXPECT_EQ(written(file).find("warning"), std::string::npos);
  std::fclose(file);
}

TEST(ProgressView, SurvivesAReaderThatGoesAway) {
  std::FILE* file = std::fopen("/dev/full", "w");
  ProgressView view(file, false, "run", 80);
  view.say("lost");
  view.add(step_row(1));
  view.finish();
  EXPECT_EQ(std::fflush(file), 0) << "what is lost is no error later";
  std::fclose(file);
}

TEST(ProgressView, RedrawsItsBlockOnATerminal) {
  std::FILE* file = std::tmpfile();
  {
    ProgressView view(file, true, "run", 80);
    view.add(step_row(1));
    view.add(step_row(2));
    view.finish();
    view.say("done");
  }
  std::string text = written(file);
  EXPECT_NE(text.find("\x1b[3A\x1b[J"), std::string::npos);  // the block of three lines, once
  EXPECT_EQ(text.find("\x1b["), text.find("\x1b[3A"));
  EXPECT_GT(text.find("done"), text.find("step 2/80"));
  std::fclose(file);
}

}  // namespace
}  // namespace tailrace
