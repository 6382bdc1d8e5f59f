// What a run leaves of its workers and samples (timeline.jsonl, traces/) is what happened: held
// against its metrics, its bodies and its journal, also when every role is killed.
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "core/trajectory/sample_name.h"
#include "core/trajectory/timeline_rows.h"
#include "core/trajectory/trace_rows.h"
#include "core/wire/trajectory_codec.h"
#include "scheduler/store/journal.h"
#include "scheduler/store/trajectory_store.h"
#include "tests/cli/commands/launch_fixture.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

using enum TimelineWhat;

double seconds(Time time) { return std::chrono::duration<double>(time).count(); }

class LaunchTraceTest : public LaunchTest {
 protected:
  std::vector<TimelineRow> timeline() const {
    const auto file = read_timeline(paths().timeline());
    EXPECT_TRUE(file) << file.failure().message;
    EXPECT_EQ(file.value().num_damaged, 0);
    return file.value().rows;
  }
  std::map<int64_t, MetricsRow> step_metrics() const {
    std::map<int64_t, MetricsRow> found;
    const auto rows = read_metrics(paths().metrics());
    EXPECT_TRUE(rows) << rows.failure().message;
    for (const MetricsRow& row : rows.value())
      if (row.find("reward/mean") != nullptr) found[row.step] = row;
    return found;
  }
  std::vector<TraceRow> traces() const {
    std::vector<TraceRow> rows;
    for (const auto& entry : fs::directory_iterator(paths().traces())) {
      const std::string text = read_file(entry.path()).value();
      LineReader lines(text);
      EXPECT_TRUE(parse_trace_head(lines.next()->text)) << entry.path();
      while (auto line = lines.next()) {
        auto row = parse_trace_row(line->text);
        EXPECT_TRUE(row) << entry.path() << ":" << line->number << ": " << row.failure().message;
        rows.push_back(std::move(row).value());
      }
    }
    return rows;
  }

  // Each lease is there once, ends, and has room beside the others of its worker.
  static void expect_sound(const std::vector<TimelineRow>& rows) {
    std::set<std::tuple<TimelineWhat, BodyId, int32_t>> leases;
    std::map<WorkerId, std::vector<std::pair<Time, int64_t>>> changes;
    std::map<WorkerId, int64_t> slots;
    std::map<int64_t, int> steps;
    Time last{};
    for (const TimelineRow& row : rows) {
      EXPECT_GE(row.at, last);
      last = row.at;
      if (row.what == kUp) slots[row.worker] = row.slots;
      if (row.what == kStep) ++steps[row.number];
      if (!is_lease(row.what)) continue;
      ASSERT_TRUE(row.sample);
      EXPECT_TRUE(leases.emplace(row.what, *row.sample, row.verify_attempt).second)
          << sample_name(*row.sample);
      changes[row.worker].emplace_back(row.from, 1);
      changes[row.worker].emplace_back(row.at, -1);
    }
    for (auto& [worker, moves] : changes) {
      std::ranges::sort(moves);
      int64_t held = 0;
      for (const auto& [time, change] : moves) {
        held += change;
        ASSERT_LE(held, slots[worker]) << worker;
      }
    }
    for (int64_t step = 1; step <= kSteps; ++step) EXPECT_EQ(steps[step], 1) << "step " << step;
    EXPECT_EQ(std::ssize(steps), kSteps);
  }

  // Figures that a kill does not change.
  void expect_deciles_of_metrics(const std::vector<TimelineRow>& rows) const {
    const auto metrics = step_metrics();
    for (const TimelineRow& row : rows) {
      if (row.what != kStep) continue;
      const MetricsRow& step = metrics.at(row.number);
      EXPECT_EQ(row.trained.samples, 16);
      EXPECT_EQ(static_cast<double>(row.trained.tokens.back()),
                *step.find("rollout/response_tokens/max"));
      EXPECT_EQ(static_cast<double>(row.trained.staleness.back()), *step.find("staleness/max"));
      EXPECT_EQ(static_cast<double>(row.trained.truncated) / 16,
                *step.find("rollout/truncated_frac"));
    }
  }
};

