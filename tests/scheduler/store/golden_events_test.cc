// Journals of an earlier build, kept in tests/golden/scheduler/events: under the same law this
// build must decide as that one did. If it does not, a run that is continued by a newer build would
// replay its journal to another state; so kLawVersion rises (decide.h), and only then can the files
// be written anew, with --update-golden.
#include <algorithm>
#include <set>
#include <sstream>

#include <xxhash.h>

#include "core/base/file.h"
#include "scheduler/store/journal.h"
#include "tests/golden/golden.h"
#include "tests/scheduler/decide/random_run.h"

namespace tailrace::scheduler {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = golden_path("scheduler/events");

std::string law_line() {
  return fmt::format("law {}, archive format {}\n", kLawVersion, kArchiveFormat);
}

uint64_t digest_of_state(const State& state) {
  const std::string bytes = to_bytes(state);
  return XXH3_64bits(bytes.data(), bytes.size());
}

// Events in a row, as one scheduler process decided on them.
struct Piece {
  State start;
  std::vector<std::pair<Event, Time>> events;
  std::set<std::pair<size_t, size_t>> kinds;  // (event, action that it gave)
};

std::vector<Piece> pieces_of(uint64_t seed) {
  std::vector<Piece> pieces;
  std::optional<State> after;
  RandomRun run(seed);
  run.checker.watch = [&](const State& before, const Event& event, Time now) {
    // A restart, perhaps one that forgot events, begins another piece; so does a long one.
    if (!after || !(*after == before) || pieces.back().events.size() == 250)
      pieces.push_back({.start = before, .events = {}, .kinds = {}});
    pieces.back().events.emplace_back(event, now);
    after = before;
    for (const Action& action : decide(*after, event, now))
      pieces.back().kinds.emplace(event.index(), action.index());
  };
  EXPECT_TRUE(run.run()) << run.checker.failure;
  return pieces;
}

// Few pieces that together bring every pair of an event and an action that 300 worlds bring: always
// the one that adds most.
std::vector<Piece> choose_pieces() {
  std::vector<Piece> all, chosen;
  for (uint64_t seed = 1; seed <= 300; ++seed)
    for (Piece& piece : pieces_of(seed)) all.push_back(std::move(piece));
  for (;;) {
    const auto most =
        std::ranges::max_element(all, {}, [](const Piece& p) { return p.kinds.size(); });
    if (most->kinds.empty()) return chosen;
    chosen.push_back(*most);
    for (Piece& piece : all)
      for (const auto& pair : chosen.back().kinds) piece.kinds.erase(pair);
  }
}

std::string write_pieces(const std::vector<Piece>& pieces) {
  fs::remove_all(kFolder);
  std::string summary = law_line();
  for (const Piece& piece : pieces) {
    const std::string name = fmt::format("{:02}", std::count(summary.begin(), summary.end(), '\n'));
    State state = piece.start;
    auto journal = Journal::open(kFolder / name, state, {});
    EXPECT_TRUE(journal) << journal.failure().message;
    for (const auto& [event, now] : piece.events)
      journal.value().append(event, now, decide(state, event, now));
    EXPECT_TRUE(journal.value().commit(false));
    summary += fmt::format("{} {} events, state {:016x}\n", name, piece.events.size(),
                           digest_of_state(state));
  }
  return summary;
}

TEST(GoldenEvents, GiveTheActionsThatTheyGaveUnderThisLaw) {
  const auto summary = read_file(kFolder / "events.txt");
  const std::string kept = summary ? summary.value() : "";
  const auto num_folders = [] {
    int64_t folders = 0;
    for (const auto& entry : fs::directory_iterator(kFolder)) folders += entry.is_directory();
    return folders;
  };
  if (!kept.starts_with(law_line())) {
    // A list that is only gone is no reason to write others under the same number.
    ASSERT_TRUE(!kept.empty() || !fs::exists(kFolder) || num_folders() == 0)
        << "tests/golden/scheduler/events has journals and no list: bring events.txt back";
    // Another law, or files of another format: these events bind nobody any more.
    ASSERT_TRUE(updating_golden()) << "tests/golden/scheduler/events is not of " << law_line()
                                   << "`make update-golden` writes it";
    const std::vector<Piece> pieces = choose_pieces();
    ASSERT_FALSE(HasFailure()) << "what a world that breaks the law does is nothing to keep";
    expect_golden("scheduler/events/events.txt", write_pieces(pieces));
    return;
  }
  std::istringstream lines(kept.substr(law_line().size()));
  int64_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const std::string name = line.substr(0, line.find(' '));
    const auto restored = restore(kFolder / name);
    ASSERT_TRUE(restored) << restored.failure().message
                          << "\nRaise kLawVersion in scheduler/decide/decide.h, then `make "
                             "update-golden`: a journal under the old number cannot be replayed";
    ASSERT_TRUE(restored.value().state) << name << " is missing";
    EXPECT_TRUE(restored.value().notes.empty()) << restored.value().notes[0];
    EXPECT_TRUE(line.ends_with(fmt::format("{:016x}", digest_of_state(*restored.value().state))))
        << name
        << " ends in another state. Raise kLawVersion in scheduler/decide/decide.h, then "
           "`make update-golden`";
  }
  EXPECT_GT(count, 5);
  EXPECT_EQ(count, num_folders()) << "the list and the journals beside it differ";
}

}  // namespace
}  // namespace tailrace::scheduler
