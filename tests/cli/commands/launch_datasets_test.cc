// Whole runs that learn from several datasets, over processes, while they are killed: each step has
// the quota of each, and each prompt of each ends once.
#include "core/trajectory/timeline_rows.h"
#include "scheduler/store/journal.h"
#include "tests/cli/commands/launch_fixture.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

using scheduler::TaskEnd;

class LaunchDatasets : public LaunchTest {
 protected:
  // Of the steps, in their order; of those that have it.
  std::vector<double> series(const std::string& metric, const std::string& run = "run") const {
    const auto rows = read_metrics(paths(run).metrics());
    EXPECT_TRUE(rows);
    std::vector<double> values;
    for (const MetricsRow& row : rows.value())
      if (const double* value = row.find(metric)) values.push_back(*value);
    return values;
  }
  // The whole launch, in its middle.
  void kill_all() {
    stop_in_the_middle();
    launched_->send_signal(SIGKILL);
    (void)finish();
    ASSERT_TRUE(wait_until([&] {
      return processes_with({"worker", paths().root.string()}).empty();
    }));
  }
  std::vector<scheduler::Dataset> datasets() const {
    auto end = scheduler::restore(paths().journal());
    EXPECT_TRUE(end && end.value().state);
    return end.value().state->policies.at(0).datasets;
  }
};

const std::vector<std::string> kGridAndSums = {
    "datasets=[{name: grid, ratio: 3, env: frozen_grid, settings: {max_turns: 8}}, "
    "{name: sums, env: calculator, settings: {score_by: number, max_number: 9}}]"};

TEST_F(LaunchDatasets, EachStepHasItsQuotasAndAKillChangesNothing) {
  start_run("other", kGridAndSums);
  expect_done();
  start_run("run", kGridAndSums);
  kill_all();
  const auto status = run_binary("status " + paths().root.string());
  EXPECT_NE(status.out.find("\n          grid: "), std::string::npos) << status.out;
  EXPECT_NE(status.out.find("\n          sums: "), std::string::npos) << status.out;
  continue_run();
  expect_done();
  EXPECT_EQ(final_digest(), final_digest("other"));
  expect_each_step_once();
  EXPECT_EQ(series("rollout/grid/prompts"), std::vector<double>(kSteps, 3));
  EXPECT_EQ(series("rollout/sums/prompts"), std::vector<double>(kSteps, 1));
  for (const char* metric : {"reward/mean", "reward/grid/mean", "reward/sums/mean",
                             "env/grid/success", "rollout/sums/truncated_frac"}) {
    EXPECT_EQ(series(metric).size(), static_cast<size_t>(kSteps)) << metric;
    EXPECT_EQ(series(metric), series(metric, "other")) << metric;
  }
  // Before the first step, in the middle and at the end.
  EXPECT_EQ(series("eval/episodes"), std::vector<double>(3, 16));
  EXPECT_EQ(series("eval/sums/episodes"), std::vector<double>(3, 8));
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(series("eval/reward")[i],
                (series("eval/grid/reward")[i] + series("eval/sums/reward")[i]) / 2, 1e-12);
  const std::vector<scheduler::Dataset> ends = datasets();
  ASSERT_EQ(ends.size(), 2u);
  for (size_t i = 0; i < ends.size(); ++i) {
    EXPECT_EQ(ends[i].next, kSteps * (i == 0 ? 3 : 1)) << "no prompt was begun in vain";
    EXPECT_EQ(ends[i].ended_as(TaskEnd::kTrained), ends[i].next);
  }
  // The same episodes again, with the random numbers of their dataset.
  const auto again = run_binary("eval --json --run " + paths().root.string());
  ASSERT_EQ(again.exit_code, 0) << again.err;
  for (const char* name : {"grid", "sums"})
    EXPECT_NE(again.out.find(fmt::format("\"dataset\":\"{}\"", name)), std::string::npos)
        << again.out;
  const auto one = run_binary("eval --json --name sums --run " + paths().root.string());
  EXPECT_EQ(std::ranges::count(one.out, '\n'), 1) << one.out;
  EXPECT_NE(
      one.out.find(fmt::format("\"reward\":{{\"mean\":{}", series("eval/sums/reward").back())),
      std::string::npos)
      << one.out << series("eval/sums/reward").back();
  EXPECT_NE(run_binary("eval --name sum --run " + paths().root.string())
                .err.find("has no such dataset; it has grid, sums"),
            std::string::npos);
}