TEST_F(LaunchTraceTest, TheTimelineAgreesWithTheMetrics) {
  // Groups without a signal are replaced: some samples finish for nothing.
  start_run("run", {"scheduler.mode=async", "scheduler.replace_zero_signal=true"});
  expect_done();
  const auto rows = timeline();
  const auto metrics = step_metrics();
  expect_sound(rows);
  expect_deciles_of_metrics(rows);
  int64_t samples = 0, discarded = 0, all_discarded = 0, warm_ups = 0;
  Time begin{};
  std::map<int64_t, int> trained;
  for (const TimelineRow& row : rows) {
    if (row.what == kWarmUp) begin = row.at, ++warm_ups;
    if (row.what == kDiscarded) discarded += std::ssize(row.samples);
    if (row.what == kGenerate && row.lane == Lane::kTrain && row.tokens >= 0) ++samples;
    if (row.what == kTrain) ++trained[row.number];
    if (row.what != kStep) continue;
    const MetricsRow& step = metrics.at(row.number);
    EXPECT_NEAR(seconds(row.at - begin), *step.find("time/step"), 1e-9);
    EXPECT_NEAR(samples > 0 ? static_cast<double>(discarded) / static_cast<double>(samples) : 0,
                *step.find("rollout/discarded_frac"), 1e-9)
        << "step " << row.number;
    all_discarded += discarded;
    begin = row.at;
    samples = discarded = 0;
  }
  EXPECT_EQ(warm_ups, 1);
  EXPECT_EQ(std::ssize(trained), kSteps);
  EXPECT_GT(all_discarded, 0) << "or this proves nothing about discards";
}

TEST_F(LaunchTraceTest, ARunWhoseRolesAreKilledHasEachRowOnce) {
  start_run();
  int64_t step = 1;
  int num_killed = 0;
  for (const char* role : {"rollout", "scheduler", "trainer"}) {
    ASSERT_TRUE(wait_until([&] { return has_step(step); })) << output();
    for (const pid_t pid : workers(role)) num_killed += ::kill(pid, SIGKILL) == 0;
    step += 3;
  }
  expect_done();
  EXPECT_GE(num_killed, 2) << "the run was over before it was disturbed";
  EXPECT_EQ(final_digest(), undisturbed_digest()) << "nobody trains on what is written here";
  const auto rows = timeline();
  expect_sound(rows);
  expect_deciles_of_metrics(rows);
}

