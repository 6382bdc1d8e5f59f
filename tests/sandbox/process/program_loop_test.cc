// A loop over real programs, some of which flood, hang, or go on when they should have ended.
#include "sandbox/process/program_loop.h"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// Longer than a loaded machine takes to start a shell.
constexpr Time kPlenty = 60s;

// Conversations that write down what they hear.
class Listener final : public ProgramLoop {
 public:
  struct Talk final : Conversation {
    Listener* loop = nullptr;
    std::unique_ptr<ChildProgram> program = nullptr;
    std::vector<std::string> lines = {};
    std::vector<ProgramLoss> losses = {};
    int holds_end = 0;  // so often its end is put off
    bool refuses = false, ends_in_line = false, was_late = false;

    std::optional<std::string> hear(const std::string& line, std::string_view) override {
      loop->change([&] { lines.push_back(line); });
      if (ends_in_line) program.reset();
      if (refuses) return "is refused";
      return std::nullopt;
    }
    std::string late() override {
      was_late = true;
      return "is late";
    }
    bool may_end() override { return holds_end-- <= 0; }
    void lost(const ProgramLoss& loss) override {
      program.reset();
      loop->change([&] { losses.push_back(loss); });
    }
  };

  Listener() : ProgramLoop("test", nullptr) {}

  void end() override {
    change([&] { has_ended = true; });
    talks.clear();
  }
  void change(const std::function<void()>& what) {
    const std::lock_guard lock(mutex);
    what();
    changed.notify_all();
  }
  // Whether it comes true.
  bool wait_for(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPlenty, condition);
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, Talk> talks;
  bool has_ended = false;

  using ProgramLoop::start;
};

class ProgramLoopTest : public testing::Test {
 protected:
  using Talk = Listener::Talk;

  // `then`: on the loop's thread, with the program that has just started.
  Talk& start(const std::string& script, const std::function<void(Talk&)>& then = {},
              ProgramRules rules = {.most_line_bytes = 1000}) {
    const int number = ++num_talks_;
    Talk* talk = nullptr;
    loop_->post([&](bool) {
      Talk& made = loop_->talks[number];
      made.loop = loop_.get();
      auto started = loop_->start({.words = {"/bin/sh", "-c", script}}, made, rules);
      EXPECT_TRUE(started);
      made.program = std::move(started).value();
      if (then) then(made);
      loop_->change([&] { talk = &made; });
    });
    EXPECT_TRUE(loop_->wait_for([&] { return talk != nullptr; }));
    return *talk;
  }

  ProgramLoss loss_of(const Talk& talk) {
    EXPECT_TRUE(loop_->wait_for([&] { return !talk.losses.empty(); }));
    return talk.losses.empty() ? ProgramLoss{} : talk.losses.back();
  }

  const std::shared_ptr<Listener> loop_ = std::make_shared<Listener>();
  std::optional<ProgramThread> thread_{loop_};
  int num_talks_ = 0;
};

TEST_F(ProgramLoopTest, LinesComeWithoutTheirEndsAndBlankOnesNot) {
  const Talk& talk =
      start("printf 'one\\n\\n \\t\\r\\ntw'; printf 'o\\nrest'; echo why >&2; exit 3");
  const ProgramLoss loss = loss_of(talk);
  EXPECT_THAT(talk.lines, ElementsAre("one", "two"));
  EXPECT_EQ(loss.why, "has ended with status 3");
  EXPECT_EQ(loss.rest, "rest");
  EXPECT_EQ(loss.quoted_last(), "; its stderr ends: why");
  EXPECT_TRUE(loss.has_ended);
  EXPECT_FALSE(loss.is_good_end);
}

TEST_F(ProgramLoopTest, WhatIsLongerThanAPipeIsWrittenInPieces) {
  const std::string large(3 << 20, 'a');
  const Talk& talk = start("read go; wc -c", [&](Talk& made) {
    made.program->write("go\n");
    made.program->write(large);
    made.program->write("end");
    made.program->close_in();
  });
  EXPECT_TRUE(loss_of(talk).is_good_end);
  EXPECT_THAT(talk.lines, ElementsAre(fmt::format("{}", large.size() + 3)));
}

