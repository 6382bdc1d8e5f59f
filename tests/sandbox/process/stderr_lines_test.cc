// What is told of the stderr of programs, and how often.
#include "sandbox/process/stderr_lines.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tailrace::sandbox {
namespace {

// As Python 3.11 and later write it: the innermost frame is not of this program.
std::string traceback(const std::string& says, int line = 3) {
  return "Traceback (most recent call last):\n"
         "  File \"/home/me/maze.py\", line 12, in <module>\n"
         "    print(step(call))\n"
         "          ^^^^^^^^^^\n"
         "  File \"/home/me/maze.py\", line " +
         std::to_string(line) +
         ", in step\n"
         "    return json.loads(text)\n"
         "  File \"/usr/lib/python3.11/json/decoder.py\", line 355, in raw_decode\n"
         "    raise JSONDecodeError()\n" +
         says + "\n";
}

class StderrOfPrograms : public testing::Test {
 protected:
  // What goes to the log for a process that writes `text` and ends.
  std::string logged(const std::string& text) {
    testing::internal::CaptureStderr();
    StderrLines said("maze", &log_);
    said.take(text, Time{});
    said.end(Time{});
    last_ = said.last();
    return testing::internal::GetCapturedStderr();
  }

  StderrLog log_;
  std::string last_;
};

TEST_F(StderrOfPrograms, ATracebackIsToldOnce) {
  const std::string first = logged("begins\n" + traceback("ValueError: no map"));
  EXPECT_EQ(std::ranges::count(first, '\n'), 10) << first;
  EXPECT_NE(first.find("maze:     return json.loads(text)\n"), std::string::npos) << first;
  EXPECT_EQ(last_, "begins | ValueError: no map (maze.py:3)");
  // The same again, and again, and then what is new in it.
  for (int i = 2; i < 10; ++i) EXPECT_EQ(logged(traceback("ValueError: no map")), "") << i;
  EXPECT_EQ(logged(traceback("ValueError: no map")),
            "maze: ValueError: no map (maze.py:3), with the traceback that is above, 10 times so "
            "far\n");
  EXPECT_EQ(logged(traceback("ValueError: no door")),
            "maze: ValueError: no door (maze.py:3), with the traceback that is above\n");
  EXPECT_EQ(last_, "ValueError: no door (maze.py:3)");
  // Another place is another traceback.
  const std::string other = logged(traceback("ValueError: no map", 4));
  EXPECT_EQ(std::ranges::count(other, '\n'), 9) << other;
}

TEST_F(StderrOfPrograms, AnExceptionMayHaveSeveralLines) {
  const std::string says = traceback("ValueError: no map\nin any folder\nof ours");
  EXPECT_EQ(std::ranges::count(logged(says), '\n'), 11);
  EXPECT_EQ(last_, "ValueError: no map (maze.py:3) | in any folder | of ours");
  EXPECT_EQ(logged(says), "");
  EXPECT_EQ(last_, "ValueError: no map (maze.py:3) | in any folder | of ours");
  EXPECT_EQ(logged(traceback("ValueError: no map\nin this folder")), "maze: in this folder\n");
}

TEST_F(StderrOfPrograms, TracebacksOfOtherShapes) {
  // What cannot be compiled has no first line.
  (void)logged(
      "  File \"/home/me/maze.py\", line 7\n    def\n       ^\nSyntaxError: invalid syntax\n");
  EXPECT_EQ(last_, "SyntaxError: invalid syntax (maze.py:7)");
  // A cause and what it led to; a traceback without its end; one whose line has none.
  (void)logged(traceback("KeyError: 1") +
               "\nDuring handling of the above exception, another "
               "exception occurred:\n\n" +
               traceback("ValueError: no map", 5));
  EXPECT_TRUE(last_.ends_with("another exception occurred: | ValueError: no map (maze.py:5)"))
      << last_;
  EXPECT_EQ(logged("Traceback (most recent call last):\n  File \"/a.py\", line 1, in a\n"),
            "maze: Traceback (most recent call last):\nmaze:   File \"/a.py\", line 1, in a\n");
  std::string cut = traceback("ValueError: no map", 6);
  cut.pop_back();
  (void)logged(cut);
  EXPECT_EQ(last_, "ValueError: no map (maze.py:6)");
  // One without an end is not waited for.
  std::string endless = "Traceback (most recent call last):\n";
  for (int i = 0; i < 10'000; ++i) endless += "  line " + std::to_string(i) + "\n";
  const std::string told = logged(endless);
  EXPECT_TRUE(told.ends_with(" more lines\n")) << told.substr(told.size() - 100);
}

// Lines that are no traceback are told each time.
TEST_F(StderrOfPrograms, OtherLinesAreToldAgain) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(logged("no more\n"), "maze: no more\n");
  EXPECT_EQ(last_, "no more");
}

// Each check of `env check` is a copy of its process.
TEST_F(StderrOfPrograms, ACopyOfThisProcessTellsWhatIsNew) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (void)logged(traceback("ValueError: no map"));
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(logged(traceback("ValueError: no map")), "");
}

// What the limit of the log has left out is not above.
TEST_F(StderrOfPrograms, ATracebackThatWasLeftOutIsToldLater) {
  std::string flood;
  for (int i = 0; i < 100; ++i) flood += "line\n";
  (void)logged(flood);
  EXPECT_EQ(logged(traceback("ValueError: no map")), "maze: 9 more lines\n");
  testing::internal::CaptureStderr();
  StderrLines said("maze", &log_);
  said.take(traceback("ValueError: no map"), std::chrono::hours(1));
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(told, '\n'), 9) << told;
}

}  // namespace
}  // namespace tailrace::sandbox
