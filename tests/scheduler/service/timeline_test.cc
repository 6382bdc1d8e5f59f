// The timeline beside decide(): over scripts, over files that were cut and altered, and over
// made-up worlds in which everything goes wrong.
#include "scheduler/service/timeline.h"

#include <algorithm>
#include <cmath>

#include "core/base/file.h"
#include "tests/scheduler/decide/random_run.h"
#include "tests/scheduler/store/files.h"

namespace tailrace::scheduler {
namespace {

using enum TimelineWhat;

struct TimelineFixture {
  ScratchFolder folder;
  RunPaths paths{folder.path()};
  Log log{"test", folder.path() / "log"};

  Timeline open(const State& state, int64_t rows_per_step = 1000) {
    return Timeline(paths, state, rows_per_step, log);
  }
  std::vector<TimelineRow> rows() const {
    const auto file = read_timeline(paths.timeline());
    EXPECT_TRUE(file) << file.failure().message;
    EXPECT_EQ(file.value().num_damaged, 0);
    return file.value().rows;
  }
  std::vector<TimelineRow> rows_of(TimelineWhat what) const {
    std::vector<TimelineRow> found = rows();
    std::erase_if(found, [&](const TimelineRow& row) { return row.what != what; });
    return found;
  }
  std::string text() const { return read_file(paths.timeline()).value(); }
  std::string log_text() const { return read_file(folder.path() / "log").value(); }
};

// A harness whose every event the timeline sees.
struct Watched : Harness {
  Timeline& timeline;
  Watched(Config config, Timeline& seen) : Harness(std::move(config), false), timeline(seen) {}
  Actions say(const Event& event, Time after = seconds(1)) {
    now += after;
    Actions actions = tell(event);
    timeline.observe(event, actions, state);
    timeline.flush();
    return actions;
  }
  // One trainer, one rollout worker of 8 slots and one verifier, at version 0.
  Actions begin() {
    say(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = 1});
    say(WorkerUp{.worker = "v",
                 .role = Role::kReward,
                 .slots = 2,
                 .site = {.cluster = "west", .host = "gpu-7"}});
    say(WorkerUp{.worker = "r", .slots = 8});
    say(rolled_back(-1));
    Actions all = say(published(0));
    const auto installs = only<Stage>(all);
    EXPECT_EQ(installs.size(), 1u);
    say(Staged{"r", 0, 0, installs.at(0).digest});
    return say(Installed{"r", 0, 0, installs.at(0).digest});
  }
};

TEST(Timeline, EachLeaseInstallAndStepIsARow) {
  TimelineFixture f;
  const Config config = small_config(1, 2);
  Timeline timeline = f.open(State(config));
  Watched w(config, timeline);
  const auto grants = only<Grant>(w.begin());
  ASSERT_EQ(grants.size(), 2u);
  w.say(w.result(grants[0], 1.0));
  const auto verifies = only<Verify>(w.say(w.result(grants[1], std::nullopt)));
  ASSERT_EQ(verifies.size(), 1u);
  w.say(Reward{"v", verifies[0].lease, Lane::kTrain, 1, 0.0, ""}, seconds(3));
  w.say(wants(1));
  w.say(published(1), seconds(5));

  const auto generated = f.rows_of(kGenerate);
  ASSERT_EQ(generated.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(generated[i].worker, "r");
    EXPECT_EQ(generated[i].sample, (BodyId{Lane::kTrain, grants[i].lease}));
    EXPECT_EQ(generated[i].end, "finished");
    EXPECT_EQ(generated[i].tokens, 5);
    EXPECT_EQ(generated[i].max_version, 0);
    EXPECT_EQ(generated[i].at - generated[i].from, seconds(i + 1));
  }
  EXPECT_EQ(generated[0].reward, 1.0);
  EXPECT_EQ(generated[1].reward, std::nullopt);
  const auto verified = f.rows_of(kVerify);
  ASSERT_EQ(verified.size(), 1u);
  EXPECT_EQ(verified[0].worker, "v");
  EXPECT_EQ(verified[0].end, "scored");
  EXPECT_EQ(verified[0].reward, 0.0);
  EXPECT_EQ(verified[0].at - verified[0].from, seconds(3));
  const auto trained = f.rows_of(kTrain);
  ASSERT_EQ(trained.size(), 1u);
  EXPECT_EQ(trained[0].number, 1);
  EXPECT_EQ(trained[0].at - trained[0].from, seconds(5));
  const auto steps = f.rows_of(kStep);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].number, 1);
  EXPECT_EQ(steps[0].trained.samples, 2);
  EXPECT_EQ(steps[0].trained.tokens, deciles_of({5, 5}));
  EXPECT_EQ(steps[0].trained.staleness, deciles_of({0, 0}));
  const auto installs = f.rows_of(kInstall);
  ASSERT_EQ(installs.size(), 2u);
  EXPECT_EQ(installs[0].end, "staged");
  EXPECT_EQ(installs[1].end, "installed");
  const auto ups = f.rows_of(kUp);
  ASSERT_EQ(ups.size(), 3u);
  EXPECT_EQ(ups[1].cluster + "/" + ups[1].host, "west/gpu-7");
  EXPECT_EQ(ups[2].cluster + "/" + ups[2].host, "/");
  ASSERT_EQ(f.rows_of(kWarmUp).size(), 1u);
  EXPECT_EQ(f.rows_of(kWarmUp)[0].worker, "t");
  EXPECT_TRUE(std::ranges::is_sorted(f.rows(), {}, &TimelineRow::at));
}

