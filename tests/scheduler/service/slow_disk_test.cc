// A disk that takes its time, or stands still: who waits for it is well, and it is the disk that is
// named. A DiskWitness plays the disk.
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <set>
#include <thread>

#include "kernels/base/pulse.h"
#include "scheduler/service/store_actor.h"
#include "tests/scheduler/service/disk_witness.h"
#include "tests/scheduler/service/test_run.h"

namespace tailrace::scheduler {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct SlowDisk : testing::Test {
  SlowDisk() {
    run.options.paths.root = bodies.parent_path();
    fs::create_directories(bodies);
  }
  ~SlowDisk() override {
    go_on.count_down();
    store.reset();
  }

  // Each body has a file of its own, and the one before is synced at its turn.
  void open(milliseconds patience) {
    store = std::make_unique<StoreActor>(TrajectoryStore::open(bodies, /*segment_bytes=*/1).value(),
                                         patience, [] {});
  }
  void put() {
    const LeaseId lease{{.prompt = num_bodies++}, 1};
    store->put({Lane::kTrain, lease},
               wire::encode_trajectory(fakes::make_trajectory(lease, Lane::kTrain, 0)),
               [](const StoreActor::Stored& stored) { EXPECT_TRUE(stored.ok()); });
  }
  // From now on the disk is as slow as `work`, which runs on the thread that waits for it.
  void slow_down(const std::function<void()>& work) {
    witness.on_sync = [work](const fs::path&) { work(); };
  }
  void stand_still() {
    slow_down([this] { go_on.wait(); });
  }
  void expect_named(const std::string& failure) const {
    const std::string name =
        fmt::format("the disk of {} has taken and given nothing for ", bodies.string());
    EXPECT_NE(failure.find(name), std::string::npos) << failure;
  }

