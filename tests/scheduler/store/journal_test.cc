#include "scheduler/store/journal.h"

#include "tests/scheduler/decide/harness.h"
#include "tests/scheduler/store/files.h"

namespace tailrace::scheduler {
namespace {

// The events of a short run with something of everything.
std::vector<JournalEntry> make_run(const State& start) {
  std::vector<JournalEntry> entries;
  State state = start;
  Time now{seconds(5)};
  const auto tell = [&](const Event& event) {
    now += seconds(1);
    entries.push_back({now, event});
    return decide(state, event, now);
  };
  (void)tell(WorkerUp{.worker = "w0", .slots = 8});
  (void)tell(published(0));
  for (int64_t step = 1; step <= 3; ++step) {
    const Actions granted = tell(Installed{"w0", 0, step - 1, digest_of(step - 1)});
    for (const Grant& grant : only<Grant>(granted)) {
      AttemptResult result;
      result.worker = "w0";
      result.lease = grant.lease;
      result.reward = 0.5 * grant.lease.member.member;
      (void)tell(result);
    }
    (void)tell(TrainerWants{0, step});
    (void)tell(published(step));
    (void)tell(Durable{0, step - 1});
  }
  return entries;
}

State replay(State state, const std::vector<JournalEntry>& entries, size_t count) {
  for (size_t i = 0; i < count; ++i) (void)decide(state, entries[i].event, entries[i].now);
  return state;
}

TEST(Journal, RestoresTheStateAtEveryEvent) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ASSERT_GT(entries.size(), 20u);
  ScratchFolder folder;
  auto journal = Journal::open(folder.path(), start, 1 << 20);
  ASSERT_TRUE(journal) << journal.failure().message;
  for (size_t i = 0; i < entries.size(); ++i) {
    journal.value().append(entries[i].event, entries[i].now);
    ASSERT_TRUE(journal.value().commit(i % 5 == 0));
    const auto restored = restore(folder.path());
    ASSERT_TRUE(restored) << restored.failure().message;
    EXPECT_TRUE(restored.value().notes.empty());
    EXPECT_EQ(*restored.value().state, replay(start, entries, i + 1)) << i;
  }
}

TEST(Journal, AnEmptyFolderIsANewRun) {
  ScratchFolder folder;
  const auto restored = restore(folder.path() / "missing");
  ASSERT_TRUE(restored);
  EXPECT_FALSE(restored.value().state);
}

TEST(Journal, RotatesAndKeepsOnePairToFallBackOn) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  auto journal = Journal::open(folder.path(), start, 600);
  ASSERT_TRUE(journal);
  State state = start;
  for (const JournalEntry& entry : entries) {
    journal.value().append(entry.event, entry.now);
    ASSERT_TRUE(journal.value().commit(false));
    (void)decide(state, entry.event, entry.now);
    ASSERT_TRUE(journal.value().rotate_if_large(state));
  }
  std::vector<std::filesystem::path> snapshots;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().extension() == ".bin") snapshots.push_back(entry.path());
  }
  ASSERT_EQ(snapshots.size(), 2u);
  EXPECT_EQ(*restore(folder.path()).value().state, state);

  // The newest snapshot is damaged: the pair before it, and all events since, give the same state.
  std::sort(snapshots.begin(), snapshots.end());
  flip_byte(snapshots.back(), size_of(snapshots.back()) / 2);
  const auto restored = restore(folder.path());
  ASSERT_TRUE(restored) << restored.failure().message;
  EXPECT_EQ(restored.value().notes.size(), 1u);
  EXPECT_EQ(*restored.value().state, state);

  flip_byte(snapshots.front(), size_of(snapshots.front()) / 2);
  const auto lost = restore(folder.path());
  ASSERT_FALSE(lost);
  EXPECT_NE(lost.failure().message.find("snapshot"), std::string::npos);
}

TEST(Journal, ACutTailLosesTheCutEventsAndNothingElse) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  auto journal = Journal::open(folder.path(), start, 1 << 20);
  ASSERT_TRUE(journal);
  const auto file = folder.path() / "journal-000001.log";
  std::vector<int64_t> ends;
  for (const JournalEntry& entry : entries) {
    journal.value().append(entry.event, entry.now);
    ASSERT_TRUE(journal.value().commit(false));
    ends.push_back(size_of(file));
  }
  for (size_t keep = entries.size(); keep-- > 0;) {
    for (const int64_t extra :
         {int64_t{1}, int64_t{17}, ends[keep] - (keep > 0 ? ends[keep - 1] : 16) - 1}) {
      const int64_t begin = keep > 0 ? ends[keep - 1] : 16;
      if (begin + extra > size_of(file)) continue;
      std::filesystem::resize_file(file, static_cast<uintmax_t>(begin + extra));
      break;
    }
    const auto restored = restore(folder.path());
    ASSERT_TRUE(restored) << restored.failure().message;
    EXPECT_EQ(restored.value().notes.size(), 1u);
    EXPECT_EQ(*restored.value().state, replay(start, entries, keep)) << keep;
  }
  // Opening again never writes behind a cut tail.
  const State state = *restore(folder.path()).value().state;
  ASSERT_TRUE(Journal::open(folder.path(), state, 1 << 20));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "journal-000002.log"));
}

TEST(Journal, ADamagedEventEndsTheReplayBeforeIt) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  auto journal = Journal::open(folder.path(), start, 1 << 20);
  const auto file = folder.path() / "journal-000001.log";
  int64_t tenth = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i == 10) tenth = size_of(file);
    journal.value().append(entries[i].event, entries[i].now);
    ASSERT_TRUE(journal.value().commit(false));
  }
  flip_byte(file, tenth + 20);
  const auto restored = restore(folder.path());
  ASSERT_TRUE(restored);
  ASSERT_EQ(restored.value().notes.size(), 1u);
  EXPECT_NE(restored.value().notes[0].find("damaged"), std::string::npos);
  EXPECT_EQ(*restored.value().state, replay(start, entries, 10));
}

TEST(Journal, AnotherFormatIsRefusedWithAdvice) {
  const State start(small_config(2, 2));
  ScratchFolder folder;
  ASSERT_TRUE(Journal::open(folder.path(), start, 1 << 20));
  flip_byte(folder.path() / "journal-000001.log", 12);
  const auto restored = restore(folder.path());
  ASSERT_FALSE(restored);
  EXPECT_NE(restored.failure().message.find("format"), std::string::npos);
}

}  // namespace
}  // namespace tailrace::scheduler
