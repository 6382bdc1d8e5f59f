#include "core/run/run_directory.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

std::string fault_of_root(const std::filesystem::path& root) {
  try {
    RunDirectory run(root);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(RunDirectory, MakesTheFolders) {
  TemporaryDirectory folder;
  RunDirectory run(folder / "runs/a");
  EXPECT_FALSE(run.resumes());
  for (const char* name : {"trajectories", "checkpoints", "journal", "logs", "weights"})
    EXPECT_TRUE(std::filesystem::is_directory(folder / "runs/a" / name)) << name;
  EXPECT_EQ(run.paths().log("rollout", 1), folder / "runs/a/logs/rollout-1.log");
}

TEST(RunDirectory, OnlyAFinishedCheckpointHasAStep) {
  EXPECT_EQ(checkpoint_name(10), "step_000010");
  EXPECT_EQ(checkpoint_step("run/checkpoints/step_000010"), 10);
  EXPECT_EQ(checkpoint_step(checkpoint_name(12345678)), 12345678);
  for (const char* name : {"step_000010.tmp", "step_", "step_-1", "reference", "step_1x"})
    EXPECT_FALSE(checkpoint_step(name)) << name;
}

// Its scheduler goes on, and what it is writing stays.
TEST(RunDirectory, ARunUnderWayIsRefusedAlsoWithoutItsLock) {
  TemporaryDirectory folder;
  RunDirectory run(folder / "a");
  ASSERT_TRUE(write_file_atomic(run.paths().config(), "run: {}\n"));
  const LockFile scheduler(run.paths().role("scheduler", 0));
  const auto writing = AtomicFile::create(run.paths().metrics());
  const auto unfinished =
      run.paths().metrics().string() + fmt::format(".unfinished.{}", ::getpid());
  std::filesystem::remove(run.paths().lock());
  EXPECT_NE(fault_of_root(folder / "a").find("in use by another launch"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(unfinished));
}

TEST(RunDirectory, ContinuesWhereAConfigIs) {
  TemporaryDirectory folder;
  folder.write("config.yaml", "a: 1\n");
  folder.write("metrics.jsonl", "");
  EXPECT_TRUE(RunDirectory(folder.path()).resumes());
}

TEST(RunDirectory, SweepsUpHalfWrittenFilesAndNothingElse) {
  TemporaryDirectory folder;
  { RunDirectory run(folder / "run"); }
  const auto touch = [&](const std::string& name) {
    EXPECT_TRUE(write_file_atomic(folder / "run" / name, "x"));
  };
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(dead), &ended, WEXITED | WNOWAIT), 0);
  // No process has so high a number; this one's was an earlier one's; and one is dead but not
  // buried.
  const std::vector<std::string> ours = {
      "config.yaml.unfinished.99999999", "weights/p0-v1.safetensors.unfinished.123456789012",
      fmt::format("journal/snapshot-000001.bin.unfinished.{}", ::getpid()),
      "metrics.jsonl.unfinished.0", fmt::format("tokenizer.json.unfinished.{}", dead)};
  const std::vector<std::string> others = {"notes.unfinished", "notes.tmp.12",
                                           "notes.unfinished.1a", ".unfinished.12",
                                           "mine/x.unfinished.12"};
  std::filesystem::create_directories(folder / "run/mine");
  std::filesystem::create_directories(folder / "run/folder.unfinished.12");
  for (const auto* names : {&ours, &others})
    for (const std::string& name : *names) touch(name);
  {
    RunDirectory run(folder / "run");
    for (const std::string& name : ours)
      EXPECT_FALSE(std::filesystem::exists(folder / "run" / name)) << name;
    touch(ours[1]);  // of a trainer that was killed during this launch
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "run" / ours[1]));
  for (const std::string& name : others)
    EXPECT_TRUE(std::filesystem::exists(folder / "run" / name)) << name;
  EXPECT_TRUE(std::filesystem::exists(folder / "run/folder.unfinished.12"));
  ::waitpid(dead, nullptr, 0);
}

TEST(RunDirectory, LeavesToAnotherProcessWhatItIsWriting) {
  TemporaryDirectory folder;
  { RunDirectory run(folder / "run"); }
  int ready[2], swept[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(swept), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 'x';
    auto report = AtomicFile::create(folder / "run/report.html");
    const bool begun =
        report && report.value().write("a report") && ::write(ready[1], &byte, 1) == 1;
    const bool done = begun && ::read(swept[0], &byte, 1) == 1 && report.value().commit();
    ::_exit(done ? 0 : 1);
  }
  ::close(ready[1]);
  char byte = 'x';
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  { RunDirectory run(folder / "run"); }
  EXPECT_EQ(::write(swept[1], &byte, 1), 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(read_file(folder / "run/report.html").value(), "a report");
  for (int end : {ready[0], swept[0], swept[1]}) ::close(end);
}

TEST(RunDirectory, RefusesASecondLaunchAndNamesTheOwner) {
  TemporaryDirectory folder;
  std::string root = (folder / "run").string();
  {
    RunDirectory run(root);
    EXPECT_EQ(fault_of_root(root),
              fmt::format("{} is in use by another launch (process {}). Wait for "
                          "it, stop it with Ctrl-C or kill it, "
                          "or choose another run.dir.",
                          root, ::getpid()));
  }
  EXPECT_EQ(fault_of_root(root), "");
}

TEST(RunDirectory, ADeadOwnerHoldsNothing) {
  TemporaryDirectory folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  pid_t child = ::fork();
  if (child == 0) {
    RunDirectory run(folder / "run");
    [[maybe_unused]] auto written = ::write(ready[1], "x", 1);
    ::pause();
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_NE(fault_of_root(folder / "run").find(fmt::format("process {}", child)),
            std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(fault_of_root(folder / "run"), "");
}

TEST(RunDirectory, RefusesAFolderOfSomethingElse) {
  TemporaryDirectory folder;
  folder.write("thesis.tex", "text");
  EXPECT_EQ(fault_of_root(folder.path()),
            folder.path().string() +
                " holds files (for example thesis.tex) but no config.yaml, so it is not a run "
                "directory. Choose another run.dir or an empty folder.");
}

TEST(RunDirectory, NamesAPlaceThatCannotBeWritten) {
  EXPECT_NE(fault_of_root("/proc/tailrace-run").find("cannot create /proc/tailrace-run"),
            std::string::npos);
}

}  // namespace
}  // namespace tailrace
