#include "cli/run/endpoint.h"

#include <cstdlib>
#include <fstream>
#include <memory>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/base/error.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

class RunEndpointTest : public testing::Test {
 protected:
  RunEndpointTest() {
    std::string path = (fs::temp_directory_path() / "trendpoint-XXXXXX").string();
    run_ = ::mkdtemp(path.data());
  }
  ~RunEndpointTest() override { fs::remove_all(run_); }
  fs::path run_;
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
  mark_begun(killed->name());
  RunEndpoint next(run_);
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
  std::ofstream(data / "begun") << "data";
  std::ofstream(run_ / "endpoint") << "ipc://" << (data / "s").string() << "\n";
  { RunEndpoint endpoint(run_); }
  EXPECT_TRUE(fs::exists(data / "s"));
  EXPECT_TRUE(fs::exists(data / "begun"));
}

}  // namespace
}  // namespace tailrace
