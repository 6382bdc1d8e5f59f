#include "core/run/lock_file.h"

#include <optional>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

TEST(LockFile, HasOneHolderWhoIsNamed) {
  TemporaryDirectory folder;
  std::optional<LockFile> first(folder / "lock");
  EXPECT_TRUE(first->held());
  const LockFile second(folder / "lock");
  EXPECT_FALSE(second.held());
  EXPECT_EQ(second.holder(), std::to_string(::getpid()));
  first.reset();
  EXPECT_TRUE(LockFile(folder / "lock").held()) << "it goes with its holder";
  EXPECT_THROW(LockFile(folder / "missing/lock"), UserError);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(LockFile(folder / "pipe"), UserError);
}

}  // namespace
}  // namespace tailrace
