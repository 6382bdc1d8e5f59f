// One worker that is of no use, beside one that is: the run goes on, and says what is wrong.
#include <atomic>
#include <utility>

#include "core/base/file.h"
#include "scheduler/store/journal.h"
#include "tests/scheduler/service/test_run.h"

namespace tailrace::scheduler {
namespace {

using fakes::FakeReward;
using fakes::FakeRollout;
using fakes::FakeTrainer;
using fakes::FakeWorker;
using fakes::TrainerDisk;
using std::chrono::milliseconds;

// It heartbeats, installs, and never answers a grant.
class Hangs : public FakeRollout {
 public:
  using FakeRollout::FakeRollout;
  ~Hangs() override { kill(); }

 protected:
  void on(wire::WorkerClient& client, const wire::Message& message) override {
    if (!std::holds_alternative<wire::Grant>(message)) FakeRollout::on(client, message);
  }
};

// It says whatever the others say.
class Meddles : public FakeRollout {
 public:
  using FakeRollout::FakeRollout;
  ~Meddles() override { kill(); }

 protected:
  void begin(wire::WorkerClient& client) override {
    FakeRollout::begin(client);
    meddle(client);
  }
  void on(wire::WorkerClient& client, const wire::Message& message) override {
    meddle(client);
    FakeRollout::on(client, message);
  }

 private:
  static void meddle(wire::WorkerClient& client) {
    client.send(wire::TrainerReady{.version = -1, .digest = ""});
    client.send(wire::TrainerReady{.version = 7, .digest = "7", .manifest = "m"});
    client.send(wire::TrainerWants{0, 1});
    client.send(wire::Published{0, 1, "x", "m", {}, {{"reward/mean", 9.0}}});
    client.send(wire::Durable{0, 1, 1, "c"});
    client.send(wire::Progress{"sft", 99, 99, {{"sft/loss", 9.0}}});
    client.send(wire::Verdict{{}, Lane::kTrain, 1, 1.0, {}, ""});
    client.send(wire::Fetch{.request = 1, .bodies = {}, .offset = 0, .max_bytes = 10});
  }
};

class FailsInstalls : public FakeRollout {
 public:
  using FakeRollout::FakeRollout;
  ~FailsInstalls() override { kill(); }

 protected:
  void on(wire::WorkerClient& client, const wire::Message& message) override {
    if (const auto* install = std::get_if<wire::Stage>(&message))
      client.send(
          wire::InstallFailed{install->policy, install->version, install->digest, "no such file"});
  }
};

// At the first grant after an install it says that it cannot go on.
class GivesUp : public FakeRollout {
 public:
  using FakeRollout::FakeRollout;
  ~GivesUp() override { kill(); }

 protected:
  void on(wire::WorkerClient& client, const wire::Message& message) override {
    if (!std::holds_alternative<wire::Grant>(message)) {
      said_ = false;
      FakeRollout::on(client, message);
    } else if (!std::exchange(said_, true)) {
      client.send(wire::WorkerFailed{"the disk is full"});
    }
  }

 private:
  bool said_ = false;
};

// Whose environment always breaks.
class Breaks : public FakeRollout {
 public:
  Breaks(std::string name, const std::string& endpoint) : FakeRollout(std::move(name), endpoint) {
    fail_next = 1 << 30;
  }
  ~Breaks() override { kill(); }
};

// Whose samples no trainer takes.
class OverflowsTheVocabulary : public FakeRollout {
 public:
  using FakeRollout::FakeRollout;
  ~OverflowsTheVocabulary() override { kill(); }

 protected:
  void adjust(Trajectory& t) override { t.segments[0].tokens[0] = 16; }
};
class OverflowsTheContext : public FakeRollout {
 public:
  OverflowsTheContext(std::string name, const std::string& endpoint)
      : FakeRollout(std::move(name), endpoint) {
    num_tokens = 10;
  }
  ~OverflowsTheContext() override { kill(); }
};
class KeepsSecrets : public FakeRollout {
 public:
  using FakeRollout::FakeRollout;
  ~KeepsSecrets() override { kill(); }

 protected:
  void adjust(Trajectory& t) override { t.sampling.top_k = 3; }
};

class Exaggerates : public FakeRollout {
 public:
  using FakeRollout::FakeRollout;
  ~Exaggerates() override { kill(); }

 protected:
  void adjust(Trajectory& t) override { t.segments[0].logprobs.back() = 5; }
};
class SamplesItsOwnWay : public FakeRollout {
 public:
  using FakeRollout::FakeRollout;
  ~SamplesItsOwnWay() override { kill(); }

 protected:
  void adjust(Trajectory& t) override { t.sampling.temperature = 1e-300; }
};

struct BadWorker : testing::Test {
  BadWorker() : run(kSteps) {
    run.options.config.quarantine = {.faults = 3,
                                     .first = milliseconds(20),
                                     .longest = milliseconds(200),
                                     .limit = 2};  // so few that a lone worker would end the run
    run.options.config.retries.env_failed = 1000;
    run.options.bodies = kLimits;
  }