  TestRun run{2};
  fs::path bodies = run.folder.path() / "run" / "trajectories";
  DiskWitness witness{bodies, run.folder.path() / "notes"};
  std::latch go_on{1};
  std::set<uint64_t> seen;  // beats of the store's thread, whenever it turned to the disk
  std::unique_ptr<StoreActor> store;
  int64_t num_bodies = 0;
};

TEST_F(SlowDisk, DoesNotStopThePulseOfWhoWaitsForIt) {
  Pulse pulse;
  const PulseScope scope(pulse);
  open(seconds(60));
  put();
  std::atomic<bool> beats = false;
  slow_down([&] {
    const uint64_t before = pulse.beats();
    beats = wait_until([&] { return pulse.beats() >= before + 3; }, seconds(10));
  });
  EXPECT_TRUE(store->sync());
  EXPECT_TRUE(beats);
}

TEST_F(SlowDisk, DoesNotStopThePulseOfTheService) {
  constexpr int kSyncs = 5;
  run.options.storage.store_bytes = 1;
  Pulse pulse;
  std::atomic<int> syncs = 0, with_beats = 0;
  slow_down([&] {
    if (++syncs > kSyncs) return;
    const uint64_t before = pulse.beats();
    with_beats += wait_until([&] { return pulse.beats() >= before + 3; }, seconds(5));
  });
  Log log("scheduler", run.folder.path() / "log");
  fakes::TrainerDisk disk;
  fakes::FakeRollout w0("rollout-0", run.options.endpoint);
  fakes::FakeReward r0("reward-0", run.options.endpoint);
  fakes::FakeTrainer trainer(run.options.endpoint, disk, 2);
  for (fakes::FakeWorker* worker : std::vector<fakes::FakeWorker*>{&w0, &r0, &trainer})
    worker->start();
  const PulseScope scope(pulse);
  const ServiceResult result = run_to_its_end(*run.make_service(log));
  EXPECT_EQ(result.end, ServiceResult::End::kDone) << result.message;
  EXPECT_GE(syncs, kSyncs);
  EXPECT_EQ(with_beats, kSyncs);
}

// While the disk is slow, workers go on sending: what waits for it is bounded in bytes, not only in
// number.
TEST_F(SlowDisk, BodiesThatWaitForItAreBoundedInBytes) {
  const LeaseId first{{}, 1};
  const auto body = wire::encode_trajectory(fakes::make_trajectory(first, Lane::kTrain, 0, 6000));
  constexpr int kFit = 3;
  store = std::make_unique<StoreActor>(
      TrajectoryStore::open(bodies, /*segment_bytes=*/1).value(), milliseconds(300),
      [this] { go_on.wait(); }, BodyLimits{}, kFit * std::ssize(body));
  int taken = 0;
  for (; taken < 50 && store->failure().empty(); ++taken)
    store->put({Lane::kTrain, {{.prompt = taken}, 1}}, body, [](const StoreActor::Stored&) {});
  // One is in work, and the last was given up.
  EXPECT_LE(taken, kFit + 2);
  EXPECT_GE(taken, kFit);
  expect_named(store->failure());
}

TEST_F(SlowDisk, ThatStandsStillIsNamedByWhoWaitsForIt) {
  open(milliseconds(300));
  put();
  stand_still();
  const auto synced = store->sync();
  ASSERT_FALSE(synced);
  expect_named(synced.failure().message);
  EXPECT_EQ(store->failure(), synced.failure().message);
  EXPECT_FALSE(store->sync()) << "it is lost";
}

TEST_F(SlowDisk, ThatStandsStillIsNamedByWhoFindsNoRoom) {
  open(milliseconds(300));
  stand_still();
  while (num_bodies < 1000 && store->failure().empty()) put();
  EXPECT_LT(num_bodies, 1000);
  expect_named(store->failure());
}

TEST_F(SlowDisk, ThatStandsStillIsNamedWhileNobodyWaitsForIt) {
  open(milliseconds(300));
  stand_still();
  for (int i = 0; i < 3; ++i) put();
  EXPECT_TRUE(wait_until([&] {
    store->run_answers();
    return !store->failure().empty();
  }));
  expect_named(store->failure());
}

// However many a request is of.
TEST_F(SlowDisk, EachBodyOfARequestIsProgress) {
  static constexpr size_t kBodies = 6;
  open(seconds(60));
  for (size_t i = 0; i < kBodies; ++i) put();
  ASSERT_TRUE(store->sync());
  std::vector<BodyId> ids;
  for (int64_t i = 0; i < num_bodies; ++i) ids.push_back({Lane::kTrain, {{.prompt = i}, 1}});
  witness.on_read = witness.on_remove = [&](const fs::path&) {
    seen.insert(bound_pulse() == nullptr ? 0 : bound_pulse()->beats());
  };
  const auto expect_progress = [&](const char* what) {
    ASSERT_TRUE(store->sync());
    EXPECT_TRUE(wait_until([&] {
      store->run_answers();
      return store->idle();
    }));
    // The file that is written to is never removed.
    EXPECT_GE(seen.size(), kBodies - 1) << what;
    seen.clear();
  };
  store->describe(ids, [](auto&& found, const auto&) { EXPECT_EQ(found.size(), kBodies); });
  expect_progress("describe");
  store->decode(ids, [](auto&& found, const auto&) { EXPECT_EQ(found.size(), kBodies); });
  expect_progress("decode");
  store->read(ids, 0, 1 << 20, [](auto&& bytes, const auto& lost) {
    EXPECT_FALSE(bytes.empty());
    EXPECT_TRUE(lost.empty());
  });
  expect_progress("read");
  store->release(ids);
  expect_progress("release");
}

// However long all of it takes.
TEST_F(SlowDisk, ThatGoesOnIsWaitedFor) {
  open(milliseconds(1500));
  slow_down([] { std::this_thread::sleep_for(milliseconds(250)); });
  for (int i = 0; i < 12; ++i) put();
  const auto synced = store->sync();
  EXPECT_TRUE(synced) << synced.failure().message;
  store->run_answers();
  EXPECT_EQ(store->failure(), "");
}

}  // namespace
}  // namespace tailrace::scheduler