TEST_F(ProgramLoopTest, OneThatReadsNothingHoldsNobodyUp) {
  const std::string large(3 << 20, 'a');
  start("sleep 1000", [&](Talk& made) { made.program->write(large); });
  start("exec <&-; sleep 1000", [&](Talk& made) { made.program->write(large); });
  const Talk& talk =
      start("read line; echo \"$line\"", [](Talk& made) { made.program->write("hello\n"); });
  EXPECT_TRUE(loss_of(talk).is_good_end);
  EXPECT_THAT(talk.lines, ElementsAre("hello"));
}

TEST_F(ProgramLoopTest, ALineWithoutAnEndIsBounded) {
  const Talk& talk = start("head -c 100000 /dev/zero; sleep 1000");
  const ProgramLoss loss = loss_of(talk);
  EXPECT_EQ(loss.why, "wrote more than 1000 bytes to stdout without an end of line");
  EXPECT_FALSE(loss.has_ended);
}

TEST_F(ProgramLoopTest, OfALongLineItsEndMayBeKept) {
  const Talk& talk = start("head -c 1000000 /dev/zero; printf last", {},
                           {.most_line_bytes = 1000, .keeps_end = true});
  const ProgramLoss loss = loss_of(talk);
  EXPECT_TRUE(loss.is_good_end);
  EXPECT_TRUE(loss.rest.ends_with("last"));
  EXPECT_LE(loss.rest.size(), 2000u);
}

TEST_F(ProgramLoopTest, FloodsKeepNobodyFromTheirTurn) {
  start("exec yes " + std::string(900, 'a'));
  start("exec yes >&2");
  const Talk& talk =
      start("read line; echo \"$line\"", [](Talk& made) { made.program->write("hello\n"); });
  EXPECT_TRUE(loss_of(talk).is_good_end);
  EXPECT_THAT(talk.lines, ElementsAre("hello"));
}

TEST_F(ProgramLoopTest, OneThatHangsIsKilledAtItsDeadline) {
  const Talk& talk =
      start("sleep 1000", [](Talk& made) { made.program->set_deadline(steady_now() + 50ms); });
  EXPECT_EQ(loss_of(talk).why, "is late");
  EXPECT_TRUE(talk.was_late);
}

// More programs than a round hears of, and a thread that was held (by a start, say) until their
// deadline was over: what they wrote before it was held any longer counts.
TEST_F(ProgramLoopTest, WhatWaitsToBeHeardIsNotLate) {
  const TemporaryDirectory folder;
  constexpr int kMany = 100;
  std::vector<Talk*> talks;
  for (int i = 0; i < kMany; ++i) {
    // The last ones end by themselves.
    const bool ends = i >= kMany - 5;
    talks.push_back(&start(fmt::format("read line; echo answer; touch {}/{}; {}",
                                       folder.path().string(), i, ends ? "exit 0" : "sleep 1000")));
  }
  loop_->post([&](bool) {
    for (Talk* talk : talks) talk->program->write("go\n");
    const auto num_answered = [&] {
      return std::distance(std::filesystem::directory_iterator(folder.path()), {});
    };
    for (const Time until = steady_now() + kPlenty; num_answered() < kMany && steady_now() < until;)
      std::this_thread::sleep_for(10ms);
    std::this_thread::sleep_for(200ms);  // for those that end
    for (Talk* talk : talks) talk->program->set_deadline(steady_now());
  });
  for (Talk* talk : talks) loss_of(*talk);
  for (int i = 0; i < kMany; ++i) {
    EXPECT_THAT(talks[static_cast<size_t>(i)]->lines, ElementsAre("answer")) << i;
    if (i >= kMany - 5) {
      EXPECT_TRUE(talks[static_cast<size_t>(i)]->losses.back().is_good_end) << i;
    }
  }
}

TEST_F(ProgramLoopTest, OneThatIsRefusedIsKilledAndHeardOfOnce) {
  const Talk& talk =
      start("echo one; echo two; sleep 1000", [](Talk& made) { made.refuses = true; });
  EXPECT_EQ(loss_of(talk).why, "is refused");
  EXPECT_THAT(talk.lines, ElementsAre("one"));
}

TEST_F(ProgramLoopTest, ItsComplaintsArePartOfTheLossWhateverIsHeardFirst) {
  for (int i = 0; i < 20; ++i) {
    const Talk& talk =
        start("echo why >&2; echo answer; sleep 1000", [](Talk& made) { made.refuses = true; });
    EXPECT_EQ(loss_of(talk).last, "why");
  }
}

