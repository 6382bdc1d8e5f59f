#include "scheduler/service/run_metrics.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "tests/scheduler/service/fake_workers.h"
#include "tests/scheduler/store/files.h"

namespace tailrace::scheduler {
namespace {

using fakes::make_trajectory;

struct MetricsFixture {
  ScratchFolder folder;
  RunPaths paths{folder.path()};
  Log log{"test", folder.path() / "log"};
  std::vector<std::string> datasets;
  TokenText text;

  RunMetrics open(int64_t frontier) {
    Policy policy;
    policy.frontier = frontier;
    return RunMetrics(paths, policy, 2, datasets, text, log);
  }
  std::vector<MetricsRow> rows() const { return read_metrics(paths.metrics()).value(); }
};

// The policy when this version has just been published.
Policy policy_at(int64_t version, StepStart now = {}, Time handed = {}) {
  Policy policy;
  policy.published = policy.frontier = version;
  policy.step_start = now;
  if (version > 0)
    policy.batches[version] = {.tasks = {}, .datasets = {}, .handed = handed, .used = {}};
  return policy;
}

TEST(RunMetrics, ARowHoldsWhatTheTrainerSentAndWhatTheSchedulerSaw) {
  MetricsFixture f;
  RunMetrics metrics = f.open(-1);
  const StepStart start = {.time = std::chrono::seconds(10),
                           .attempts = {.samples = 6, .lost = 4},
                           .failed = 1,
                           .filtered = {1, 0}};
  const StepStart end = {
      .time = std::chrono::seconds(14),
      .attempts = {.samples = 9, .env_failed = 1, .verifier_failed = 1, .lost = 5},
      .failed = 1,
      .filtered = {1, 1}};
  metrics.on_published(policy_at(0, start), {}, {});
  const std::vector<TrajectoryHeader> batch = {
      header_of(make_trajectory({{.member = 0}, 1}, Lane::kTrain, 0)),
      header_of(make_trajectory({{.member = 1}, 1}, Lane::kTrain, 0))};
  metrics.on_batch(1, batch);
  metrics.on_published(policy_at(1, end, std::chrono::seconds(13)), start,
                       {{"reward/mean", 0.25}, {"time/train", 7.0}});
  ASSERT_EQ(f.rows().size(), 1u);
  const MetricsRow row = f.rows()[0];
  EXPECT_EQ(row.step, 1);
  EXPECT_EQ(row.version, 0);
  EXPECT_EQ(*row.find("reward/mean"), 0.25);
  EXPECT_EQ(*row.find("time/train"), 7.0);  // the trainer's own number wins
  EXPECT_EQ(*row.find("time/step"), 4.0);
  EXPECT_EQ(*row.find("time/rollout"), 3.0);
  EXPECT_EQ(*row.find("perf/tokens_per_s"), 6.0 / 4.0);
  EXPECT_EQ(*row.find("env/success"), 0.5);
  EXPECT_EQ(*row.find("rollout/infra_failed_frac"), 0.5);  // 3 of 6 since the row before
  EXPECT_EQ(*row.find("rollout/filtered_prompts"), 1.0);
  EXPECT_EQ(*row.find("rollout/failed_prompts"), 0.0);
  EXPECT_EQ(*row.find("rollout/failed_samples"), 0.0);
}

TEST(RunMetrics, WhatInstallsTookGoesToTheNextRow) {
  MetricsFixture f;
  RunMetrics metrics = f.open(-1);
  metrics.on_published(policy_at(0), {}, {});
  metrics.on_install({{"fetch_ms", 30}, {"bytes_full", 7}});
  metrics.on_install({{"fetch_ms", 20}, {"bytes_full", 5}, {"stage_ms", std::nan("")}});
  metrics.on_install({{"pause_ms", 4}});
  metrics.on_published(policy_at(1), {}, {});
  metrics.on_published(policy_at(2), {}, {});
  ASSERT_EQ(f.rows().size(), 2u);
  const MetricsRow row = f.rows()[0];
  EXPECT_EQ(*row.find("weights/fetch_ms"), 30.0) << "the slowest";
  EXPECT_EQ(*row.find("weights/bytes_full"), 12.0) << "all";
  EXPECT_EQ(*row.find("weights/pause_ms"), 4.0);
  EXPECT_EQ(row.find("weights/stage_ms"), nullptr);
  EXPECT_EQ(f.rows()[1].find("weights/fetch_ms"), nullptr);
  // A worker that makes names up fills no memory.
  for (int i = 0; i < 1000; ++i) metrics.on_install({{fmt::format("name_{}", i), 1}});
  metrics.on_published(policy_at(3), {}, {});
  const MetricList values = f.rows()[2].values;
  EXPECT_EQ(std::ranges::count_if(
                values, [](const auto& value) { return value.first.starts_with("weights/"); }),
            32);
}

TEST(RunMetrics, ARowCountsTheSamplesThatItsGroupsLack) {
  MetricsFixture f;
  RunMetrics metrics = f.open(-1);
  Policy policy = policy_at(1);
  const TaskId trained{.prompt = 3}, filtered{.prompt = 4};
  policy.batches[1].tasks = {trained};
  // What is not needed is not missed, and what failed as a whole is counted as a prompt.
  const auto members = [](std::initializer_list<Phase> phases) {
    std::vector<Member> all;
    for (const Phase phase : phases) all.emplace_back().phase = phase;
    return all;
  };
  policy.tasks[trained].members =
      members({Phase::kRewarded, Phase::kFailed, Phase::kSurplus, Phase::kFailed});
  policy.tasks[filtered].members = members({Phase::kFailed});
  metrics.on_published(policy, {}, {});
  ASSERT_EQ(f.rows().size(), 1u);
  EXPECT_EQ(*f.rows()[0].find("rollout/failed_samples"), 2);
}

TEST(RunMetrics, ARowHasAPartForEachDataset) {
  MetricsFixture f;
  f.datasets = {"grid", "sums", "held"};
  RunMetrics metrics = f.open(-1);
  std::vector<TrajectoryHeader> batch;
  // Two prompts of grid, one of them without signal; one of sums.
  const auto add = [&](int32_t dataset, int64_t prompt, int32_t member, double reward) {
    batch.push_back(header_of(make_trajectory(
        {{.dataset = dataset, .prompt = prompt, .member = member}, 1}, Lane::kTrain, 0)));
    batch.back().reward = reward;
    batch.back().metrics = {{"success", reward}};
  };
  add(0, 0, 0, 1), add(0, 0, 1, 0), add(0, 1, 0, 1), add(0, 1, 1, 1), add(1, 0, 0, 0.5);
  batch.back().outcome = Outcome::kTruncated;
  // Its verifier says it too: the same episode, once.
  batch.back().metrics = {{"success", 0}, {"success", 0.5}};
  metrics.on_batch(1, batch);
  Policy policy = policy_at(1);
  policy.batches[1].datasets = {2, 1, 0};
  policy.datasets.resize(3);
  policy.datasets[0].broken.found = 2;
  policy.datasets[1].broken.found = 1;
  policy.tasks[{.dataset = 1, .prompt = 7}] = {
      .place = Place::kDone, .step = 1, .end = TaskEnd::kFiltered, .members = {}};
  policy.tasks[{.dataset = 1, .prompt = 8}] = {
      .place = Place::kDone, .step = 2, .end = TaskEnd::kFailed, .members = {}};
  metrics.on_published(policy, {}, {{"reward/mean", 0.7}});
  ASSERT_EQ(f.rows().size(), 1u);
  const MetricsRow row = f.rows()[0];
  EXPECT_EQ(*row.find("reward/mean"), 0.7);
  EXPECT_EQ(*row.find("reward/grid/mean"), 0.75);
  EXPECT_EQ(*row.find("reward/sums/mean"), 0.5);
  EXPECT_EQ(row.find("reward/held/mean"), nullptr) << "nothing of it was trained";
  EXPECT_EQ(*row.find("env/success"), 0.7);
  EXPECT_EQ(*row.find("env/grid/success"), 0.75);
  EXPECT_EQ(*row.find("rollout/grid/prompts"), 2);
  EXPECT_EQ(*row.find("rollout/held/prompts"), 0);
  EXPECT_EQ(*row.find("rollout/grid/zero_signal_frac"), 0.5);
  EXPECT_EQ(*row.find("rollout/grid/truncated_frac"), 0);
  EXPECT_EQ(*row.find("rollout/sums/truncated_frac"), 1);
  EXPECT_EQ(*row.find("rollout/sums/filtered_prompts"), 1);
  EXPECT_EQ(*row.find("rollout/sums/failed_prompts"), 0) << "that is of the next step";
  EXPECT_EQ(*row.find("rollout/broken_tasks"), 3);
  EXPECT_EQ(*row.find("rollout/grid/broken_tasks"), 2);
  // People are shown some of each.
  HandOver next{.worker = "t", .session = 1, .policy = 0, .step = 11, .items = {}};
  for (const auto& [dataset, prompt] : {std::pair{0, 0}, {0, 1}, {0, 2}, {1, 0}})
    next.items.push_back({{{.dataset = dataset, .prompt = prompt}, 1}, 0.5});
  const auto shown = metrics.samples_of_batch(next);
  ASSERT_EQ(shown.size(), 2u);
  EXPECT_EQ(shown[0].lease.member.dataset, 0);
  EXPECT_EQ(shown[1].lease.member.dataset, 1);
  // And one of an evaluation, whose failures are in no mean.
  EvalDone report{.policy = 0, .version = 1, .items = {}};
  report.items = {
      {{{.dataset = 0}, 1}, 1.0}, {{{.dataset = 2}, 1}, 0.25}, {{{.dataset = 2}, 2}, {}}};
  metrics.on_evaluation(report, std::span(batch).first(1));
  const MetricsRow held = f.rows()[1];
  EXPECT_EQ(*held.find("eval/reward"), 0.625);
  EXPECT_EQ(*held.find("eval/grid/reward"), 1);
  EXPECT_EQ(*held.find("eval/grid/success"), 1);
  EXPECT_EQ(*held.find("eval/held/reward"), 0.25);
  EXPECT_EQ(*held.find("eval/held/episodes"), 2);
  EXPECT_EQ(*held.find("eval/held/failed"), 1);
  EXPECT_EQ(held.find("eval/sums/reward"), nullptr);
}

TEST(RunMetrics, RowsThatAreGoneOrDamagedAreNamed) {
  MetricsFixture f;
  {
    RunMetrics metrics = f.open(-1);
    for (int64_t v = 0; v <= 3; ++v) metrics.on_published(policy_at(v), {}, {{"reward/mean", 1.0}});
  }
  const std::string whole = read_file(f.paths.metrics()).value();
  const size_t second = whole.find('\n') + 1, third = whole.find('\n', second) + 1;
  f.open(3);
  EXPECT_EQ(read_file(f.folder.path() / "log").value().find("has no rows"), std::string::npos);
  // A line is removed.
  ASSERT_TRUE(write_file_atomic(f.paths.metrics(), whole.substr(0, second) + whole.substr(third)));
  f.open(3);
  EXPECT_NE(
      read_file(f.folder.path() / "log").value().find("has no rows of 1 steps (the first is 2)"),
      std::string::npos);
  // A figure is another one.
  std::string changed = whole;
  changed[changed.find("1.0", second)] = '7';
  ASSERT_TRUE(write_file_atomic(f.paths.metrics(), changed));
  try {
    f.open(3);
    ADD_FAILURE() << "taken";
  } catch (const UserError& error) {
    EXPECT_NE(
        std::string(error.what())
            .find("metrics.jsonl:2: the row was changed or damaged: its proof does not fit. Remove "
                  "the line to go on without its row"),
        std::string::npos)
        << error.what();
  }
}

TEST(RunMetrics, RowsThatAreDoubledOrInAnotherOrderAreRefused) {
  MetricsFixture f;
  const auto line = [](int64_t step, int64_t version, const char* name) {
    return format_metrics_row({step, version, 1000, {{name, 1}}}) + "\n";
  };
  const std::string warm_up = line(1, -1, "sft/loss"), evaluation = line(0, 0, "eval/episodes"),
                    one = line(1, 0, "reward/mean"), two = line(2, 1, "reward/mean");
  const auto refusal = [&](const std::string& text) -> std::string {
    EXPECT_TRUE(write_file_atomic(f.paths.metrics(), text));
    try {
      (void)f.open(5);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(warm_up + evaluation + one + two), "");
  EXPECT_EQ(refusal(warm_up + one + evaluation + two), "") << "an evaluation may take its time";
  for (const auto& [text, told] : std::vector<std::pair<std::string, std::string>>{
           {one + two + two, "two rows are of step 2"},
           {one + evaluation + evaluation, "two rows are of evaluation 0"},
           {warm_up + warm_up, "two rows are of update 1 of stage 1"},
           {two + one, "the row of step 1 stands behind that of step 2"}})
    EXPECT_NE(refusal(text).find("metrics.jsonl: " + told + ". The run never wrote it so"),
              std::string::npos)
        << refusal(text);
}

TEST(RunMetrics, AFileThatIsReplacedOrCutMeanwhileIsNamedAndKeepsItsRows) {
  MetricsFixture f;
  const auto log = [&] { return read_file(f.folder.path() / "log").value(); };
  const auto steps = [&] {
    std::vector<int64_t> found;
    for (const MetricsRow& row : f.rows()) found.push_back(row.step);
    return found;
  };
  {
    RunMetrics metrics = f.open(-1);
    const auto publish = [&](int64_t version) {
      metrics.on_published(policy_at(version), {}, {{"reward/mean", 1.0}});
    };
    for (int64_t v = 0; v <= 2; ++v) publish(v);
    const std::string copy = read_file(f.paths.metrics()).value();
    publish(3);
    EXPECT_EQ(log().find("warning"), std::string::npos) << log();
    ASSERT_TRUE(write_file_atomic(f.paths.metrics(), copy));
    publish(4);
    EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 4}));
    EXPECT_NE(log().find("metrics.jsonl was replaced or removed while the run writes it: its rows "
                         "are put back"),
              std::string::npos)
        << log();
    std::filesystem::resize_file(f.paths.metrics(), copy.size());
    publish(5);
    EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 5}));
    EXPECT_NE(log().find("metrics.jsonl was cut while the run writes it"), std::string::npos);
    EXPECT_NE(log().find("has no rows of 2 steps (the first is 3)"), std::string::npos) << log();
    std::filesystem::remove(f.paths.metrics());
  }
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 5})) << "removed after the last row";
}

