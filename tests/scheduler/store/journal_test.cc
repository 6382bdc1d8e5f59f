#include "scheduler/store/journal.h"

#include <csignal>
#include <thread>

#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/scheduler/store/short_run.h"

namespace tailrace::scheduler {
namespace {

// A journal of several small files; gives the state at its end.
State write_in_pieces(const std::filesystem::path& folder, const State& start,
                      const std::vector<JournalEntry>& entries, bool archive) {
  State state = start;
  auto journal = Journal::open(folder, start, {.segment_bytes = 700, .archive = archive});
  EXPECT_TRUE(journal);
  for (const JournalEntry& entry : entries) {
    append(journal.value(), state, entry);
    if (journal.value().is_due()) {
      EXPECT_TRUE(journal.value().rotate(state));
    }
  }
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
    EXPECT_TRUE(restored.value().lost.empty());
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
  ASSERT_EQ(restored.value().notes.size(), 1u);
  // A launch shows it.
  EXPECT_EQ(restored.value().notes[0],
            fmt::format("snapshot passed over: {} is damaged; the one before it is used",
                        snapshots.back().string()));
  EXPECT_TRUE(restored.value().lost.empty()) << "all events are there";
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
    EXPECT_EQ(restored.value().lost, restored.value().notes);
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
  EXPECT_NE(
      restored.value().notes[0].find(fmt::format("{}: dropped the last {} bytes, cut or "
                                                 "damaged at offset {}",
                                                 file.string(), size_of(file) - tenth, tenth)),
      std::string::npos)
      << restored.value().notes[0];
  EXPECT_EQ(restored.value().lost, restored.value().notes);
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

// Events go on in the second file, whose snapshot is not there.
State cut_once(const std::filesystem::path& folder, const State& start,
               const std::vector<JournalEntry>& entries, bool with_snapshot) {
  State state = start;
  auto journal = Journal::open(folder, start, {});
  EXPECT_TRUE(journal);
  for (size_t i = 0; i < entries.size(); ++i) {
    append(journal.value(), state, entries[i]);
    if (i + 1 != entries.size() / 2) continue;
    EXPECT_TRUE(journal.value().cut(state));
    // Waits for the first step of writing it, and its end waits for the second.
    if (with_snapshot) {
      EXPECT_TRUE(journal.value().commit(true));
    }
  }
  return state;
}

bool is_there(const std::filesystem::path& file) { return std::filesystem::exists(file); }

TEST(Journal, GoesOnInTheNextFileBeforeItsSnapshotIsThere) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  const State state = cut_once(folder.path(), start, entries, /*with_snapshot=*/false);
  ASSERT_TRUE(is_there(folder.path() / "journal-000002.log"));
  ASSERT_FALSE(is_there(folder.path() / "snapshot-000002.bin"));
  const auto restored = restore(folder.path());
  ASSERT_TRUE(restored) << restored.failure().message;
  EXPECT_TRUE(restored.value().notes.empty());
  EXPECT_EQ(*restored.value().state, state);

  // Continued, what leads to the new snapshot is kept until another one has proved itself.
  ASSERT_TRUE(Journal::open(folder.path(), state, {}));
  const auto third = folder.path() / "snapshot-000003.bin";
  flip_byte(third, size_of(third) / 2);
  const auto again = restore(folder.path());
  ASSERT_TRUE(again) << again.failure().message;
  EXPECT_EQ(*again.value().state, state);
}

TEST(Journal, AFileWithoutEventsMayBeCutToo) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  State state = start;
  auto journal = Journal::open(folder.path(), start, {}).value();
  ASSERT_TRUE(journal.cut(state));
  append(journal, state, entries[0]);
  const auto restored = restore(folder.path());
  ASSERT_TRUE(restored) << restored.failure().message;
  EXPECT_TRUE(restored.value().notes.empty());
  EXPECT_EQ(*restored.value().state, state);
}

// Power was lost before the first page of the new file was written, and after its size was.
TEST(Journal, AFileThatNeverReachedTheDiskIsEmpty) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  const State state = cut_once(folder.path(), start, entries, /*with_snapshot=*/false);
  const auto second = folder.path() / "journal-000002.log";
  const auto bytes = static_cast<size_t>(size_of(second));
  std::ofstream(second, std::ios::binary | std::ios::trunc) << std::string(bytes, '\0');
  const auto restored = restore(folder.path());
  ASSERT_TRUE(restored) << restored.failure().message;
  EXPECT_EQ(restored.value().notes,
            std::vector<std::string>{second.string() + " never reached the disk: nothing in it"});
  EXPECT_EQ(restored.value().lost, restored.value().notes);
  EXPECT_EQ(*restored.value().state, replay(start, entries, entries.size() / 2));
}

