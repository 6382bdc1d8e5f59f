#include "scheduler/store/trajectory_store.h"

#include <csignal>
#include <functional>

#include <sys/resource.h>

#include "core/base/random.h"
#include "core/wire/trajectory_codec.h"
#include "tests/scheduler/store/files.h"

namespace tailrace::scheduler {
namespace {

BodyId body_id(int64_t prompt, Lane lane = Lane::kTrain) {
  BodyId id;
  id.lane = lane;
  id.lease.member.prompt = prompt;
  id.lease.attempt = 1;
  return id;
}

std::vector<std::byte> body_of(int64_t prompt) {
  Rng rng(static_cast<uint64_t>(prompt) + 1);
  std::vector<std::byte> body(static_cast<size_t>(rng.below(300)));
  for (std::byte& byte : body) byte = static_cast<std::byte>(rng.next_u32());
  return body;
}

TrajectoryStore open_store(const std::filesystem::path& path, int64_t segment_bytes = 2000) {
  auto store = TrajectoryStore::open(path, segment_bytes);
  EXPECT_TRUE(store) << store.failure().message;
  return std::move(store).value();
}

int64_t num_files(const std::filesystem::path& path) {
  return std::distance(std::filesystem::directory_iterator(path),
                       std::filesystem::directory_iterator());
}

TEST(TrajectoryStore, GivesBackWhatWasPutAlsoAfterReopening) {
  ScratchFolder folder;
  {
    TrajectoryStore store = open_store(folder.path());
    for (int64_t i = 0; i < 100; ++i) ASSERT_TRUE(store.put(body_id(i), body_of(i)));
    ASSERT_TRUE(store.put(body_id(3, Lane::kEval), body_of(1003)));
    EXPECT_GT(num_files(folder.path()), 3);
    EXPECT_EQ(store.get(body_id(7)).value(), body_of(7));
  }
  TrajectoryStore store = open_store(folder.path());
  EXPECT_TRUE(store.notes().empty());
  EXPECT_EQ(store.num_bodies(), 101);
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(store.get(body_id(i)).value(), body_of(i));
  EXPECT_EQ(store.get(body_id(3, Lane::kEval)).value(), body_of(1003));
  EXPECT_FALSE(store.get(body_id(100)));
}

TEST(TrajectoryStore, KnowsSizeAndChecksumWithoutReading) {
  ScratchFolder folder;
  {
    TrajectoryStore store = open_store(folder.path());
    ASSERT_TRUE(store.put(body_id(1), body_of(1)));
  }
  const TrajectoryStore store = open_store(folder.path());
  const auto entry = store.find(body_id(1));
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->bytes, std::ssize(body_of(1)));
  EXPECT_EQ(entry->checksum, wire::checksum_of(body_of(1))) << "the trainer proves it by the same";
  EXPECT_FALSE(store.find(body_id(2)));
}

TEST(TrajectoryStore, ANoteStaysBesideItsBody) {
  ScratchFolder folder;
  {
    TrajectoryStore store = open_store(folder.path(), 200);
    ASSERT_TRUE(store.put(body_id(1), body_of(1)));
    ASSERT_TRUE(store.put(body_id(2), body_of(2)));
    EXPECT_EQ(store.note_of(body_id(1)).value(), "");
    ASSERT_TRUE(store.put_note(body_id(1), std::string(300, 'a')));
    ASSERT_TRUE(store.put_note(body_id(1), "the newest"));  // in a file of its own
    ASSERT_TRUE(store.put_note(body_id(3), "of nobody"));
    EXPECT_EQ(store.note_of(body_id(3)).value(), "");
    EXPECT_EQ(store.num_bodies(), 2);
  }
  TrajectoryStore store = open_store(folder.path(), 200);
  EXPECT_EQ(store.note_of(body_id(1)).value(), "the newest");
  EXPECT_EQ(store.note_of(body_id(2)).value(), "");
  EXPECT_EQ(store.get(body_id(1)).value(), body_of(1));
  ASSERT_TRUE(store.put(body_id(4), body_of(4)));
  const auto files = num_files(folder.path());
  const BodyId released[] = {body_id(1), body_id(2)};
  store.release(released);
  EXPECT_EQ(store.note_of(body_id(1)).value(), "");
  EXPECT_LT(num_files(folder.path()), files);
  EXPECT_EQ(num_files(folder.path()), 1) << "neither bodies nor notes keep a file";
}

TEST(TrajectoryStore, PutTwiceKeepsTheFirst) {
  ScratchFolder folder;
  TrajectoryStore store = open_store(folder.path());
  ASSERT_TRUE(store.put(body_id(1), body_of(1)));
  const int64_t bytes = store.disk_bytes();
  ASSERT_TRUE(store.put(body_id(1), body_of(2)));
  EXPECT_EQ(store.disk_bytes(), bytes);
  EXPECT_EQ(store.get(body_id(1)).value(), body_of(1));
}

TEST(TrajectoryStore, DeletesSegmentsWhoseBodiesAreAllReleased) {
  ScratchFolder folder;
  TrajectoryStore store = open_store(folder.path());
  std::vector<BodyId> all;
  for (int64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(store.put(body_id(i), body_of(i)));
    all.push_back(body_id(i));
  }
  const int64_t files = num_files(folder.path());
  store.release(std::span(all).first(50));
  EXPECT_LT(num_files(folder.path()), files);
  EXPECT_FALSE(store.get(body_id(0)));
  EXPECT_EQ(store.get(body_id(50)).value(), body_of(50));
  store.release(std::span(all).last(50));
  EXPECT_EQ(num_files(folder.path()), 1);  // the one that is written to
  store.release(all);                      // again: nothing
}

TEST(TrajectoryStore, RetainOnlyDropsWhatACrashLeftBehind) {
  ScratchFolder folder;
  {
    TrajectoryStore store = open_store(folder.path());
    for (int64_t i = 0; i < 20; ++i) ASSERT_TRUE(store.put(body_id(i), body_of(i)));
  }
  TrajectoryStore store = open_store(folder.path());
  store.retain_only({body_id(4), body_id(19)});
  EXPECT_EQ(store.num_bodies(), 2);
  EXPECT_EQ(store.get(body_id(19)).value(), body_of(19));
  // A dropped id may come again, with another body: the new one counts, also after another
  // reopening.
  ASSERT_TRUE(store.put(body_id(5), body_of(1005)));
  TrajectoryStore again = open_store(folder.path());
  EXPECT_EQ(again.get(body_id(5)).value(), body_of(1005));
}

TEST(TrajectoryStore, ItsFilesAreReadWithoutTouchingThem) {
  ScratchFolder folder;
  TrajectoryStore store = open_store(folder.path());
  ASSERT_TRUE(store.put(body_id(1), body_of(1)));
  ASSERT_TRUE(store.put(body_id(2), body_of(2)));
  ASSERT_TRUE(store.put_note(body_id(2), "a note"));
  store.release(std::vector<BodyId>{body_id(1)});
  std::map<BodyId, std::string> found;
  const auto read = [&] {
    return TrajectoryStore::read_bodies(
        folder.path(), [&](const BodyId& id, std::string_view body) { found[id] = body; });
  };
  ASSERT_TRUE(read());
  const auto text = [](const std::vector<std::byte>& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  EXPECT_EQ(found, (std::map<BodyId, std::string>{{body_id(1), text(body_of(1))},
                                                  {body_id(2), text(body_of(2))}}));
  ASSERT_TRUE(store.put(body_id(3), body_of(3))) << "the store goes on meanwhile";
  ASSERT_TRUE(read());
  EXPECT_EQ(found.size(), 3u);
  std::filesystem::remove_all(folder.path() / "sub");
  EXPECT_FALSE(TrajectoryStore::read_bodies(folder.path() / "sub", [](auto&, auto) {}));
}

TEST(TrajectoryStore, ACutTailLosesTheCutBodyOnly) {
  ScratchFolder folder;
  const auto file = folder.path() / "bodies-000001.seg";
  std::vector<int64_t> ends{RecordFile::kFileHeaderBytes};
  {
    TrajectoryStore store = open_store(folder.path(), 1 << 20);
    for (int64_t i = 0; i < 10; ++i) {
      ASSERT_TRUE(store.put(body_id(i), body_of(i)));
      ends.push_back(size_of(file));
    }
  }
  for (int64_t keep = 9; keep >= 0; --keep) {
    std::filesystem::resize_file(file, static_cast<uintmax_t>(ends[static_cast<size_t>(keep)] + 5));
    TrajectoryStore store = open_store(folder.path(), 1 << 20);
    EXPECT_EQ(store.num_bodies(), keep);
    if (keep == 0) break;  // an empty segment is deleted
    EXPECT_EQ(store.notes().size(), 1u);
    EXPECT_EQ(store.get(body_id(keep - 1)).value(), body_of(keep - 1));
  }
}

TEST(TrajectoryStore, ADamagedBodyIsSkippedAndTheOthersStay) {
  ScratchFolder folder;
  const auto file = folder.path() / "bodies-000001.seg";
  int64_t begin = 0;
  TrajectoryStore store = open_store(folder.path(), 1 << 20);
  for (int64_t i = 0; i < 10; ++i) {
    if (i == 4) begin = size_of(file);
    ASSERT_TRUE(store.put(body_id(i), body_of(i)));
  }
  flip_byte(file, begin + 20);
  const auto damaged = store.get(body_id(4));  // seen while open, too
  ASSERT_FALSE(damaged);
  EXPECT_NE(damaged.failure().message.find("damaged"), std::string::npos);
  const TrajectoryStore reopened = open_store(folder.path(), 1 << 20);
  EXPECT_EQ(reopened.num_bodies(), 9);
  EXPECT_EQ(reopened.notes().size(), 1u);
  EXPECT_FALSE(reopened.contains(body_id(4)));
  EXPECT_EQ(reopened.get(body_id(9)).value(), body_of(9));
}

// Somebody cleans up while the run goes on: what was stored is lost, and what comes is not.
TEST(TrajectoryStore, FilesThatAreTakenAwayCostTheirBodiesAndNoOthers) {
  ScratchFolder folder;
  const auto root = folder.path() / "store";
  TrajectoryStore store = open_store(root, 1 << 20);
  const std::vector<std::function<void()>> ways = {
      [&] { std::filesystem::remove(root / "bodies-000001.seg"); },
      [&] { std::filesystem::remove_all(root); }};
  int64_t number = 0;
  for (const auto& take_away : ways) {
    const BodyId before = body_id(++number), after = body_id(++number);
    ASSERT_TRUE(store.put(before, body_of(1)));
    take_away();
    const auto lost = store.get(before);
    ASSERT_FALSE(lost);
    EXPECT_NE(lost.failure().message.find((root / "bodies-00000").string()), std::string::npos)
        << lost.failure().message;
    ASSERT_TRUE(store.put(after, body_of(2)));
    ASSERT_TRUE(store.sync());
    EXPECT_EQ(store.get(after).value(), body_of(2));
  }
}

// As rsync and editors do.
TEST(TrajectoryStore, AFileThatACopyReplacesTakesNoMoreBodies) {
  ScratchFolder folder;
  TrajectoryStore store = open_store(folder.path(), 1 << 20);
  ASSERT_TRUE(store.put(body_id(1), body_of(1)));
  std::filesystem::copy_file(folder.path() / "bodies-000001.seg", folder.path() / "copy");
  std::filesystem::rename(folder.path() / "copy", folder.path() / "bodies-000001.seg");
  ASSERT_TRUE(store.put(body_id(2), body_of(2)));
  EXPECT_EQ(store.get(body_id(1)).value(), body_of(1));
  EXPECT_EQ(store.get(body_id(2)).value(), body_of(2));
}

TEST(TrajectoryStore, AFullDiskIsAFailureAndLosesNothing) {
  ScratchFolder folder;
  TrajectoryStore store = open_store(folder.path(), 1 << 20);
  for (int64_t i = 0; i < 10; ++i) ASSERT_TRUE(store.put(body_id(i), body_of(i)));
  const auto file = folder.path() / "bodies-000001.seg";

  // A file size limit stands in for a full disk: the write that crosses it is cut short, the next
  // fails.
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit tight = old;
  tight.rlim_cur = static_cast<rlim_t>(size_of(file) + 100);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::vector<std::byte> large(5000);
  const auto full = store.put(body_id(10), large);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  ASSERT_FALSE(full);
  EXPECT_NE(full.failure().message.find("bodies-000001.seg"), std::string::npos)
      << full.failure().message;

  EXPECT_FALSE(store.contains(body_id(10)));
  ASSERT_TRUE(store.put(body_id(10), large));  // there is room again
  const TrajectoryStore reopened = open_store(folder.path(), 1 << 20);
  EXPECT_TRUE(reopened.notes().empty());
  EXPECT_EQ(reopened.num_bodies(), 11);
  EXPECT_EQ(reopened.get(body_id(10)).value(), large);
  EXPECT_EQ(reopened.get(body_id(9)).value(), body_of(9));
}

TEST(TrajectoryStore, AFolderThatCannotBeMadeIsNamed) {
  const auto store = TrajectoryStore::open("/proc/tailrace/trajectories", 1000);
  ASSERT_FALSE(store);
  EXPECT_NE(store.failure().message.find("/proc/tailrace/trajectories"), std::string::npos);
}

}  // namespace
}  // namespace tailrace::scheduler
