// A machine that loses power: what the scheduler has said to others must not be forgotten. A
// DiskWitness gives what would be left of the run directory at the moment a message is there.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "core/base/error.h"
#include "scheduler/store/journal.h"
#include "scheduler/store/trajectory_store.h"
#include "tests/scheduler/service/disk_witness.h"
#include "tests/scheduler/service/test_run.h"

namespace tailrace::scheduler {
namespace {

namespace fs = std::filesystem;
using fakes::FakeReward;
using fakes::FakeRollout;
using fakes::FakeTrainer;
using fakes::FakeWorker;
using fakes::TrainerDisk;
using std::chrono::milliseconds;

constexpr int64_t kSteps = 7;

struct PowerLoss : testing::Test {
  // What is left when the power goes at this moment, and what the trainer had then.
  struct Image {
    std::string when;
    int64_t version = -1;  // of the message
    fs::path root;
    int64_t checkpoint = -1;
    std::map<int64_t, std::vector<TrainerDisk::Sample>> batches;
  };

  PowerLoss() : run(kSteps), witness(run.folder.path() / "run", run.folder.path() / "notes") {
    run.options.paths.root = run.folder.path() / "run";
    fs::create_directories(run.options.paths.root);
    trainer.hears = [this](const wire::Message& message) {
      if (const auto* batch = std::get_if<wire::Batch>(&message)) take("batch", batch->step);
      if (const auto* save = std::get_if<wire::Save>(&message)) take("save", save->version);
      if (std::holds_alternative<wire::Shutdown>(message)) take("end", kSteps);
    };
  }

  void take(const std::string& when, int64_t version) {
    Image image;
    image.when = when;
    image.version = version;
    image.root = run.folder.path() / fmt::format("image-{}", num_images++);
    witness.write_image(image.root, {"journal", "trajectories"});
    {
      std::lock_guard lock(disk.mu);
      image.checkpoint = disk.checkpoint;
      image.batches = disk.batches;
    }
    std::lock_guard lock(mu);
    images.push_back(std::move(image));
  }

  void run_undisturbed() {
    witness.on_remove = [this](const fs::path& file) {
      if (file.extension() == ".seg") take("release", -1);
    };
    // Also between two of them, when one file knows what another does not yet.
    witness.on_sync = [this](const fs::path&) { take("sync", -1); };
    Log log("scheduler", run.folder.path() / "log");
    auto service = run.make_service(log);
    FakeRollout w0("rollout-0", run.options.endpoint), w1("rollout-1", run.options.endpoint);
    FakeReward r0("reward-0", run.options.endpoint);
    for (FakeWorker* worker : std::vector<FakeWorker*>{&w0, &w1, &r0, &trainer}) worker->start();
    const ServiceResult result = run_to_its_end(*service);
    EXPECT_EQ(result.end, ServiceResult::End::kDone) << result.message;
    trainer.kill();
    EXPECT_EQ(disk.fault, "");
    witness.on_remove = nullptr;
    witness.on_sync = nullptr;
  }

  // What others know of is on the disk: nothing that was trained on, or is being, is missing.
  static void expect_nothing_lost(const Image& image) {
    SCOPED_TRACE(fmt::format("{} {}", image.when, image.version));
    const RunPaths paths{image.root};
    const auto restored = restore(paths.journal());
    ASSERT_TRUE(restored) << restored.failure().message;
    // Before the first snapshot nobody had been told anything.
    if (image.when == "sync" && !restored.value().state) return;
    ASSERT_TRUE(restored.value().state);
    const State& state = *restored.value().state;
    const Policy& policy = state.policies.at(0);
    if (image.when == "batch") {
      EXPECT_EQ(policy.published, image.version - 1);
      EXPECT_TRUE(policy.batches.contains(image.version));
    } else if (image.when == "save") {
      EXPECT_EQ(policy.published, image.version);
    } else if (image.when == "end") {
      EXPECT_TRUE(state.ended);
    }
    const auto store = TrajectoryStore::open(paths.trajectories(), 4096);
    ASSERT_TRUE(store) << store.failure().message;
    int64_t bodies = 0;
    for (const auto& [id, task] : policy.tasks) {
      const bool trained = task.place == Place::kDone && task.end == TaskEnd::kTrained;
      if (!trained && task.place != Place::kHandedOver) continue;
      for (const BodyId& body : bodies_of(Lane::kTrain, id, task)) {
        EXPECT_TRUE(store.value().get(body)) << to_string(body.lease) << " is gone";
        ++bodies;
      }
    }
    EXPECT_TRUE(bodies > 0 || image.when != "batch");
  }