TEST(RunMetrics, AStepTrainedAgainAndAnEvaluationReportedAgainGiveNoSecondRow) {
  MetricsFixture f;
  const EvalDone report{.policy = 0, .version = 2, .items = {{{}, 1.0}, {{}, std::nullopt}}};
  {
    RunMetrics metrics = f.open(-1);
    for (int64_t v = 0; v <= 2; ++v) metrics.on_published(policy_at(v), {}, {{"reward/mean", 1.0}});
    metrics.on_evaluation(report, {});
    metrics.on_published(policy_at(2), {}, {{"reward/mean", 2.0}});
  }
  RunMetrics metrics = f.open(2);
  metrics.on_published(policy_at(1), {}, {{"reward/mean", 3.0}});
  metrics.on_evaluation(report, {});
  const auto rows = f.rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(*rows[2].find("eval/reward"), 1.0);  // a failed member is no zero
  EXPECT_EQ(*rows[2].find("eval/failed"), 1.0);
}

TEST(RunMetrics, ARowOfTheWarmUpTellsHowLongThatIs) {
  MetricsFixture f;
  RunMetrics metrics = f.open(-1);
  EXPECT_TRUE(metrics.on_progress(wire::Progress{"sft", 2, 7, {{"sft/loss", 0.5}}}));
  ASSERT_EQ(f.rows().size(), 1u);
  EXPECT_EQ(f.rows()[0].step, 2);
  EXPECT_EQ(*f.rows()[0].find("sft/updates"), 7.0);
}

