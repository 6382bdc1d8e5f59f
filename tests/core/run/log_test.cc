#include "core/run/log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

TEST(Log, WritesLinesFromItsLevelOnAndAppends) {
  TemporaryDirectory folder;
  for (int i = 0; i < 2; ++i) {
    Log log("rollout-0", folder / "rollout-0.log");
    log.debug("not this step={}", i);
    log.info("step done step={}", i);
  }
  std::string text = read_file(folder / "rollout-0.log").value();
  EXPECT_EQ(text.find("not this"), std::string::npos);
  EXPECT_NE(text.find("I rollout-0 step done step=0\n"), std::string::npos);
  EXPECT_NE(text.find("step=1\n"), std::string::npos);
}

TEST(Log, RepeatsWarningsOnStderr) {
  TemporaryDirectory folder;
  testing::internal::CaptureStderr();
  {
    Log log("trainer-0", folder / "t.log");
    log.info("quiet");
    log.warning("grad norm is {}", 7);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "trainer-0: warning: grad norm is 7\n");
}

// What a worker or a program says could else act on the terminal of whoever reads the log.
TEST(Log, ShowsControlCharactersOfWhatItQuotes) {
  TemporaryDirectory folder;
  std::string heard;
  testing::internal::CaptureStderr();
  {
    Log log("scheduler-0", folder / "s.log");
    log.also_to([&](LogLevel, std::string_view line) { heard = line; });
    log.warning("it says {}", std::string_view("\x1b[2Jred\0!", 9));
  }
  const std::string shown = "it says \\x1b[2Jred\\x00!";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "scheduler-0: warning: " + shown + "\n");
  EXPECT_EQ(heard, shown);
  const std::string text = read_file(folder / "s.log").value();
  EXPECT_NE(text.find("W scheduler-0 " + shown + "\n"), std::string::npos) << text;
}

TEST(Log, SurvivesAFullDisk) {
  testing::internal::CaptureStderr();
  {
    Log log("scheduler-0", "/dev/full");
    for (int i = 0; i < 3; ++i) log.info("line {}", i);
  }
  std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("further lines may be lost"), std::string::npos);
  EXPECT_EQ(said.find("further lines may be lost"), said.rfind("further lines may be lost"));
}

TEST(Log, RefusesAPipeWithoutWaitingForItsReader) {
  TemporaryDirectory folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  try {
    Log log("scheduler-0", folder / "pipe");
    ADD_FAILURE() << "a pipe is no log";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("it is a pipe, not a file"), std::string::npos);
  }
}

TEST(Log, NamesAFileThatCannotBeOpened) { EXPECT_THROW(Log("a", "/proc/no/such.log"), UserError); }

}  // namespace
}  // namespace tailrace
