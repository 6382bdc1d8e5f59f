// Snapshots that are written while events go on, on a disk that is slow or loses its power.
// A DiskWitness plays the disk.
#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <set>
#include <string>
#include <thread>

#include "core/base/file.h"
#include "kernels/base/pulse.h"
#include "tests/scheduler/service/disk_witness.h"
#include "tests/scheduler/service/test_run.h"
#include "tests/scheduler/store/short_run.h"

namespace tailrace::scheduler {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

bool names(const fs::path& file, std::string_view name) {
  return file.filename().string().starts_with(name);
}

struct Snapshots : testing::Test {
  Snapshots() { fs::create_directories(files); }
  ~Snapshots() override { go_on.count_down(); }

  // A new pair is due after each event.
  Journal open(milliseconds patience = seconds(60)) {
    return Journal::open(files, start, {.segment_bytes = 1, .patience = patience}).value();
  }
  void tell(Journal& journal, size_t count) {
    for (size_t i = 0; i < count; ++i, ++told) append(journal, state, entries[told]);
  }
  // The snapshot of the cut is on the disk.
  static void expect_written(Journal& journal) {
    ASSERT_TRUE(wait_until([&] { return journal.is_due() || !journal.look(); }));
    const auto written = journal.look();
    EXPECT_TRUE(written) << (written ? "" : written.failure().message);
  }
  // To the bit.
  void expect_restored(const fs::path& directory) const {
    const auto restored = restore(directory);
    ASSERT_TRUE(restored) << restored.failure().message;
    ASSERT_TRUE(restored.value().state);
    EXPECT_TRUE(to_bytes(*restored.value().state) == to_bytes(state));
  }