// Law 3.7: who has more goes on alone, and the run ends when the last prompt of the last is
// trained.
TEST_F(LaunchDatasets, ADatasetMayEndBeforeTheOthers) {
  const std::string data = std::string(TAILRACE_SOURCE_DIR) + "/tests/data/";
  const auto write_rows = [&](const char* file, int count) {
    std::ifstream in(data + "prompts/tinystories_prompts.jsonl");
    std::ofstream out(folder_ / file);
    std::string line;
    for (int i = 0; i < count && std::getline(in, line); ++i) out << line << "\n";
  };
  write_rows("long.jsonl", 5);
  write_rows("short.jsonl", 5);
  std::ofstream(folder_ / "tiny.yaml") << "run: {name: tiny, seed: 3, steps: 0, epochs: 2}\n"
                                       << "model: {path: " << data << "models/stories260K}\n"
                                       << R"(
datasets:
  - {name: long, env: text, dataset: long.jsonl, settings: {verifier: text_rules}}
  - {name: short, env: text, dataset: short.jsonl, settings: {verifier: text_rules}, epochs: 1}
rollout: {prompts_per_step: 4, group_size: 2, max_action_tokens: 4, max_context_tokens: 128, workers: 2}
train: {microbatch_tokens: 1024, threads: 1}
checkpoint: {interval_steps: 2}
)";
  start_run("other");
  expect_done();
  start_run("run");
  ASSERT_TRUE(wait_until([&] { return has_step(1); })) << output();
  for (const pid_t pid : workers("scheduler")) ::kill(pid, SIGKILL);
  expect_done();
  expect_each_step_once("run", 5);
  EXPECT_EQ(series("rollout/long/prompts"), std::vector<double>(5, 2));
  EXPECT_EQ(series("rollout/short/prompts"), (std::vector<double>{2, 2, 1, 0, 0}));
  EXPECT_EQ(series("reward/short/mean").size(), 3u) << "and nothing of what is not there";
  EXPECT_EQ(final_digest("run", 5), final_digest("other", 5));
  const std::vector<scheduler::Dataset> ends = datasets();
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0].ended_as(TaskEnd::kTrained), 10);
  EXPECT_EQ(ends[1].ended_as(TaskEnd::kTrained), 5);
  EXPECT_EQ(ends[0].epoch, 2);
  EXPECT_EQ(ends[1].epoch, 1);
  for (const scheduler::Dataset& dataset : ends)
    EXPECT_EQ(dataset.ended_as(TaskEnd::kUnreached) + dataset.ended_as(TaskEnd::kFailed), 0);
  // A file of it that changes is named.
  std::ofstream(folder_ / "short.jsonl", std::ios::app)
      << "{\"prompt\": \"x\", \"max_words\": 9}\n";
  continue_run();
  expect_refused("short.jsonl: it has changed since the run began");
}

// The end of the data ends the schedule of the rates (at 0, behind the last update), also of a
// trainer that comes back.
TEST_F(LaunchDatasets, EpochsEndAScheduleThatFalls) {
  const std::string data = std::string(TAILRACE_SOURCE_DIR) + "/tests/data/";
  {
    std::ifstream in(data + "prompts/tinystories_prompts.jsonl");
    std::ofstream out(folder_ / "rows.jsonl");
    std::string line;
    for (int i = 0; i < 9 && std::getline(in, line); ++i) out << line << "\n";
  }
  // Of the words, so that the members of a group differ and each step has its update.
  std::ofstream(folder_ / "reward.py")
      << "import json, sys, zlib\n"
         "for line in sys.stdin:\n"
         "    episode = json.loads(line)\n"
         "    reward = zlib.crc32(episode['response'].encode()) / 2**32\n"
         "    print(json.dumps({'id': episode['id'], 'reward': reward}), flush=True)\n";
  std::ofstream(folder_ / "tiny.yaml") << "model: {path: " << data << "models/stories260K}\n"
                                       << R"(
run: {name: tiny, seed: 3, steps: 0, epochs: 2}
env: {name: text, dataset: rows.jsonl}
reward: {command: [python3, reward.py]}
rollout: {prompts_per_step: 4, group_size: 4, max_action_tokens: 8, max_context_tokens: 128, workers: 2}
optim: {lr: 0.0001, schedule: linear, min_lr_ratio: 0}
train: {microbatch_tokens: 1024, threads: 1}
checkpoint: {interval_steps: 2}
)";
  start_run("other");
  expect_done();
  start_run("run");
  ASSERT_TRUE(wait_until([&] { return has_step(2); })) << output();
  for (const pid_t pid : workers("trainer")) ::kill(pid, SIGKILL);
  expect_done();
  // 18 prompts are four steps of 4 and one of 2.
  expect_each_step_once("run", 5);
  for (const char* run : {"run", "other"}) {
    const std::vector<double> rates = series("policy/lr", run);
    ASSERT_EQ(rates.size(), 5u) << run;
    for (size_t i = 0; i < rates.size(); ++i)
      EXPECT_NEAR(rates[i], 0.0001 * (18 - 4 * static_cast<double>(i)) / 18, 1e-12)
          << run << " " << i;
  }
  EXPECT_EQ(final_digest("run", 5), final_digest("other", 5));
}