TEST(Journal, ASnapshotOfACutThatIsDamagedIsPassedOver) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  const State state = cut_once(folder.path(), start, entries, /*with_snapshot=*/true);
  EXPECT_EQ(*restore(folder.path()).value().state, state);
  const auto second = folder.path() / "snapshot-000002.bin";
  ASSERT_TRUE(is_there(second));
  flip_byte(second, size_of(second) / 2);
  const auto restored = restore(folder.path());
  ASSERT_TRUE(restored) << restored.failure().message;
  EXPECT_EQ(restored.value().notes.size(), 1u);
  EXPECT_EQ(*restored.value().state, state);
}

// Power was lost before the events up to the cut had reached the disk, and some after it had: all
// of these are left out, however little is missing, and nobody was told of them.
TEST(Journal, EventsOfACutWithoutThoseBeforeItAreLeftOut) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  const State state = cut_once(folder.path(), start, entries, /*with_snapshot=*/false);
  const auto first = folder.path() / "journal-000001.log";
  const auto second = folder.path() / "journal-000002.log";
  // At the end of a record: only the next file knows that something is missing.
  std::string last;
  RecordFile::frame(to_bytes(entries[entries.size() / 2 - 1]), last);
  std::filesystem::resize_file(first, static_cast<uintmax_t>(size_of(first) - std::ssize(last)));
  const auto restored = restore(folder.path());
  ASSERT_TRUE(restored) << restored.failure().message;
  EXPECT_EQ(restored.value().notes.size(), 1u);
  EXPECT_EQ(restored.value().lost, restored.value().notes);
  EXPECT_EQ(restored.value().left_out, second);
  const State earlier = replay(start, entries, entries.size() / 2 - 1);
  EXPECT_EQ(*restored.value().state, earlier);

  // A run that goes on from there never meets them again.
  std::filesystem::remove(second);
  ASSERT_TRUE(Journal::open(folder.path(), earlier, {}));
  const auto snapshot = folder.path() / "snapshot-000002.bin";
  EXPECT_EQ(*restore(folder.path()).value().state, earlier);
  flip_byte(snapshot, size_of(snapshot) / 2);
  EXPECT_EQ(*restore(folder.path()).value().state, earlier);
}

// With a snapshot they had reached it.
TEST(Journal, EventsThatAreGoneBeforeADamagedSnapshotAreNoPowerLoss) {
  const State start(small_config(2, 2));
  ScratchFolder folder;
  (void)cut_once(folder.path(), start, make_run(start), /*with_snapshot=*/true);
  const auto first = folder.path() / "journal-000001.log";
  const auto second = folder.path() / "snapshot-000002.bin";
  std::filesystem::resize_file(first, static_cast<uintmax_t>(size_of(first) - 1));
  flip_byte(second, size_of(second) / 2);
  const auto restored = restore(folder.path());
  ASSERT_FALSE(restored);
  EXPECT_NE(restored.failure().message.find("is damaged"), std::string::npos)
      << restored.failure().message;
}

// A file size limit stands for the full disk; a child process has it, so that the other tests do
// not.
TEST(Journal, ADiskThatIsTooFullForTheSnapshotOfACutIsToldAndLosesNoEvent) {
  const State start(small_config(2, 2));
  const auto entries = make_run(start);
  ScratchFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    State state = start;
    auto journal = Journal::open(folder.path(), start, {}).value();
    for (size_t i = 0; i < 3; ++i) append(journal, state, entries[i]);
    std::signal(SIGXFSZ, SIG_IGN);
    const auto bytes = static_cast<rlim_t>(size_of(folder.path() / "snapshot-000001.bin") - 1);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    bool well = journal.cut(state).ok();
    append(journal, state, entries[3]);
    journal.bodies_are_on_disk();
    while (journal.look()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // Events are taken all the same.
    append(journal, state, entries[4]);
    const std::string message = journal.look().failure().message;
    const auto file = folder.path() / "snapshot-000002.bin";
    well = well && message.find(file.string() + ": File too large") != std::string::npos;
    if (!well) fmt::print(stderr, "{}\n", message);
    ::_exit(well ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const State state = replay(start, entries, 5);
  EXPECT_EQ(*restore(folder.path()).value().state, state);
  ASSERT_TRUE(Journal::open(folder.path(), state, {}));
  EXPECT_EQ(*restore(folder.path()).value().state, state);
}

}  // namespace
}  // namespace tailrace::scheduler
