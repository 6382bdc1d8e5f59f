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
    Actions actions = decide(state, event, now);
    entries.push_back({now, event, digest_of(actions)});
    return actions;
  };
  (void)tell(WorkerUp{.worker = "w0", .slots = 8});
  (void)tell(WorkerUp{.worker = "t", .role = Role::kTrainer});
  (void)tell(rolled_back(-1));
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
    (void)tell(wants(step));
    (void)tell(published(step));
    (void)tell(durable(step - 1));
  }
  return entries;
}

// As the service does: decided on, then written.
void append(Journal& journal, State& state, const JournalEntry& entry) {
  journal.append(entry.event, entry.now, decide(state, entry.event, entry.now));
  ASSERT_TRUE(journal.commit(false));
}

// A journal of several small files; gives the state at its end.
State write_in_pieces(const std::filesystem::path& folder, const State& start,
                      const std::vector<JournalEntry>& entries, bool archive) {
  State state = start;
  auto journal = Journal::open(folder, start, {.segment_bytes = 600, .archive = archive});
  EXPECT_TRUE(journal);
  for (const JournalEntry& entry : entries) {
    append(journal.value(), state, entry);
    if (journal.value().is_large()) {
      EXPECT_TRUE(journal.value().rotate(state));
    }
  }
  return state;
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
  State state = start;
  auto journal = Journal::open(folder.path(), start, {});
  ASSERT_TRUE(journal) << journal.failure().message;
  for (size_t i = 0; i < entries.size(); ++i) {
    append(journal.value(), state, entries[i]);
    ASSERT_TRUE(journal.value().commit(i % 5 == 0));
    const auto restored = restore(folder.path());
    ASSERT_TRUE(restored) << restored.failure().message;
    EXPECT_TRUE(restored.value().notes.empty());
    EXPECT_EQ(*restored.value().state, replay(start, entries, i + 1)) << i;
  }
}

TEST(Journal, EventsWithoutASnapshotAreRefused) {
  const State start(small_config(2, 2));
  ScratchFolder folder;
  (void)write_in_pieces(folder.path(), start, make_run(start), /*archive=*/false);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path().extension() == ".bin") std::filesystem::remove(entry.path());
  const auto restored = restore(folder.path());
  ASSERT_FALSE(restored);
  EXPECT_NE(restored.failure().message.find("snapshots in"), std::string::npos);
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
  const State state = write_in_pieces(folder.path(), start, entries, /*archive=*/false);
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
  State state = start;
  auto journal = Journal::open(folder.path(), start, {});
  ASSERT_TRUE(journal);
  const auto file = folder.path() / "journal-000001.log";
  std::vector<int64_t> ends;
  for (const JournalEntry& entry : entries) {
    append(journal.value(), state, entry);
    ends.push_back(size_of(file));
  }
  for (size_t keep = entries.size(); keep-- > 0;) {
    for (const int64_t extra :
         {int64_t{1}, int64_t{17},
          ends[keep] - (keep > 0 ? ends[keep - 1] : RecordFile::kFileHeaderBytes) - 1}) {
      const int64_t begin = keep > 0 ? ends[keep - 1] : RecordFile::kFileHeaderBytes;
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
  const State cut = *restore(folder.path()).value().state;
  ASSERT_TRUE(Journal::open(folder.path(), cut, {}));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "journal-000002.log"));
}

TEST(Journal, ADamagedEventEndsTheReplayBeforeIt) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  State state = start;
  auto journal = Journal::open(folder.path(), start, {});
  const auto file = folder.path() / "journal-000001.log";
  int64_t tenth = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i == 10) tenth = size_of(file);
    append(journal.value(), state, entries[i]);
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
  ASSERT_TRUE(Journal::open(folder.path(), start, {}));
  flip_byte(folder.path() / "journal-000001.log", 12);
  const auto restored = restore(folder.path());
  ASSERT_FALSE(restored);
  EXPECT_NE(restored.failure().message.find("format"), std::string::npos);
}

// Where the two files carry the number of the law.
constexpr int64_t kLawInJournal = 16, kLawInSnapshot = 12;