  // The run goes on from the image, with a trainer that has this version, to the same end.
  void expect_to_go_on(const Image& image, int64_t trainer_version) {
    SCOPED_TRACE(fmt::format("power lost at {} {}, trainer at {}", image.when, image.version,
                             trainer_version));
    const fs::path root = run.folder.path() / "again";
    fs::remove_all(root);
    fs::copy(image.root, root, fs::copy_options::recursive);
    ServiceOptions options = run.options;
    options.paths.root = root;
    TrainerDisk its_disk;
    its_disk.checkpoint = trainer_version;
    its_disk.batches = image.batches;
    Log log("scheduler", run.folder.path() / "log");
    Service service(options, run.clock, log);
    FakeRollout w0("rollout-0", options.endpoint), w1("rollout-1", options.endpoint);
    FakeReward r0("reward-0", options.endpoint);
    FakeTrainer its_trainer(options.endpoint, its_disk, kSteps);
    for (FakeWorker* worker : std::vector<FakeWorker*>{&w0, &w1, &r0, &its_trainer})
      worker->start();
    const ServiceResult result = run_to_its_end(service);
    EXPECT_EQ(result.end, ServiceResult::End::kDone) << result.message;
    EXPECT_EQ(result.version, kSteps);
    its_trainer.kill();
    // It was given what it had been given before, wherever it had to train again.
    EXPECT_EQ(its_disk.fault, "");
    for (int64_t step = 1; step <= kSteps; ++step) {
      const auto& batch = its_disk.batches[step];
      const int64_t expected = step <= trainer_version && batch.empty() ? 0 : 4;
      EXPECT_EQ(std::ssize(batch), expected) << "step " << step;
    }
  }

  int64_t count(std::string_view when) const {
    return std::ranges::count(images, when, &Image::when);
  }

  TestRun run;
  DiskWitness witness;
  TrainerDisk disk;
  std::atomic<int> num_images{0};
  std::mutex mu;
  std::vector<Image> images;
  FakeTrainer trainer{run.options.endpoint, disk, kSteps};
};

TEST_F(PowerLoss, FindsOnTheDiskWhatTheTrainerWasToldAndNothingReleasedThatIsNeeded) {
  run_undisturbed();
  EXPECT_EQ(count("batch"), kSteps);
  EXPECT_GE(count("save"), 3);
  EXPECT_GE(count("release"), 2);
  EXPECT_GE(count("sync"), 4 * kSteps);
  EXPECT_EQ(count("end"), 1);
  for (const Image& image : images) expect_nothing_lost(image);
}

TEST_F(PowerLoss, AtAHandOverLosesNoStep) {
  run_undisturbed();
  for (const Image& image : images) {
    if (image.when != "batch") continue;
    expect_to_go_on(image, image.checkpoint);   // all machines lost their power
    expect_to_go_on(image, image.version - 1);  // the trainer's did not
    expect_to_go_on(image, image.version);      // and it went on alone
  }
}

TEST_F(PowerLoss, AtACheckpointOrARemovalOrTheEndLosesNoStep) {
  run_undisturbed();
  for (const Image& image : images) {
    if (image.when != "batch" && image.when != "sync") expect_to_go_on(image, image.checkpoint);
  }
}

// What a killed scheduler left in the page cache is handed over by the next one.
TEST_F(PowerLoss, KeepsBodiesOfAServiceThatWasKilledBefore) {
  ServiceLauncher launcher(run);
  FakeRollout w0("rollout-0", run.options.endpoint);
  FakeReward r0("reward-0", run.options.endpoint);
  // The worker falls silent when it has answered two of the four samples of step 2.
  std::mutex gate;
  std::atomic<int> grants{0};
  gate.lock();
  w0.hears = [&](const wire::Message& message) {
    const auto* grant = std::get_if<wire::Grant>(&message);
    if (grant == nullptr || grant->lane != Lane::kTrain || grant->lease.member.prompt < 2) return;
    if (++grants == 3) std::lock_guard wait(gate);
  };
  launcher.start();
  for (FakeWorker* worker : std::vector<FakeWorker*>{&w0, &r0, &trainer}) worker->start();
  const bool two_are_there = wait_until([&] {
    const auto seen = restore(run.options.paths.journal());
    if (!seen || !seen.value().state) return false;
    int64_t bodies = 0;
    for (const BodyId& body : held_bodies(*seen.value().state))
      bodies += body.lane == Lane::kTrain && body.lease.member.prompt >= 2;
    return bodies == 2;
  });
  EXPECT_TRUE(two_are_there);
  launcher.kill();
  launcher.start();
  gate.unlock();
  int status = -1;
  EXPECT_TRUE(wait_until([&] { return (status = launcher.poll()) != -1; }));
  EXPECT_EQ(status, 0);
  trainer.kill();
  EXPECT_EQ(disk.fault, "");
  EXPECT_EQ(count("batch"), kSteps);
  for (const Image& image : images) expect_nothing_lost(image);
}

}  // namespace
}  // namespace tailrace::scheduler