TEST(Timeline, PartsOfAnInstallStandWithinIt) {
  TimelineFixture f;
  const Config config = small_config(1, 2);
  Timeline timeline = f.open(State(config));
  Watched w(config, timeline);
  w.say(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = 1});
  w.say(WorkerUp{.worker = "near", .slots = 1});
  w.say(WorkerUp{.worker = "far", .slots = 1});
  w.say(rolled_back(-1));
  w.say(published(0));
  // "far" fetched for longer than it was asked for: its bar begins with the request.
  timeline.measure({{"fetch_ms", 60000}, {"process_ms", 500}, {"stage_ms", 1500}});
  w.say(Staged{"far", 0, 0, digest_of(0)}, seconds(10));
  timeline.measure({{"pause_ms", 4}, {"apply_ms", 3}});
  w.say(Installed{"far", 0, 0, digest_of(0)}, seconds(1));
  timeline.measure({{"stage_ms", 1000}, {"fetch_ms", std::nan("")}});
  w.say(Staged{"near", 0, 0, digest_of(0)}, seconds(1));
  w.say(Installed{"near", 0, 0, digest_of(0)}, seconds(1));

  const auto installs = f.rows_of(kInstall);
  ASSERT_EQ(installs.size(), 4u);
  const TimelineRow& asked = installs[0];
  const auto fetches = f.rows_of(kFetch);
  ASSERT_EQ(fetches.size(), 1u) << "where they lie on the same host nothing is fetched";
  EXPECT_EQ(fetches[0].worker, "far");
  EXPECT_EQ(fetches[0].from, asked.from);
  EXPECT_EQ(fetches[0].until, asked.at - seconds(2));
  const auto stages = f.rows_of(kStage);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].from, fetches[0].until);
  EXPECT_EQ(stages[0].until, asked.at);
  EXPECT_EQ(stages[0].number, 0);
  EXPECT_EQ(stages[1].until - stages[1].from, seconds(1));
  const auto switches = f.rows_of(kSwitch);
  ASSERT_EQ(switches.size(), 1u);
  EXPECT_EQ(switches[0].until, installs[1].at);
  EXPECT_EQ(switches[0].until - switches[0].from, std::chrono::milliseconds(4));
  EXPECT_TRUE(std::ranges::is_sorted(f.rows(), {}, &TimelineRow::at));
}

TEST(Timeline, WhatEndsWithoutAnAnswerSaysHow) {
  TimelineFixture f;
  Config config = small_config(1, 3);
  config.deadlines.lease = seconds(60);
  Timeline timeline = f.open(State(config));
  Watched w(config, timeline);
  const auto grants = only<Grant>(w.begin());
  ASSERT_EQ(grants.size(), 3u);
  w.say(w.failure(grants[0], Outcome::kEnvFailed));
  w.say(Tick{}, seconds(100));
  w.say(WorkerDown{"r", 0, false});
  std::map<std::string, int> ends;
  for (const TimelineRow& row : f.rows_of(kGenerate)) ++ends[row.end];
  EXPECT_EQ(ends["env_failed"], 1);
  EXPECT_GE(ends["expired"], 2);
  const auto down = f.rows_of(kDown);
  ASSERT_EQ(down.size(), 1u);
  EXPECT_EQ(down[0].end, "gone");
}

