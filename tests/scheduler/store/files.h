// Folders and broken files for the tests of what survives a kill.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

namespace tailrace::scheduler {

// An empty folder that goes with the test.
class ScratchFolder {
 public:
  ScratchFolder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) /
            (std::string("tailrace_") + test->test_suite_name() + "_" + test->name() + "_" +
             std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void flip_byte(const std::filesystem::path& file, int64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(offset);
  const int byte = stream.get();
  stream.seekp(offset);
  stream.put(static_cast<char>(byte ^ 0x40));
}

inline int64_t size_of(const std::filesystem::path& file) {
  return static_cast<int64_t>(std::filesystem::file_size(file));
}

}  // namespace tailrace::scheduler