  template <class Bad>
  void expect_the_run_to_end_well(const std::string& reason, int64_t quarantines = 2) {
    Log log("scheduler", run.folder.path() / "log");
    auto service = run.make_service(log);
    TrainerDisk disk;
    Bad bad("rollout-bad", run.options.endpoint);
    FakeRollout good("rollout-good", run.options.endpoint, milliseconds(5));
    FakeReward r0("reward-0", run.options.endpoint);
    FakeTrainer trainer(run.options.endpoint, disk, kSteps);
    // Nothing is to be done before both are there.
    std::atomic<int> here{0};
    const auto count = [&](const wire::Message& message) {
      if (std::holds_alternative<wire::Hold>(message) && ++here == 2) trainer.start();
    };
    bad.hears = good.hears = count;
    for (FakeWorker* worker : std::vector<FakeWorker*>{&bad, &good, &r0}) worker->start();
    const ServiceResult result = run_to_its_end(*service);
    bad.kill();
    good.kill();
    EXPECT_EQ(result.end, ServiceResult::End::kDone) << result.message;
    EXPECT_EQ(result.version, kSteps);
    trainer.kill();
    EXPECT_EQ(disk.fault, "");
    EXPECT_EQ(std::ssize(disk.batches), kSteps);
    for (const auto& [step, samples] : disk.batches)
      for (const TrainerDisk::Sample& sample : samples)
        EXPECT_EQ(find_unfit(wire::decode_trajectory(sample.body).value(), run.options.bodies),
                  std::nullopt)
            << "step " << step;
    int64_t quarantined = 0;
    const std::string text = read_file(run.folder.path() / "log").value();
    LineReader lines(text);
    while (auto line = lines.next()) {
      if (line->text.find("gets no work until") == std::string_view::npos) continue;
      ++quarantined;
      EXPECT_NE(line->text.find("rollout-bad"), std::string_view::npos) << line->text;
      EXPECT_NE(line->text.find(reason), std::string_view::npos) << line->text;
    }
    EXPECT_GE(quarantined, quarantines) << "again and again";
  }

  static constexpr int64_t kSteps = 30;
  static inline const BodyLimits kLimits{
      .vocab_size = 16, .max_context_tokens = 9, .needs_sets = true};
  TestRun run;
};

TEST_F(BadWorker, ThatHangsAndHeartbeatsDoesNotEndTheRun) {
  run.options.config.deadlines.lease =
      milliseconds(250);  // for the good one too, on a busy machine
  expect_the_run_to_end_well<Hangs>("no answer within the deadline");
}

TEST_F(BadWorker, ThatFailsEveryInstallDoesNotEndTheRun) {
  expect_the_run_to_end_well<FailsInstalls>("no such file");
}

TEST_F(BadWorker, ThatGivesUpDoesNotEndTheRun) {
  expect_the_run_to_end_well<GivesUp>("the disk is full");
}

TEST_F(BadWorker, WhoseEnvironmentAlwaysBreaksDoesNotEndTheRun) {
  expect_the_run_to_end_well<Breaks>("the fake environment broke");
}

TEST_F(BadWorker, WhoseSamplesNoTrainerTakesDoesNotEndTheRun) {
  expect_the_run_to_end_well<OverflowsTheVocabulary>("holds token 16; the vocabulary has 16");
}

TEST_F(BadWorker, WhoseContextsNoTrainerTakesDoesNotEndTheRun) {
  expect_the_run_to_end_well<OverflowsTheContext>("has a context of 10 tokens");
}

TEST_F(BadWorker, ThatKeepsItsSetsToItselfDoesNotEndTheRun) {
  expect_the_run_to_end_well<KeepsSecrets>("does not say what its tokens were drawn from");
}

TEST_F(BadWorker, WhoseLogProbabilitiesAreNoneDoesNotEndTheRun) {
  expect_the_run_to_end_well<Exaggerates>("its log-probability is 5");
}

TEST_F(BadWorker, ThatSamplesItsOwnWayDoesNotEndTheRun) {
  run.options.bodies.sampling = SamplingParams();
  expect_the_run_to_end_well<SamplesItsOwnWay>("was sampled with temperature 1e-300");
}

TEST_F(BadWorker, ThatSaysWhatOthersSayIsNotHeard) {
  expect_the_run_to_end_well<Meddles>("", /*quarantines=*/0);
  for (const MetricsRow& row : run.rows()) {
    for (const char* name : {"reward/mean", "sft/loss"})
      EXPECT_NE(row.find(name) == nullptr ? 0 : *row.find(name), 9.0) << "row " << row.step;
  }
  const std::string text = read_file(run.folder.path() / "log").value();
  EXPECT_NE(text.find("messages that are not their sender's to send: 1, the latest from "
                      "rollout-bad: TrainerReady"),
            std::string::npos);
}

// Alone it ends the run, and says why.
TEST_F(BadWorker, ThatIsAloneEndsTheRunWithItsReason) {
  run.options.config.deadlines.lease = milliseconds(60);
  Log log("scheduler", run.folder.path() / "log");
  auto service = run.make_service(log);
  TrainerDisk disk;
  Hangs bad("rollout-bad", run.options.endpoint);
  FakeReward r0("reward-0", run.options.endpoint);
  FakeTrainer trainer(run.options.endpoint, disk, kSteps);
  for (FakeWorker* worker : std::vector<FakeWorker*>{&bad, &r0, &trainer}) worker->start();
  const ServiceResult result = run_to_its_end(*service);
  EXPECT_EQ(result.end, ServiceResult::End::kFailed);
  EXPECT_NE(result.message.find("no rollout worker is fit for work: rollout-bad"),
            std::string::npos)
      << result.message;
}

}  // namespace
}  // namespace tailrace::scheduler