// Who is given more than a step, or less than it began, keeps to the quotas too.
TEST_F(LaunchDatasets, OtherModesKeepTheQuotas) {
  for (const char* mode : {"async", "tail_batching"}) {
    std::vector<std::string> arguments = kGridAndSums;
    arguments.push_back(fmt::format("scheduler.mode={}", mode));
    arguments.push_back("run.steps=8");
    if (mode == std::string("tail_batching"))
      arguments.push_back("scheduler.launch_prompts_ratio=1.5");
    start_run(mode, arguments);
    expect_done();
    EXPECT_EQ(series("rollout/grid/prompts", mode), std::vector<double>(8, 3)) << mode;
    EXPECT_EQ(series("rollout/sums/prompts", mode), std::vector<double>(8, 1)) << mode;
  }
}

// Each dataset is sampled where its pool is, the weights stay what they would have been, and who
// joins says which pool it joins.
TEST_F(LaunchDatasets, EachIsSampledInItsPool) {
  start_run("other", kGridAndSums);
  expect_done();
  std::vector<std::string> arguments = kGridAndSums;
  arguments.insert(arguments.end(),
                   {"rollout.pools=[{name: small, workers: 1, max_sequences: 3}, {name: large, "
                    "workers: 2}]",
                    "datasets.grid.pool=large", "datasets.sums.pool=small"});
  start_run("run", arguments);
  const pid_t trainer = stop_in_the_middle();
  ASSERT_GT(trainer, 0);
  const std::string run = paths().root.string();
  const auto status = run_binary("status " + run).out;
  EXPECT_NE(status.find("rollout-0: pool small, "), std::string::npos) << status;
  EXPECT_NE(status.find(" of 3 slots"), std::string::npos) << status;
  EXPECT_NE(status.find("rollout-2: pool large, "), std::string::npos) << status;
  EXPECT_NE(status.find(", cpu-"), std::string::npos) << status;
  for (const auto& [pool, said] :
       {std::pair{"", "--pool is missing"}, {" --pool lagre", "Try --pool large"}}) {
    EXPECT_NE(run_binary("worker --join " + run + pool).err.find(said), std::string::npos) << said;
  }
  ::kill(trainer, SIGCONT);
  expect_done();
  EXPECT_EQ(final_digest(), final_digest("other"));
  int64_t samples = 0, ups = 0;
  const auto timeline = read_timeline(paths().timeline());
  ASSERT_TRUE(timeline);
  for (const TimelineRow& row : timeline.value().rows) {
    if (row.what == TimelineWhat::kUp && row.role == Role::kRollout) {
      ++ups;
      EXPECT_EQ(row.pool, row.worker == "rollout-0" ? "small" : "large");
    }
    if (row.what != TimelineWhat::kGenerate || !row.sample) continue;
    ++samples;
    EXPECT_EQ(row.worker == "rollout-0", row.sample->lease.member.dataset == 1) << row.worker;
  }
  EXPECT_EQ(ups, 3);
  EXPECT_GE(samples, kSteps * 16);
}

}  // namespace
}  // namespace tailrace