// Evaluations show what the policy writes; without them the first batch and every tenth do.
TEST(RunMetrics, ShowsTheFirstMembersOfDifferentPrompts) {
  MetricsFixture f;
  RunMetrics metrics = f.open(-1);
  HandOver batch{.worker = "t", .step = 1, .items = {}};
  for (int64_t prompt = 0; prompt < 3; ++prompt) {
    for (int32_t member = 0; member < 2; ++member)
      batch.items.push_back({{{.prompt = prompt, .member = member}, 1}, 1.0});
  }
  const std::vector<BodyId> samples = metrics.samples_of_batch(batch);
  ASSERT_EQ(samples.size(), 2u);
  for (int64_t prompt = 0; prompt < 2; ++prompt) {
    EXPECT_EQ(samples[static_cast<size_t>(prompt)].lease, (LeaseId{{.prompt = prompt}, 1}));
    EXPECT_EQ(samples[static_cast<size_t>(prompt)].lane, Lane::kTrain);
  }
  batch.step = 2;
  EXPECT_TRUE(metrics.samples_of_batch(batch).empty());
  batch.step = 11;
  EXPECT_EQ(metrics.samples_of_batch(batch).size(), 2u);

  EvalDone report{.policy = 0, .version = 0, .items = {}};
  report.items.push_back({{{.prompt = 0}, 1}, std::nullopt});  // failed: nothing to show
  report.items.push_back({{{.prompt = 1}, 1}, 0.5});
  ASSERT_EQ(metrics.samples_of_evaluation(report).size(), 1u);
  EXPECT_EQ(metrics.samples_of_evaluation(report)[0], (BodyId{Lane::kEval, {{.prompt = 1}, 1}}));
  metrics.on_evaluation(report, {});
  EXPECT_TRUE(metrics.samples_of_evaluation(report).empty()) << "it has its row";
  EXPECT_TRUE(metrics.samples_of_batch(batch).empty());

  metrics.write_samples(3, 3, {});
  EXPECT_FALSE(std::filesystem::exists(f.paths.samples()));
  Trajectory shown = make_trajectory({{.prompt = 1}, 1}, Lane::kEval, 3);
  shown.reward = 0.5;
  metrics.write_samples(3, 3, {{shown}});
  EXPECT_TRUE(std::filesystem::exists(f.paths.samples()));
}

