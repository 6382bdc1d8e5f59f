// The service between real connections and a real run directory.
#include "scheduler/service/service.h"

#include <numeric>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "core/run/metrics.h"
#include "core/wire/trajectory_codec.h"
#include "scheduler/decide/decide.h"
#include "scheduler/store/journal.h"
#include "scheduler/store/trajectory_store.h"
#include "tests/scheduler/service/fake_workers.h"
#include "tests/scheduler/service/script.h"
#include "tests/scheduler/service/test_run.h"
#include "tests/scheduler/store/short_run.h"

namespace tailrace::scheduler {
namespace {

using fakes::FakeReward;
using fakes::FakeRollout;
using fakes::FakeTrainer;
using fakes::FakeWorker;
using fakes::TrainerDisk;
using std::chrono::milliseconds;

// One row a step, in order, and the evaluations in between; each with all that it would have in a
// run that nobody disturbed. FakeReward measures 1 and 3 of a group that it scores.
void expect_complete_metrics(const TestRun& run, int64_t steps) {
  std::map<int64_t, int> step_rows, eval_rows;
  for (const MetricsRow& row : run.rows()) {
    const auto expect = [&](std::string_view name, double value) {
      const double* found = row.find(name);
      ASSERT_NE(found, nullptr) << name << " of row " << row.step;
      EXPECT_EQ(*found, value) << name << " of row " << row.step;
    };
    if (row.version < 0) {
      EXPECT_NE(row.find("sft/loss"), nullptr);
    } else if (row.find("eval/episodes") != nullptr) {
      ++eval_rows[row.step];
      expect("eval/episodes", 2);
      expect("eval/failed", 0);
      expect("eval/verified", 1);
    } else {
      ++step_rows[row.step];
      EXPECT_EQ(row.version, row.step - 1);
      expect("reward/mean", 0.5);
      expect("env/success", 0.5);
      expect("env/verified", 2);
      expect("staleness/max", 0);
      expect("rollout/filtered_prompts", 0);
      for (const char* name : {"time/step", "time/rollout", "perf/tokens_per_s"}) {
        ASSERT_NE(row.find(name), nullptr) << name << " of row " << row.step;
        EXPECT_GT(*row.find(name), 0) << name << " of row " << row.step;
      }
      EXPECT_LE(*row.find("time/rollout"), *row.find("time/step"));
    }
  }
  for (int64_t step = 1; step <= steps; ++step)
    EXPECT_EQ(step_rows[step], 1) << "row of step " << step;
  for (int64_t v = 0; v <= steps; ++v)
    EXPECT_EQ(eval_rows[v], v % 2 == 0 || v == steps) << "evaluation of " << v;
}

TEST(Service, TakesARunFromStartToEnd) {
  TestRun run(5);
  Log log("scheduler", run.folder.path() / "log");
  auto service = run.make_service(log);
  TrainerDisk disk;
  FakeRollout w0("rollout-0", run.options.endpoint), w1("rollout-1", run.options.endpoint);
  FakeReward r0("reward-0", run.options.endpoint);
  FakeTrainer trainer(run.options.endpoint, disk, 5);
  w0.fail_next = 2;
  for (FakeWorker* worker : std::vector<FakeWorker*>{&w0, &w1, &r0, &trainer}) worker->start();
  const ServiceResult result = service->run();
  EXPECT_EQ(result.end, ServiceResult::End::kDone) << result.message;
  EXPECT_EQ(result.version, 5);
  trainer.kill();  // its disk is ours now
  EXPECT_EQ(disk.fault, "");
  EXPECT_EQ(disk.batches.size(), 5u);
  EXPECT_EQ(disk.checkpoint, 5);
  for (const auto& [step, batch] : disk.batches) {
    ASSERT_EQ(batch.size(), 4u);
    for (const TrainerDisk::Sample& sample : batch) {
      const auto trajectory = wire::decode_trajectory(sample.body);
      ASSERT_TRUE(trajectory);
      EXPECT_EQ(sample.reward, static_cast<double>(trajectory.value().lease.member.member));
    }
  }
  expect_complete_metrics(run, 5);
  // What is older than the last three versions, and named by no sample.
  EXPECT_EQ(trainer.released, 3);
  for (const MetricsRow& row : run.rows()) {
    if (row.step != 1 || row.version != 0) continue;
    ASSERT_NE(row.find("weights/stage_ms"), nullptr);
    EXPECT_EQ(*row.find("weights/stage_ms"), 2.0);
  }
  EXPECT_NE(read_file(run.options.paths.samples()).value().find("segments"), std::string::npos);
  // What was trained and saved is gone from the disk.
  const auto state = restore(run.options.paths.journal());
  ASSERT_TRUE(state);
  for (const BodyId& body : held_bodies(*state.value().state)) EXPECT_EQ(body.lane, Lane::kEval);
}

TEST(Service, StopsOnRequestAndContinuesWhereItWas) {
  TestRun run(6);
  TrainerDisk disk;
  {
    Log log("scheduler", run.folder.path() / "log");
    auto service = run.make_service(log);
    FakeRollout w0("rollout-0", run.options.endpoint, milliseconds(5));
    FakeReward r0("reward-0", run.options.endpoint);
    FakeTrainer trainer(run.options.endpoint, disk, 6);
    for (FakeWorker* worker : std::vector<FakeWorker*>{&w0, &r0, &trainer}) worker->start();
    std::thread stopper([&] {
      while (true) {
        std::this_thread::sleep_for(milliseconds(5));
        std::lock_guard lock(disk.mu);
        if (disk.batches.size() >= 2) break;
      }
      service->request_stop();
    });
    const ServiceResult result = service->run();
    stopper.join();
    EXPECT_EQ(result.end, ServiceResult::End::kStopped) << result.message;
    EXPECT_LT(result.version, 6);
    trainer.kill();
    EXPECT_EQ(disk.checkpoint, result.version);  // a checkpoint, then a clean end
  }
  Log log("scheduler", run.folder.path() / "log");
  auto service = run.make_service(log);
  FakeRollout w0("rollout-0", run.options.endpoint);
  FakeReward r0("reward-0", run.options.endpoint);
  FakeTrainer trainer(run.options.endpoint, disk, 6);
  for (FakeWorker* worker : std::vector<FakeWorker*>{&w0, &r0, &trainer}) worker->start();
  const ServiceResult result = service->run();
  EXPECT_EQ(result.end, ServiceResult::End::kDone) << result.message;
  EXPECT_EQ(result.version, 6);
  trainer.kill();
  EXPECT_EQ(disk.fault, "");
  expect_complete_metrics(run, 6);
}

TEST(Service, GoesOnWithTheNextPromptWhenTheStepsAreRaised) {
  TestRun run(3);
  run.options.config.datasets = {{.prompts_per_step = 2, .prompts_per_epoch = 5, .epochs = 0}};
  TrainerDisk disk;
  for (const int64_t steps : {3, 7}) {
    run.options.config.steps = steps;
    Log log("scheduler", run.folder.path() / "log");
    auto service = run.make_service(log);
    FakeRollout w0("rollout-0", run.options.endpoint), w1("rollout-1", run.options.endpoint);
    FakeReward r0("reward-0", run.options.endpoint);
    FakeTrainer trainer(run.options.endpoint, disk, steps);
    for (FakeWorker* worker : std::vector<FakeWorker*>{&w0, &w1, &r0, &trainer}) worker->start();
    const ServiceResult result = run_to_its_end(*service);
    EXPECT_EQ(result.end, ServiceResult::End::kDone) << result.message;
    EXPECT_EQ(result.version, steps);
    trainer.kill();
    EXPECT_EQ(disk.fault, "");
  }
  std::vector<int64_t> prompts;
  for (const auto& [step, batch] : disk.batches) {
    for (const TrainerDisk::Sample& sample : batch) {
      const auto header = wire::read_trajectory_header(sample.body);
      ASSERT_TRUE(header);
      const MemberId& member = header.value().lease.member;
      if (member.member == 0) prompts.push_back(member.epoch * 5 + member.prompt);
    }
  }
  std::vector<int64_t> expected(14);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(prompts, expected);
}

TEST(Service, AnArchivedRunCanBeReplayedFromItsFirstEvent) {
  TestRun run(6);
  run.options.storage.archive = true;
  const State start(run.options.config);
  TrainerDisk disk;
  for (const bool stops : {true, false}) {
    Log log("scheduler", run.folder.path() / "log");
    auto service = run.make_service(log);
    FakeRollout w0("rollout-0", run.options.endpoint), w1("rollout-1", run.options.endpoint);
    FakeReward r0("reward-0", run.options.endpoint);
    FakeTrainer trainer(run.options.endpoint, disk, 6);
    trainer.hears = [&](const wire::Message& message) {
      const auto* batch = std::get_if<wire::Batch>(&message);
      if (stops && batch != nullptr && batch->step == 3) service->request_stop();
    };
    for (FakeWorker* worker : std::vector<FakeWorker*>{&w0, &w1, &r0, &trainer}) worker->start();
    const ServiceResult result = run_to_its_end(*service);
    EXPECT_EQ(result.end, stops ? ServiceResult::End::kStopped : ServiceResult::End::kDone)
        << result.message;
  }
  State again = start;
  int64_t files = 0;
  for (int64_t number = 1;; ++number, ++files) {
    const auto path = run.options.paths.journal() / fmt::format("journal-{:06}.log", number);
    if (!std::filesystem::exists(path)) break;
    std::vector<std::string> notes;
    const auto file = read_journal(path, &notes);
    ASSERT_TRUE(file) << file.failure().message;
    EXPECT_TRUE(notes.empty());
    for (const JournalEntry& entry : file.value().entries)
      ASSERT_EQ(digest_of(decide(again, entry.event, entry.now)), entry.actions);
  }
  EXPECT_GE(files, 5) << "or nothing was ever rotated";
  const auto restored = restore(run.options.paths.journal());
  ASSERT_TRUE(restored) << restored.failure().message;
  EXPECT_EQ(again, *restored.value().state);
  EXPECT_TRUE(again.ended);
}

TEST(Service, EndsWithTheReasonWhenAWorkerCannotGoOn) {
  class Failing : public FakeWorker {
   public:
    explicit Failing(const std::string& endpoint)
        : FakeWorker(Role::kTrainer, "trainer-0", endpoint) {}
    ~Failing() override { kill(); }

   private:
    void begin(wire::WorkerClient& client) override {
      client.send(wire::WorkerFailed{"NaN in model.safetensors"});
    }
    void on(wire::WorkerClient&, const wire::Message&) override {}
  };
  TestRun run(2);
  Log log("scheduler", run.folder.path() / "log");
  auto service = run.make_service(log);
  Failing trainer(run.options.endpoint);
  trainer.start();
  const ServiceResult result = service->run();
  EXPECT_EQ(result.end, ServiceResult::End::kFailed);
  EXPECT_EQ(result.message, "trainer-0: NaN in model.safetensors");
}

// The trainer lives on while its scheduler is killed, and knows more than what is left of the
// journal.
TEST(Service, NamesTheDamageOfItsJournalWhereTheTrainerSeemsWrong) {
  TestRun run(4);
  State state(run.options.config);
  const auto file = run.options.paths.journal() / "journal-000001.log";
  int64_t offset = 0;
  {
    auto journal = Journal::open(run.options.paths.journal(), state, {});
    ASSERT_TRUE(journal) << journal.failure().message;
    for (const JournalEntry& entry : make_run(state)) {
      // Behind the first version, when there are no bodies yet.
      if (offset == 0 && state.policies.begin()->second.published == 0) offset = size_of(file);
      append(journal.value(), state, entry);
    }
  }
  ASSERT_GT(offset, 0);
  flip_byte(file, offset + 20);
  Log log("scheduler", run.folder.path() / "log");
  const auto service = run.make_service(log);
  ServiceResult result;
  std::thread loop([&] { result = run_to_its_end(*service); });
  Script trainer(Role::kTrainer, "t", run.options.endpoint);
  trainer.expect<wire::Welcome>();
  trainer.say(wire::TrainerReady{.version = 3, .digest = "three"});
  loop.join();
  EXPECT_EQ(result.end, ServiceResult::End::kFailed);
  EXPECT_NE(result.message.find("the trainer holds version 3, but the run is at version 0"),
            std::string::npos)
      << result.message;
  EXPECT_NE(result.message.find("The journal was damaged when this scheduler began, which may be "
                                "why: " +
                                file.string()),
            std::string::npos)
      << result.message;
  EXPECT_NE(result.message.find(fmt::format("damaged at offset {}", offset)), std::string::npos)
      << result.message;
}

TEST(Service, RefusesOtherDatasetsForARunThatWasBegun) {
  TestRun run(2);
  Log log("scheduler", run.folder.path() / "log");
  run.make_service(log).reset();
  run.options.config.datasets.push_back({.prompts_per_step = 1});
  try {
    run.make_service(log);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("datasets"), std::string::npos) << error.what();
  }
}

TEST(ServiceChaos, ARunWhosePartsAreKilledEndsTheSame) {
  constexpr int64_t kSteps = 40;
  TestRun run(kSteps);
  ServiceLauncher launcher(run);
  TrainerDisk disk;
  std::vector<std::unique_ptr<FakeWorker>> workers;
  workers.push_back(
      std::make_unique<FakeRollout>("rollout-0", run.options.endpoint, milliseconds(3)));
  workers.push_back(
      std::make_unique<FakeRollout>("rollout-1", run.options.endpoint, milliseconds(4)));
  workers.push_back(std::make_unique<FakeReward>("reward-0", run.options.endpoint));
  workers.push_back(
      std::make_unique<FakeTrainer>(run.options.endpoint, disk, kSteps, milliseconds(10)));
  launcher.start();
  for (auto& worker : workers) worker->start();
  Rng rng(5);
  int status = -1, kills = 0;
  for (int i = 0; i < 600 && status == -1; ++i) {
    std::this_thread::sleep_for(milliseconds(60));
    status = launcher.poll();
    if (status != -1 || kills >= 12) continue;
    ++kills;
    if (rng.chance(0.5)) {
      launcher.kill();
      launcher.start();
    } else {
      FakeWorker& victim = *workers[static_cast<size_t>(rng.below(std::ssize(workers)))];
      if (victim.shut_down()) continue;
      victim.kill();
      victim.start();
    }
  }
  EXPECT_EQ(status, 0);
  EXPECT_GE(kills, 5);  // or the run was too short to say anything
  for (auto& worker : workers) worker->kill();
  EXPECT_EQ(disk.fault, "");
  EXPECT_EQ(disk.checkpoint, kSteps);
  // Every prompt exactly once, in its place: sampling does not depend on who is killed.
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto& batch = disk.batches[step];
    ASSERT_EQ(batch.size(), 4u) << "step " << step;
    for (int64_t i = 0; i < 4; ++i) {
      const auto t = wire::decode_trajectory(batch[static_cast<size_t>(i)].body);
      ASSERT_TRUE(t);
      EXPECT_EQ(t.value().lease.member.prompt, 2 * (step - 1) + i / 2);
      EXPECT_EQ(t.value().lease.member.member, i % 2);
      EXPECT_EQ(t.value().min_version(), step - 1);
    }
  }
  expect_complete_metrics(run, kSteps);
}

}  // namespace
}  // namespace tailrace::scheduler
