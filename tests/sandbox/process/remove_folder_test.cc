// Folders that programs have worked in are removed, whatever they did to them.
#include "sandbox/process/remove_folder.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/core/base/temporary_directory.h"

namespace tailrace::sandbox {
namespace {

namespace fs = std::filesystem;

// In a process of its own, as somebody who is not root: root may remove everything.
template <class Act>
int as_nobody(const fs::path& folder, const Act& act) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::geteuid() == 0) {
      if (::chmod(folder.c_str(), 0777) != 0 || ::setresuid(65534, 65534, 65534) != 0) ::_exit(99);
    }
    ::_exit(act());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(RemoveFolder, FoldersThatAreClosedToTheirOwnerToo) {
  TemporaryDirectory folder;
  // The folders above may be closed to others.
  for (fs::path at = folder.path(); at != "/tmp" && at.has_relative_path(); at = at.parent_path())
    fs::permissions(at, fs::perms::others_exec, fs::perm_options::add);
  EXPECT_EQ(as_nobody(folder.path(),
                      [&] {
                        const fs::path top = folder.path() / "top";
                        fs::create_directories(top / "a/b/c");
                        std::ofstream(top / "a/b/c/file") << "x";
                        fs::permissions(top / "a/b/c", fs::perms::none);
                        fs::permissions(top / "a/b", fs::perms::owner_read);
                        fs::permissions(top / "a", fs::perms(0500));
                        fs::permissions(top, fs::perms(0500));
                        if (!remove_folder(top)) return 1;
                        return fs::exists(top) ? 2 : 0;
                      }),
            0);
}

TEST(RemoveFolder, NoLinkIsFollowed) {
  TemporaryDirectory folder;
  const fs::path kept = folder.path() / "kept", top = folder.path() / "top";
  fs::create_directories(kept);
  fs::create_directories(top / "a");
  std::ofstream(kept / "file") << "x";
  fs::permissions(kept, fs::perms(0500));
  fs::create_directory_symlink(kept, top / "a/link");
  EXPECT_TRUE(remove_folder(top));
  EXPECT_FALSE(fs::exists(top));
  EXPECT_TRUE(fs::exists(kept / "file"));
  EXPECT_EQ(fs::status(kept).permissions(), fs::perms(0500));
  // One that is itself a link is removed, and not what it leads to.
  fs::create_directory_symlink(kept, top);
  EXPECT_TRUE(remove_folder(top));
  EXPECT_FALSE(fs::exists(fs::symlink_status(top)));
  EXPECT_TRUE(fs::exists(kept / "file"));
  EXPECT_TRUE(remove_folder(folder.path() / "absent"));
}

}  // namespace
}  // namespace tailrace::sandbox