TEST(Journal, EventsOfAnotherLawAreNotReplayed) {
  const State start(small_config(2, 2));
  ScratchFolder folder;
  State state = start;
  auto journal = Journal::open(folder.path(), start, {});
  append(journal.value(), state, make_run(start).front());
  flip_byte(folder.path() / "journal-000001.log", kLawInJournal);
  const auto restored = restore(folder.path());
  ASSERT_FALSE(restored);
  EXPECT_NE(restored.failure().message.find("law"), std::string::npos);
  EXPECT_NE(restored.failure().message.find("Ctrl-C"), std::string::npos) << "says what to do";
}

// What a clean stop leaves.
TEST(Journal, ASnapshotCrossesLaws) {
  const State start(small_config(2, 2));
  ScratchFolder folder;
  State state = start;
  auto journal = Journal::open(folder.path(), start, {});
  for (const JournalEntry& entry : make_run(start)) append(journal.value(), state, entry);
  ASSERT_TRUE(journal.value().rotate(state));
  flip_byte(folder.path() / "snapshot-000002.bin", kLawInSnapshot);
  flip_byte(folder.path() / "journal-000002.log", kLawInJournal);
  const auto restored = restore(folder.path());
  ASSERT_TRUE(restored) << restored.failure().message;
  EXPECT_EQ(*restored.value().state, state);
}

// Somebody changed the law and forgot to say so: the first event that gives other actions is named.
TEST(Journal, ActionsThatAreNotThoseOfThenAreNoticed) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  State state = start;
  auto journal = Journal::open(folder.path(), start, {});
  for (size_t i = 0; i < 10; ++i) append(journal.value(), state, entries[i]);
  journal.value().append(entries[10].event, entries[10].now, {Halt{"another law said so"}});
  ASSERT_TRUE(journal.value().commit(false));
  const auto restored = restore(folder.path());
  ASSERT_FALSE(restored);
  EXPECT_NE(restored.failure().message.find("event 11"), std::string::npos)
      << restored.failure().message;
}

TEST(Journal, AnArchiveKeepsTheRunWhole) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  const State state = write_in_pieces(folder.path(), start, entries, /*archive=*/true);
  State again = start;
  size_t events = 0;
  for (int64_t number = 1;; ++number) {
    const auto path = folder.path() / fmt::format("journal-{:06}.log", number);
    if (!std::filesystem::exists(path)) break;
    const auto file = read_journal(path, nullptr);
    ASSERT_TRUE(file) << file.failure().message;
    EXPECT_EQ(file.value().law, kLawVersion);
    for (const JournalEntry& entry : file.value().entries) {
      EXPECT_EQ(digest_of(decide(again, entry.event, entry.now)), entry.actions);
      ++events;
    }
  }
  EXPECT_EQ(events, entries.size());
  EXPECT_EQ(again, state);
}

// Events that are gone are missed, and not passed over; of two damages the first is named.
TEST(Journal, AMissingFileIsNamed) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  const State state = write_in_pieces(folder.path(), start, entries, /*archive=*/true);
  ASSERT_TRUE(std::filesystem::exists(folder.path() / "journal-000003.log"));
  for (int64_t number = 2;; ++number) {
    if (!std::filesystem::remove(folder.path() / fmt::format("snapshot-{:06}.bin", number))) break;
  }
  ASSERT_TRUE(restore(folder.path()));
  EXPECT_EQ(*restore(folder.path()).value().state, state);

  const auto second = folder.path() / "journal-000002.log", kept = folder.path() / "kept";
  std::filesystem::copy(second, kept);
  std::filesystem::resize_file(second, size_of(second) - 1);
  const auto cut = restore(folder.path());
  ASSERT_FALSE(cut);
  EXPECT_NE(cut.failure().message.find("is damaged"), std::string::npos) << cut.failure().message;

  std::filesystem::remove(second);
  const auto missing = restore(folder.path());
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.failure().message.find("journal-000002.log is missing"), std::string::npos)
      << missing.failure().message;
}

}  // namespace
}  // namespace tailrace::scheduler