// It is asked again in the same event, with the same version: two rows, not one that goes on.
TEST(Timeline, AnInstallWhoseTimeIsUpHasARowOfItsOwn) {
  TimelineFixture f;
  Config config = small_config(1, 2);
  config.deadlines.install = seconds(60);
  Timeline timeline = f.open(State(config));
  Watched w(config, timeline);
  w.say(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = 1});
  w.say(WorkerUp{.worker = "r", .slots = 8});
  w.say(rolled_back(-1));
  ASSERT_EQ(only<Stage>(w.say(published(0))).size(), 1u);
  const auto again = only<Stage>(w.say(Tick{}, seconds(60)));
  ASSERT_EQ(again.size(), 1u);
  const auto changes = only<Switch>(w.say(Staged{"r", 0, 0, again[0].digest}, seconds(5)));
  ASSERT_EQ(changes.size(), 1u);
  w.say(Installed{"r", 0, 0, again[0].digest}, seconds(2));
  std::vector<std::pair<std::string, Time>> rows;
  for (const TimelineRow& row : f.rows_of(kInstall)) rows.emplace_back(row.end, row.at - row.from);
  EXPECT_EQ(rows, (std::vector<std::pair<std::string, Time>>{
                      {"lost", seconds(60)}, {"staged", seconds(5)}, {"installed", seconds(2)}}));
}

TEST(Timeline, ASampleThatNoStepTrainsIsCountedWithItsCause) {
  TimelineFixture f;
  Config config = small_config(1, 2);
  config.replace_zero_signal = true;
  Timeline timeline = f.open(State(config));
  Watched w(config, timeline);
  const auto grants = only<Grant>(w.begin());
  w.say(w.result(grants[0], 1.0));
  w.say(w.result(grants[1], 1.0));
  const auto discarded = f.rows_of(kDiscarded);
  ASSERT_EQ(discarded.size(), 1u);
  EXPECT_EQ(discarded[0].end, "filtered");
  const TimelineRow::Sample sample{.tokens = 5, .staleness = 0, .truncated = false};
  EXPECT_EQ(discarded[0].samples, (std::vector<TimelineRow::Sample>{sample, sample}));
}

// Killed before the last events were committed, and in the middle of a line.
TEST(Timeline, AContinuedRunHasEachRowOnce) {
  TimelineFixture f;
  const Config config = small_config(1, 2);
  State committed;
  Actions grants;
  std::string before;
  {
    Timeline timeline = f.open(State(config));
    Watched w(config, timeline);
    grants = w.begin();
    w.say(w.result(only<Grant>(grants)[0], 1.0));
    committed = w.state;
    before = f.text();
    w.say(w.result(only<Grant>(grants)[1], 0.0));
    w.say(wants(1));
    EXPECT_NE(f.text(), before);
    ASSERT_TRUE(write_file_atomic(f.paths.timeline(), f.text() + f.text().substr(0, 40)));
  }
  Timeline timeline = f.open(committed);
  timeline.flush();
  const std::string after = f.text();
  ASSERT_TRUE(after.starts_with(before));
  EXPECT_EQ(f.rows().back().what, kStart) << "nothing else is new";
  Watched w(config, timeline);
  w.state = committed;
  w.now = committed.now;
  w.say(w.result(only<Grant>(grants)[1], 0.0), seconds(7));
  w.say(wants(1));
  w.say(published(1));
  const auto generated = f.rows_of(kGenerate);
  ASSERT_EQ(generated.size(), 2u);
  EXPECT_EQ(generated[1].from, generated[0].from) << "from the grant, which the file never had";
  EXPECT_EQ(generated[1].at - generated[0].at, seconds(7));
  const auto steps = f.rows_of(kStep);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].trained.tokens, deciles_of({5, 5})) << "one of them is known from the file";
}

TEST(Timeline, ADamagedRowStaysAndCostsNoOther) {
  TimelineFixture f;
  const Config config = small_config(1, 2);
  State state;
  {
    Timeline timeline = f.open(State(config));
    Watched w(config, timeline);
    w.begin();
    state = w.state;
  }
  const size_t num_rows = f.rows().size();
  flip_byte(f.paths.timeline(), f.text().find("warm_up") + 2);
  {
    Timeline timeline = f.open(state);
    timeline.flush();
  }
  const auto file = read_timeline(f.paths.timeline());
  ASSERT_TRUE(file);
  EXPECT_EQ(file.value().num_damaged, 1);
  EXPECT_EQ(file.value().rows.size(), num_rows);  // one less, and the start of this process
}

TEST(Timeline, BeyondItsBoundAStepHasOneRowAWorker) {
  TimelineFixture f;
  const Config config = small_config(4, 2);
  Timeline timeline = f.open(State(config), 7);
  Watched w(config, timeline);
  const auto grants = only<Grant>(w.begin());  // up 3, staged, installed: 5 rows
  ASSERT_EQ(grants.size(), 8u);
  for (const Grant& grant : grants) w.say(w.result(grant, grant.lease.member.member));
  w.say(wants(1));
  w.say(published(1));
  const auto generated = f.rows_of(kGenerate);
  ASSERT_EQ(generated.size(), 3u);
  EXPECT_FALSE(generated[2].sample);
  EXPECT_EQ(generated[2].leases, 6);
  EXPECT_EQ(generated[2].busy, seconds(3 + 4 + 5 + 6 + 7 + 8));
  const auto steps = f.rows_of(kStep);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].left_out, 0) << "the step's train span is there";
  EXPECT_EQ(steps[0].trained.samples, 8) << "deciles are whole";
  EXPECT_EQ(steps[0].trained.tokens, deciles_of(std::vector<int64_t>(8, 5)));
}

