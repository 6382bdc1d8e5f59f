#include "core/run/tensorboard.h"

#include <gtest/gtest.h>

#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

// RFC 3720 B.4 and the usual check value.
TEST(Crc32c, MatchesPublishedValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(EventRecord, FramesAsTensorFlowDoes) {
  // The first record of a file written by TensorFlow 2: Event{wall_time: 1, file_version:
  // "brain.Event:2"} has 24 bytes, and every such file has these eight bytes and this checksum in
  // front.
  std::string record = event_record(std::string(24, 'x'));
  EXPECT_EQ(record.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  EXPECT_EQ(record.size(), 24u + 16u);
}

std::filesystem::path only_file(const std::filesystem::path& folder) {
  return std::filesystem::directory_iterator(folder)->path();
}

TEST(EventFile, ReadsBackWhatItWrote) {
  TemporaryDirectory folder;
  {
    auto file = EventFile::create(folder.path(), 1700000000.25, 40);
    ASSERT_TRUE(file);
    std::vector<std::pair<std::string, double>> values = {{"reward/mean", 0.625},
                                                          {"policy/lr", 1e-6}};
    ASSERT_TRUE(file.value().add_scalars(1700000001.5, 41, values));
    ASSERT_TRUE(file.value().add_scalars(1700000002.5, 300, {}));
  }
  EXPECT_EQ(only_file(folder.path()).filename(), "events.out.tfevents.1700000000.tailrace");
  auto events = read_events(only_file(folder.path()));
  ASSERT_TRUE(events) << events.failure().message;
  ASSERT_EQ(events.value().size(), 4u);
  EXPECT_EQ(events.value()[0].file_version, "brain.Event:2");
  EXPECT_EQ(events.value()[0].wall_seconds, 1700000000.25);
  EXPECT_TRUE(events.value()[1].session_start);
  EXPECT_EQ(events.value()[1].step, 40);
  EXPECT_EQ(events.value()[2].step, 41);
  EXPECT_EQ(events.value()[2].values, (std::vector<std::pair<std::string, float>>{
                                          {"reward/mean", 0.625f}, {"policy/lr", 1e-6f}}));
  EXPECT_EQ(events.value()[3].step, 300);
}

TEST(EventFile, ASecondLaunchInTheSameSecondGetsItsOwnFile) {
  TemporaryDirectory folder;
  ASSERT_TRUE(EventFile::create(folder.path(), 1.0, 0));
  ASSERT_TRUE(EventFile::create(folder.path(), 1.0, 0));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(ReadEvents, RefusesCutAndChangedFiles) {
  TemporaryDirectory folder;
  ASSERT_TRUE(EventFile::create(folder.path(), 1.0, 0));
  std::string bytes = read_file(only_file(folder.path())).value();
  int refused = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] ^= 0x10;
    refused += !read_events(folder.write("changed", changed)).ok();
  }
  EXPECT_EQ(refused, static_cast<int>(bytes.size()));
  size_t first_record = event_record(std::string(24, 'x')).size();
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_EQ(read_events(folder.write("cut", bytes.substr(0, size))).ok(), size == first_record)
        << size;
  }
}

}  // namespace
}  // namespace tailrace