  const State start{small_config(2, 2)};
  const std::vector<JournalEntry> entries = make_run(start);
  State state = start;
  size_t told = 0;
  ScratchFolder folder;
  fs::path files = folder.path() / "run" / "journal";
  DiskWitness witness{folder.path() / "run", folder.path() / "notes"};
  std::latch go_on{1};
};

TEST_F(Snapshots, AreWrittenWhileEventsAreTaken) {
  Journal journal = open();
  tell(journal, 10);
  std::atomic<bool> held = false;
  witness.before_sync = [&](const fs::path& file) {
    if (!names(file, "snapshot-000002")) return;
    held = true;
    go_on.wait();
  };
  ASSERT_TRUE(journal.cut(state));
  journal.bodies_are_on_disk();
  ASSERT_TRUE(wait_until([&] { return held.load(); }));
  tell(journal, 10);
  // Also on the disk: it is the snapshot alone that is late.
  EXPECT_TRUE(journal.commit(true));
  EXPECT_FALSE(journal.is_due()) << "one at a time";
  EXPECT_FALSE(fs::exists(files / "snapshot-000002.bin"));
  expect_restored(files);
  go_on.count_down();
  expect_written(journal);
  EXPECT_TRUE(fs::exists(files / "snapshot-000002.bin"));
  expect_restored(files);
}

TEST_F(Snapshots, WaitForTheBodiesThatTheyCountOn) {
  Journal journal = open();
  tell(journal, 10);
  std::atomic<bool> touched = false;
  witness.before_sync = [&](const fs::path&) { touched = true; };
  ASSERT_TRUE(journal.cut(state));
  tell(journal, 1);
  EXPECT_FALSE(journal.is_due());
  EXPECT_FALSE(touched);
  journal.bodies_are_on_disk();
  expect_written(journal);
  EXPECT_TRUE(touched);
}

// What a kill leaves at each moment, and what a machine without power does.
TEST_F(Snapshots, LoseNothingAtAnyMomentOfACut) {
  Journal journal = open();
  tell(journal, 8);
  ASSERT_TRUE(journal.cut(state));
  journal.bodies_are_on_disk();
  expect_written(journal);  // so that there is an older pair to go
  tell(journal, 8);
  std::set<std::string> moments;
  int images = 0;
  const auto look = [&](const char* when, const fs::path& file) {
    // The number of the process is no part of it.
    moments.insert(fmt::format("{} {}", when, file.filename().string().substr(0, 26)));
    SCOPED_TRACE(fmt::format("{} {}", when, file.filename().string()));
    const fs::path image = folder.path() / fmt::format("kill-{}", ++images);
    fs::copy(files, image, fs::copy_options::recursive);
    expect_restored(image);
    const auto unfinished = image / file.filename();
    if (file.filename().string().find("unfinished") != std::string::npos)
      fs::resize_file(unfinished, fs::file_size(unfinished) / 2);
    expect_restored(image);
    ASSERT_TRUE(Journal::open(image, state, {}));
    expect_restored(image);

    const fs::path power = folder.path() / fmt::format("power-{}", images);
    witness.write_image(power, {"journal"});
    const auto left = restore(power / "journal");
    ASSERT_TRUE(left) << left.failure().message;
    ASSERT_TRUE(left.value().state);
    bool known = false;
    for (size_t count = 0; count <= told; ++count)
      known = known || *left.value().state == replay(start, entries, count);
    EXPECT_TRUE(known) << "a state that never was";
  };
  ASSERT_TRUE(journal.cut(state));
  tell(journal, 4);  // behind the cut
  witness.before_sync = [&](const fs::path& file) { look("before", file); };
  witness.on_sync = [&](const fs::path& file) { look("after", file); };
  witness.on_remove = [&](const fs::path& file) { look("removes", file); };
  journal.bodies_are_on_disk();
  expect_written(journal);
  witness.before_sync = witness.on_sync = witness.on_remove = nullptr;
  EXPECT_EQ(moments, (std::set<std::string>{
                         "before journal-000002.log", "after journal-000002.log", "before journal",
                         "after journal", "before snapshot-000003.bin.unfini",
                         "after snapshot-000003.bin.unfini", "removes snapshot-000001.bin",
                         "removes journal-000001.log"}));
  expect_restored(files);
}

// What is synced behind the cut has all before it.
TEST_F(Snapshots, ASyncBehindACutTakesTheEventsBeforeItAlong) {
  Journal journal = open();
  tell(journal, 10);
  ASSERT_TRUE(journal.cut(state));
  tell(journal, 10);
  // The snapshot itself is late.
  witness.before_sync = [&](const fs::path& file) {
    if (names(file, "snapshot-000002")) go_on.wait();
  };
  ASSERT_TRUE(journal.commit(true));
  witness.write_image(folder.path() / "power", {"journal"});
  EXPECT_FALSE(fs::exists(folder.path() / "power/journal/snapshot-000002.bin"));
  expect_restored(folder.path() / "power/journal");
  go_on.count_down();
  expect_written(journal);
}

TEST_F(Snapshots, ADiskThatStandsStillIsNamedAndWhoWaitsForItBeats) {
  // More than a look counts for, so that it takes two of them.
  Journal journal = open(milliseconds(1'500));
  tell(journal, 10);
  Pulse pulse;
  const PulseScope scope(pulse);
  witness.before_sync = [&](const fs::path&) { go_on.wait(); };
  ASSERT_TRUE(journal.cut(state));
  tell(journal, 1);
  const uint64_t before = pulse.beats();
  const auto synced = journal.commit(true);
  ASSERT_FALSE(synced);
  EXPECT_GE(pulse.beats(), before + 2);
  const std::string name =
      fmt::format("the disk of {} has taken and given nothing for 1.5 s", files.string());
  EXPECT_NE(synced.failure().message.find(name), std::string::npos) << synced.failure().message;
  EXPECT_FALSE(journal.look());
  go_on.count_down();
}

struct SnapshotsOfAService : testing::Test {
  SnapshotsOfAService() {
    run.options.paths.root = run.folder.path() / "run";
    fs::create_directories(run.options.paths.journal());
  }
  ServiceResult serve() {
    Log log("scheduler", run.folder.path() / "log");
    fakes::FakeRollout w0("rollout-0", run.options.endpoint);
    fakes::FakeReward r0("reward-0", run.options.endpoint);
    fakes::FakeTrainer trainer(run.options.endpoint, disk, 6);
    for (fakes::FakeWorker* worker : std::vector<fakes::FakeWorker*>{&w0, &r0, &trainer})
      worker->start();
    return run_to_its_end(*run.make_service(log));
  }
  TestRun run{6};
  fakes::TrainerDisk disk;
};

TEST_F(SnapshotsOfAService, DoNotHoldUpWhatWorkersSay) {
  DiskWitness witness(run.options.paths.root, run.folder.path() / "notes");
  std::atomic<int> snapshots = 0, with_events = 0;
  witness.before_sync = [&](const fs::path& file) {
    // The first is the start's: nobody works yet.
    if (!names(file, "snapshot-") || names(file, "snapshot-000001")) return;
    ++snapshots;
    const auto events = run.options.paths.journal() /
                        fmt::format("journal-{}.log", file.filename().string().substr(9, 6));
    with_events += wait_until(
        [&] { return fs::exists(events) && size_of(events) > RecordFile::kFileHeaderBytes; },
        seconds(2));
  };
  const ServiceResult result = serve();
  EXPECT_EQ(result.end, ServiceResult::End::kDone) << result.message;
  EXPECT_GE(snapshots, 2);
  EXPECT_GE(with_events, 1);
  // A clean end has waited for the last one, and there are no events behind it.
  std::string newest;
  for (const auto& entry : fs::directory_iterator(run.options.paths.journal()))
    newest = std::max(newest, entry.path().filename().string());
  const auto journal =
      run.options.paths.journal() / fmt::format("journal-{}.log", newest.substr(9, 6));
  ASSERT_TRUE(newest.starts_with("snapshot-") && fs::exists(journal)) << newest;
  EXPECT_EQ(size_of(journal), RecordFile::kFileHeaderBytes);
}

TEST_F(SnapshotsOfAService, ThatCannotBeWrittenEndTheRunWhichGoesOnLater) {
  // In the way of what an AtomicFile writes to.
  const auto way =
      run.options.paths.journal() / fmt::format("snapshot-000002.bin.unfinished.{}", ::getpid());
  fs::create_directories(way);
  const ServiceResult failed = serve();
  EXPECT_EQ(failed.end, ServiceResult::End::kFailed);
  EXPECT_NE(failed.message.find("snapshot-000002.bin"), std::string::npos) << failed.message;
  fs::remove(way);
  const ServiceResult done = serve();
  EXPECT_EQ(done.end, ServiceResult::End::kDone) << done.message;
  EXPECT_EQ(done.version, 6);
  EXPECT_EQ(disk.fault, "");
}

}  // namespace
}  // namespace tailrace::scheduler