TEST(RunMetrics, SamplesSayInWordsWhatTheirTokensAre) {
  MetricsFixture f;
  f.text = [](std::span<const TokenId> ids) {
    std::string text;
    for (const TokenId id : ids) text += fmt::format("<{}>", id);
    return text;
  };
  f.open(-1).write_samples(4, 3, {{make_trajectory({{.prompt = 0}, 1}, Lane::kTrain, 3, 4)}});
  const std::string line = read_file(f.paths.samples()).value();
  EXPECT_TRUE(line.starts_with("{\"step\":4,\"version\":3,")) << line;
  EXPECT_NE(line.find("\"text\":[{\"role\":\"prompt\",\"text\":\"<0><1>\"},"
                      "{\"role\":\"sampled\",\"text\":\"<2><3>\"}]"),
            std::string::npos)
      << line;
  EXPECT_TRUE(parse_sample_row(std::string_view(line).substr(0, line.size() - 1)));
}

TEST(RunMetrics, ASampleThatWasCutDoesNotSpoilTheNext) {
  MetricsFixture f;
  RunMetrics metrics = f.open(-1);
  const Trajectory shown = make_trajectory({{.prompt = 1}, 1}, Lane::kEval, 3);
  metrics.write_samples(3, 3, {{shown}});
  const std::string row = read_file(f.paths.samples()).value();
  ASSERT_TRUE(write_file_atomic(f.paths.samples(), row + row.substr(0, row.size() / 2)));
  metrics.write_samples(3, 3, {{shown}});
  EXPECT_EQ(read_file(f.paths.samples()).value(), row + row);
  ASSERT_TRUE(write_file_atomic(f.paths.samples(), row.substr(0, row.size() / 2)));
  metrics.write_samples(3, 3, {{shown}});
  EXPECT_EQ(read_file(f.paths.samples()).value(), row);
}

TEST(RunMetrics, AForkRemovesTheRowsOfTheAbandonedVersions) {
  MetricsFixture f;
  RunMetrics metrics = f.open(-1);
  for (int64_t v = 0; v <= 4; ++v) metrics.on_published(policy_at(v), {}, {{"reward/mean", 1.0}});
  metrics.on_fork(2);
  ASSERT_EQ(f.rows().size(), 2u);
  metrics.on_published(policy_at(3), {}, {{"reward/mean", 9.0}});
  ASSERT_EQ(f.rows().size(), 3u);
  EXPECT_EQ(*f.rows()[2].find("reward/mean"), 9.0);
}

}  // namespace
}  // namespace tailrace::scheduler