TEST(Timeline, SwitchedOffItWritesNothing) {
  TimelineFixture f;
  Timeline timeline = f.open(State(small_config(1, 2)), 0);
  Watched w(small_config(1, 2), timeline);
  w.begin();
  EXPECT_FALSE(std::filesystem::exists(f.paths.timeline()));
}

TEST(Timeline, AFileThatCannotBeWrittenEndsNoRun) {
  TimelineFixture f;
  std::filesystem::create_directory(f.paths.timeline());
  Timeline timeline = f.open(State(small_config(1, 2)));
  Watched w(small_config(1, 2), timeline);
  w.begin();
  EXPECT_NE(f.log_text().find("no timeline is written: "), std::string::npos) << f.log_text();
}

// What a world's timeline must hold, whatever happened to it.
void check_world(const std::vector<TimelineRow>& rows, const std::map<BodyId, Time>& granted,
                 std::map<WorkerId, int64_t> slots, const std::string& where) {
  std::map<BodyId, int> generated;
  std::set<std::pair<BodyId, int32_t>> verified;
  std::map<WorkerId, std::vector<std::pair<Time, int64_t>>> changes;
  Time last{};
  for (const TimelineRow& row : rows) {
    ASSERT_GE(row.at, last) << where;
    last = row.at;
    if (row.what == kUp) slots[row.worker] = std::max(slots[row.worker], row.slots);
    if (!is_lease(row.what)) continue;
    ASSERT_TRUE(row.sample) << where;
    changes[row.worker].emplace_back(row.from, 1);
    changes[row.worker].emplace_back(row.at, -1);
    if (row.what == kGenerate) {
      // Once more where the sample crossed its abort: what it brought, without time of its own.
      const bool crossed = row.from == row.at && row.tokens > 0;
      ASSERT_LE(++generated[*row.sample], crossed ? 2 : 1)
          << where << ": " << to_string(row.sample->lease);
    } else {
      ASSERT_TRUE(verified.emplace(*row.sample, row.verify_attempt).second) << where;
    }
  }
  for (auto& [worker, moves] : changes) {
    std::ranges::sort(moves);  // of the same moment ends come first
    int64_t held = 0;
    for (const auto& [time, change] : moves) {
      held += change;
      ASSERT_LE(held, slots[worker]) << where << ": " << worker;
    }
    EXPECT_EQ(held, 0) << where;
  }
  for (const auto& [body, time] : granted)
    ASSERT_TRUE(generated.contains(body)) << where << ": " << to_string(body.lease);
}

TEST(Timeline, HoldsEveryLeaseOnceInWorldsWhereEverythingGoesWrong) {
  TimelineFixture f;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::filesystem::remove(f.paths.timeline());
    std::optional<Timeline> timeline;
    std::map<BodyId, Time> granted;  // as far as anybody remembers
    std::map<WorkerId, int64_t> slots;
    RandomRun run(seed);
    State after;
    run.checker.watch = [&](const State& before, const Event& event, Time now) {
      // A process that begins again may tell of lost bodies first.
      if (!timeline || std::holds_alternative<Restarted>(event) ||
          std::holds_alternative<BodiesLost>(event)) {
        if (timeline) timeline->flush();  // of what is forgotten, too
        timeline.emplace(f.paths, before, 100000, f.log);
        // Of the same moment it may be forgotten or not.
        std::erase_if(granted, [&](const auto& grant) { return grant.second >= before.now; });
      }
      after = before;
      // Some came before anybody watched.
      for (const auto& [id, worker] : before.workers) slots[id] = std::max(slots[id], worker.slots);
      const Actions actions = decide(after, event, now);
      timeline->observe(event, actions, after);
      for (const Grant& grant : only<Grant>(actions))
        granted.try_emplace(BodyId{grant.lane, grant.lease}, after.now);
    };
    ASSERT_TRUE(run.run()) << run.checker.failure;
    timeline->flush();
    for (const auto& [work, lease] : after.leases.in_order())
      granted.erase({work.lane, {work.member, lease.attempt}});
    check_world(f.rows(), granted, slots, fmt::format("seed {}", seed));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tailrace::scheduler
