#include "core/base/file.h"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/pulse.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

TEST(ReadFile, GivesTheBytesAsTheyAre) {
  TemporaryDirectory folder;
  std::string bytes("a\0b\r\n\xff", 6);
  EXPECT_EQ(read_file(folder.write("x", bytes)).value(), bytes);
  EXPECT_EQ(read_file(folder.write("empty", "")).value(), "");
  EXPECT_FALSE(read_file("/proc/self/status").value().empty());  // says that its size is 0
}

TEST(ReadFile, NamesTheFileAndTheReason) {
  TemporaryDirectory folder;
  auto missing = read_file(folder / "nothing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.failure().message,
            "cannot open " + (folder / "nothing").string() + ": No such file or directory");
  EXPECT_NE(read_file(folder.path()).failure().message.find("Is a directory"), std::string::npos);
  EXPECT_NE(
      read_file(folder.write("big", "12345"), 4).failure().message.find("larger than 4 bytes"),
      std::string::npos);
}

TEST(ReadFile, WaitsForNoWriterOfAPipe) {
  TemporaryDirectory folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(read_file(pipe).failure().message,
            "cannot read " + pipe.string() + ": it is a pipe or a device, not a file");
  EXPECT_FALSE(read_file("/dev/zero"));
}

TEST(ReadFile, RefusesWhatIsLargerThanTheMachinesMemory) {
  TemporaryDirectory folder;
  const auto path = folder.write("sparse", "");
  std::error_code error;
  std::filesystem::resize_file(path, uintmax_t{1} << 43, error);
  if (error) GTEST_SKIP() << "no file of 8 TiB here: " << error.message();
  const auto read = read_file(path, int64_t{1} << 50);
  ASSERT_FALSE(read);
  EXPECT_NE(read.failure().message.find("more than the machine's memory"), std::string::npos)
      << read.failure().message;
}

TEST(AtomicFile, AppearsOnlyWhenItIsCommitted) {
  TemporaryDirectory folder;
  auto count = [&] {
    return std::distance(std::filesystem::directory_iterator(folder.path()), {});
  };
  folder.write("x", "old");
  {
    AtomicFile file = AtomicFile::create(folder / "x").value();
    ASSERT_TRUE(file.write("ne"));
    AtomicFile moved = std::move(file);
    ASSERT_TRUE(moved.write("w"));
    EXPECT_EQ(read_file(folder / "x").value(), "old");
    ASSERT_TRUE(moved.commit());
    EXPECT_EQ(read_file(folder / "x").value(), "new");
  }
  {
    AtomicFile given_up = AtomicFile::create(folder / "x").value();
    ASSERT_TRUE(given_up.write("half"));
    EXPECT_EQ(count(), 2);
  }
  EXPECT_EQ(read_file(folder / "x").value(), "new");
  EXPECT_EQ(count(), 1);
  EXPECT_NE(AtomicFile::create(folder / "none" / "x").failure().message.find("cannot write"),
            std::string::npos);
}

TEST(WriteFileAtomic, ReplacesAndLeavesNoTemporaryFile) {
  TemporaryDirectory folder;
  ASSERT_TRUE(write_file_atomic(folder / "x", "one"));
  ASSERT_TRUE(write_file_atomic(folder / "x", "two"));
  EXPECT_EQ(read_file(folder / "x").value(), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(WriteFileAtomic, KeepsTheOldFileWhenThereIsNoRoom) {
  TemporaryDirectory folder;
  ASSERT_TRUE(write_file_atomic(folder / "x", "old"));
  // A file size limit stands for the full disk; a child process has it, so that the other tests do
  // not.
  pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto written = write_file_atomic(folder / "x", std::string(5000, 'n'));
    bool named = !written && written.failure().message.find(
                                 "File too large; raise the file size limit") != std::string::npos;
    ::_exit(named ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(folder / "x").value(), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(WriteFileAtomic, NamesAMissingFolder) {
  TemporaryDirectory folder;
  auto written = write_file_atomic(folder / "no/x", "text");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.failure().message,
            "cannot write " + (folder / "no/x").string() + ": No such file or directory");
}

TEST(Files, LargeOnesShowProgressWhileTheyAreWrittenAndRead) {
  TemporaryDirectory folder;
  const std::string bytes(150 << 20, 'x');
  Pulse pulse;
  const PulseScope scope(pulse);
  ASSERT_TRUE(write_file_atomic(folder / "large", bytes));
  // In pieces of 16 MiB, and once more each time that 64 MiB have reached the disk.
  EXPECT_GE(pulse.beats(), 12u);
  const uint64_t written = pulse.beats();
  EXPECT_EQ(read_file(folder / "large").value().size(), bytes.size());
  EXPECT_GE(pulse.beats() - written, 9u);
}

TEST(Files, LinesShowProgress) {
  Pulse pulse;
  const PulseScope scope(pulse);
  LineReader reader("a\nb\nc\n");
  while (reader.next()) {
  }
  EXPECT_GE(pulse.beats(), 3u);
}

TEST(AppendFile, AddsToWhatIsThere) {
  TemporaryDirectory folder;
  folder.write("log", "a\n");
  auto file = AppendFile::open(folder / "log");
  ASSERT_TRUE(file);
  ASSERT_TRUE(file.value().append("b\n"));
  ASSERT_TRUE(file.value().sync());
  EXPECT_EQ(read_file(folder / "log").value(), "a\nb\n");
}

TEST(AppendFile, APipeIsRefusedWithoutWaitingForItsReader) {
  TemporaryDirectory folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const auto file = AppendFile::open(folder / "pipe");
  ASSERT_FALSE(file);
  EXPECT_NE(file.failure().message.find("it is a pipe"), std::string::npos);
}

TEST(AppendFile, AFullDiskIsAFailureThatSaysWhatToDo) {
  auto file = AppendFile::open("/dev/full");
  ASSERT_TRUE(file);
  auto written = file.value().append("text");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.failure().message,
            "cannot write /dev/full: No space left on device; free some space or use another disk");
}

TEST(AppendFile, TakesBackTheRecordThatDidNotFit) {
  TemporaryDirectory folder;
  folder.write("log", "");
  pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{.rlim_cur = 10, .rlim_max = 10};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto file = AppendFile::open(folder / "log");
    bool first = file.value().append("1234567\n").ok(),
         second = file.value().append("1234567\n").ok();
    ::_exit(first && !second ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(folder / "log").value(), "1234567\n");
}

TEST(LineReader, NumbersLinesAndKnowsACutOne) {
  LineReader lines("one\r\n\nthree");
  auto line = lines.next();
  EXPECT_EQ(line->number, 1);
  EXPECT_EQ(line->text, "one");
  EXPECT_TRUE(line->complete);
  EXPECT_EQ(lines.next()->text, "");
  line = lines.next();
  EXPECT_EQ(line->number, 3);
  EXPECT_EQ(line->text, "three");
  EXPECT_FALSE(line->complete);
  EXPECT_FALSE(lines.next());
}

TEST(WriteFileAtomic, TakesThePlaceOfFilesAlone) {
  TemporaryDirectory folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_FALSE(write_file_atomic(folder / "pipe", "x"));
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
  EXPECT_FALSE(write_file_atomic(folder.path(), "x"));
}

}  // namespace
}  // namespace tailrace