TEST_F(ProgramLoopTest, AProgramMayEndWhileItIsHeard) {
  const Talk& talk =
      start("printf 'one\\ntwo\\n'; sleep 1000", [](Talk& made) { made.ends_in_line = true; });
  EXPECT_TRUE(loop_->wait_for([&] { return !talk.lines.empty(); }));
  // The loop lives on.
  EXPECT_TRUE(loss_of(start("true")).is_good_end);
  EXPECT_THAT(talk.lines, ElementsAre("one"));
  EXPECT_TRUE(talk.losses.empty());
}

TEST_F(ProgramLoopTest, OneThatClosesItsStdoutAndGoesOnIsKilledWhereThatIsARule) {
  EXPECT_EQ(loss_of(start("exec >&-; sleep 1000")).why, "closed its stdout and goes on");
  // Its status says more.
  EXPECT_EQ(loss_of(start("exec >&-; exit 4")).why, "has ended with status 4");
  const Talk& free =
      start("exec >&-; read line; exit 5", [](Talk& made) { made.program->write("go\n"); },
            {.most_line_bytes = 1000, .may_close_stdout = true});
  EXPECT_EQ(loss_of(free).why, "has ended with status 5");
}

TEST_F(ProgramLoopTest, AnEndMayBePutOff) {
  const Talk& talk = start("exit 0", [](Talk& made) { made.holds_end = 2; });
  EXPECT_TRUE(loss_of(talk).is_good_end);
  EXPECT_LT(talk.holds_end, 0);
}

TEST_F(ProgramLoopTest, ASignalIsNamed) {
  EXPECT_THAT(loss_of(start("kill -9 $$")).why, StartsWith("was ended by signal 9"));
}

TEST_F(ProgramLoopTest, AClosedLoopKillsItsProgramsAndRefusesOrders) {
  start("sleep 1000");
  thread_.reset();
  EXPECT_TRUE(loop_->has_ended);
  bool goes_on = true;
  loop_->post([&](bool so) { goes_on = so; });
  EXPECT_FALSE(goes_on);
}

// A child of a child, in a session and an environment of its own, which no look has seen with its
// parents; another program lives on.
TEST_F(ProgramLoopTest, WhatHidesEndsWithItsProgram) {
  const auto hides = [&](const std::string& then) -> Talk& {
    return start("setsid env -i /bin/sh -c '(/bin/sleep 1000 <&- >&- 2>&- & echo $!)' & wait; " +
                 then);
  };
  const auto hidden_by = [&](const Talk& talk) {
    EXPECT_TRUE(loop_->wait_for([&] { return !talk.lines.empty(); }));
    const pid_t pid = talk.lines.empty() ? 0 : std::stoi(talk.lines.front());
    EXPECT_EQ(::kill(pid, 0), 0);
    return pid;
  };
  const pid_t bystander = hidden_by(hides("sleep 1000"));
  // It is awaited as well, so that no zombie keeps its id.
  const auto has_gone = [](pid_t pid) {
    for (const Time until = steady_now() + kPlenty; steady_now() < until; ::usleep(1000))
      if (::kill(pid, 0) != 0) return true;
    return false;
  };
  Talk& late = hides("sleep 1000");
  const pid_t of_late = hidden_by(late);
  loop_->post([&](bool) { late.program->set_deadline(steady_now()); });
  EXPECT_EQ(loss_of(late).why, "is late");
  EXPECT_TRUE(has_gone(of_late));
  Talk& ending = hides("exit 3");
  const pid_t of_ending = std::stoi((loss_of(ending), ending.lines.front()));
  EXPECT_TRUE(has_gone(of_ending));
  EXPECT_EQ(::kill(bystander, 0), 0);
  thread_.reset();
  EXPECT_TRUE(has_gone(bystander));
}

TEST_F(ProgramLoopTest, AProgramThatCannotStartIsAFailure) {
  std::string why;
  loop_->post([&](bool) {
    Talk& talk = loop_->talks[0];
    auto started = loop_->start({.words = {"/no/such/program"}}, talk, {.most_line_bytes = 1000});
    loop_->change([&] { why = started ? "it has started" : started.failure().message; });
  });
  EXPECT_TRUE(loop_->wait_for([&] { return !why.empty(); }));
  EXPECT_THAT(why, HasSubstr("/no/such/program"));
}

}  // namespace
}  // namespace tailrace::sandbox
