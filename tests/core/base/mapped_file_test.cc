#include "core/base/mapped_file.h"

#include <fstream>
#include <utility>

#include <gtest/gtest.h>

#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

TEST(MappedFile, HoldsTheBytesOfTheFileWhereverItIsMoved) {
  TemporaryDirectory folder;
  const auto path = folder.path() / "a";
  std::ofstream(path) << "some bytes";
  MappedFile file = MappedFile::open(path).value();
  const auto* begin = file.bytes().data();
  EXPECT_EQ(file.text(), "some bytes");
  MappedFile other = std::move(file);
  EXPECT_EQ(other.bytes().data(), begin);
  other = MappedFile::open(path).value();
  EXPECT_EQ(other.text(), "some bytes");
  // One that is replaced stays what it was.
  std::ofstream(folder.path() / "b") << "others";
  std::filesystem::rename(folder.path() / "b", path);
  EXPECT_EQ(other.text(), "some bytes");
}

TEST(MappedFile, AnEmptyFileHasNoBytesAndNoFileIsAFailure) {
  TemporaryDirectory folder;
  std::ofstream(folder.path() / "empty").flush();
  EXPECT_TRUE(MappedFile::open(folder.path() / "empty").value().bytes().empty());
  const auto missing = MappedFile::open(folder.path() / "none");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.failure().message.find("none"), std::string::npos);
  EXPECT_FALSE(MappedFile::open(folder.path()));
}

}  // namespace
}  // namespace tailrace
