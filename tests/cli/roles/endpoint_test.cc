#include "cli/roles/endpoint.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/file_descriptor.h"
#include "tests/core/base/environment_variable.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

class RunEndpointTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  fs::path run_ = directory_.path();
};

fs::path folder_of(const std::string& endpoint) {
  return fs::path(endpoint.substr(std::string("ipc://").size())).parent_path();
}

TEST_F(RunEndpointTest, IsPrivateShortAndGoneAfterwards) {
  fs::path folder;
  {
    RunEndpoint endpoint(run_);
    EXPECT_EQ(read_endpoint(run_), endpoint.name());
    folder = folder_of(endpoint.name());
    struct stat facts {};
    ASSERT_EQ(::stat(folder.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0700u);
  }
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_THROW(read_endpoint(run_), UserError);
}

TEST_F(RunEndpointTest, RemovesWhatAKilledLaunchLeftBehind) {
  auto killed = std::make_unique<RunEndpoint>(run_);
  const fs::path old = folder_of(killed->name());
  ASSERT_EQ(::mknod((old / "s").c_str(), S_IFSOCK | 0600, 0), 0);
  mark_begun(run_, killed->name());
  EXPECT_TRUE(killed->begun());
  RunEndpoint next(run_);
  EXPECT_FALSE(next.begun()) << "that was another launch";
  EXPECT_FALSE(fs::exists(old));
  EXPECT_NE(folder_of(next.name()), old);
}

TEST_F(RunEndpointTest, RemovesNothingButItsOwn) {
  fs::create_directories(run_ / "precious");
  std::ofstream(run_ / "precious" / "s") << "data";
  std::ofstream(run_ / "endpoint") << "ipc://" << (run_ / "precious" / "s").string() << "\n";
  RunEndpoint endpoint(run_);
  EXPECT_TRUE(fs::exists(run_ / "precious" / "s"));
}

// The record may have been edited, to a folder that is named like ours.
TEST_F(RunEndpointTest, AForgedRecordDeletesNothing) {
  const fs::path data = run_ / "tr-data";
  fs::create_directories(data);
  std::ofstream(data / "s") << "data";
  std::ofstream(run_ / "endpoint") << "ipc://" << (data / "s").string() << "\n";
  { RunEndpoint endpoint(run_); }
  EXPECT_TRUE(fs::exists(data / "s"));
}

// A launch that comes too late must not take away what the run under way is found by.
TEST_F(RunEndpointTest, LeavesTheRecordsOfAnotherLaunch) {
  auto late = std::make_unique<RunEndpoint>(run_);
  const RunEndpoint other(run_);
  mark_begun(run_, other.name());
  late.reset();
  EXPECT_EQ(read_endpoint(run_), other.name());
  EXPECT_TRUE(other.begun());
}

// A run directory was copied while its run is under way.
TEST_F(RunEndpointTest, TheSocketOfALivingRunStays) {
  const RunEndpoint living(run_);
  const std::string path = living.name().substr(std::string("ipc://").size());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const FileDescriptor listener(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  const fs::path copy = run_ / "copy";
  fs::create_directories(copy);
  fs::copy_file(run_ / "endpoint", copy / "endpoint");
  { RunEndpoint endpoint(copy); }
  EXPECT_TRUE(fs::exists(path));
}

// Nor a link, to a folder that holds what could be ours.
TEST_F(RunEndpointTest, ALinkIsNotFollowed) {
  fs::create_directories(run_ / "elsewhere");
  ASSERT_EQ(::mknod((run_ / "elsewhere" / "s").c_str(), S_IFSOCK | 0600, 0), 0);
  fs::create_directory_symlink(run_ / "elsewhere", run_ / "tr-link");
  std::ofstream(run_ / "endpoint") << "ipc://" << (run_ / "tr-link" / "s").string() << "\n";
  { RunEndpoint endpoint(run_); }
  EXPECT_TRUE(fs::exists(run_ / "elsewhere" / "s"));
  EXPECT_TRUE(fs::is_symlink(run_ / "tr-link"));
}

TEST_F(RunEndpointTest, WhoIsKilledAtAnyMomentLeavesNothingForLong) {
  const fs::path base = run_ / "base";
  fs::create_directories(base);
  const EnvironmentVariable runtime_base("XDG_RUNTIME_DIR", base);
  for (int i = 0; i < 200; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      while (true) {
        RunEndpoint endpoint(run_);
        mark_begun(run_, endpoint.name());
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500 + i * 37 % 3000));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  { RunEndpoint endpoint(run_); }
  EXPECT_TRUE(fs::is_empty(base));
}

}  // namespace
}  // namespace tailrace