TEST_F(LaunchTraceTest, ATraceIsTheTrajectoryAndTheLossBitForBit) {
  start_run("run", {"train.trace_steps=16"});
  expect_done();
  const auto metrics = step_metrics();
  const auto traced = traces();
  EXPECT_EQ(std::ssize(traced), kSteps * 16);
  std::map<int64_t, std::vector<const TraceRow*>> steps;
  for (const TraceRow& row : traced) steps[row.step].push_back(&row);
  for (const auto& [number, rows] : steps) {
    double reward = 0, loss_tokens = 0;
    std::map<int64_t, std::vector<const TraceRow*>> groups;
    for (const TraceRow* row : rows) {
      reward += row->reward;
      // The environment paid for each turn, and each token is of one.
      double earned = 0;
      int64_t sampled = 0, trained = 0;
      for (const TraceTurn& turn : row->turns) {
        EXPECT_NE(turn.anchor, 0u);
        EXPECT_EQ(turn.advantage, row->advantage) << "credit goes to the trajectory";
        earned += turn.reward.value();
        sampled += turn.tokens;
        trained += turn.trained;
      }
      EXPECT_DOUBLE_EQ(earned, row->reward);
      for (const TraceSegment& segment : row->segments) {
        sampled -= std::ranges::count(segment.roles, TokenRole::kSampled);
        trained -= std::ranges::count(segment.mask, 1);
        for (const float advantage : segment.advantages) EXPECT_EQ(advantage, row->advantage);
      }
      EXPECT_EQ(sampled, 0);
      EXPECT_EQ(trained, 0);
      groups[row->lease.member.prompt].push_back(row);
      for (const TraceSegment& segment : row->segments) {
        loss_tokens += static_cast<double>(std::ranges::count(segment.mask, 1));
        // On-policy: the loss saw what was sampled, and every ratio was 1.
        EXPECT_EQ(segment.new_logprobs, segment.old_logprobs);
        size_t target = 0;
        for (size_t i = 0; i < segment.tokens.size(); ++i) {
          if (segment.mask[i] == 1) {
            EXPECT_EQ(segment.old_logprobs[target++], segment.logprobs[i]);
          }
        }
      }
    }
    const MetricsRow& step = metrics.at(number);
    EXPECT_DOUBLE_EQ(reward / 16, *step.find("reward/mean"));
    EXPECT_EQ(loss_tokens, *step.find("policy/loss_tokens"));
    for (const auto& [prompt, members] : groups) {
      ASSERT_EQ(members.size(), 4u);
      double mean = 0;
      for (const TraceRow* row : members) mean += row->reward / 4;
      const bool has_signal = std::ranges::any_of(
          members, [&](const TraceRow* row) { return row->reward != members[0]->reward; });
      for (const TraceRow* row : members) {
        ASSERT_EQ(row->advantage.has_value(), has_signal) << "step " << number;
        if (has_signal) {
          EXPECT_EQ(*row->advantage, static_cast<float>(row->reward - mean));
        }
      }
    }
  }

  // Against what the rollout workers sent, as far as its bodies are still there.
  auto store = scheduler::TrajectoryStore::open(paths().trajectories(), int64_t{1} << 30);
  ASSERT_TRUE(store) << store.failure().message;
  int compared = 0;
  for (const TraceRow& row : traced) {
    const auto bytes = store.value().get({Lane::kTrain, row.lease});
    if (!bytes) continue;
    const auto body = wire::decode_trajectory(bytes.value());
    ASSERT_TRUE(body) << body.failure().message;
    ASSERT_EQ(row.segments.size(), body.value().segments.size());
    for (size_t i = 0; i < row.segments.size(); ++i) {
      EXPECT_EQ(row.segments[i].tokens, body.value().segments[i].tokens);
      EXPECT_EQ(row.segments[i].roles, body.value().segments[i].roles);
      EXPECT_EQ(row.segments[i].versions, body.value().segments[i].versions);
      EXPECT_EQ(row.segments[i].logprobs, body.value().segments[i].logprobs);
    }
    EXPECT_EQ(row.outcome, body.value().outcome);
    ++compared;
  }
  EXPECT_GE(compared, 16);

  // By the command, under the name that the report shows.
  const TraceRow& some = *steps.at(kSteps).front();
  const auto said = run_binary("status " + paths().root.string() + " --sample '" +
                               to_string(some.lease) + "' --json");
  ASSERT_EQ(said.exit_code, 0) << said.err;
  EXPECT_EQ(said.err, "");
  const auto json = nlohmann::json::parse(said.out);
  const auto again = parse_trace_row(json.at("tokens").dump());
  ASSERT_TRUE(again) << again.failure().message;
  EXPECT_EQ(again.value(), some);
  ASSERT_GE(json.at("history").size(), 2u);
  EXPECT_EQ(json.at("history").front().at("what"), "generate");
  EXPECT_EQ(json.at("history").back().at("number"), kSteps);
  const auto shown =
      run_binary("status " + paths().root.string() + " --sample " + to_string(some.lease));
  EXPECT_NE(shown.out.find("history (seconds of the run)"), std::string::npos) << shown.err;
  EXPECT_NE(shown.out.find("group's 4 traced members"), std::string::npos) << shown.out;
  const auto unknown = run_binary("status " + paths().root.string() + " --sample prompt=1000000");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("knows no such sample"), std::string::npos) << unknown.err;
}

}  // namespace
}  // namespace tailrace
