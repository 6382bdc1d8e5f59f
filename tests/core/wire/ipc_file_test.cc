// What becomes of the file of an ipc socket: other processes, cleaners, mistakes.
#include "tests/core/wire/wire_fixture.h"

namespace tailrace::wire {
namespace {

class IpcFileTest : public WireTest {};

TEST_F(IpcFileTest, ALiveEndpointIsNotStolen) {
  start_server();
  try {
    WorkerServer second(endpoint_, options_);
    FAIL() << "took over a live endpoint";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("a live process listens there"), std::string::npos)
        << error.what();
  }
  auto client = make_client();
  EXPECT_TRUE(welcome(*client));
}

TEST_F(IpcFileTest, AStaleSocketFileIsReplaced) {
  ASSERT_EQ(::mknod((folder_ / "s").c_str(), S_IFSOCK | 0600, 0), 0);
  start_server();
  auto client = make_client();
  EXPECT_TRUE(welcome(*client));
}

TEST_F(IpcFileTest, WhatIsNoSocketIsNotReplaced) {
  std::ofstream(folder_ / "s") << "somebody's";
  EXPECT_THROW(start_server(), UserError);
  EXPECT_EQ(std::filesystem::file_size(folder_ / "s"), 10u);
}

// A cleaner took it between the launch and a scheduler's restart.
TEST_F(IpcFileTest, AFolderThatIsGoneIsMadeForTheSocket) {
  std::filesystem::remove_all(folder_);
  start_server();
  auto client = make_client();
  EXPECT_TRUE(welcome(*client));
  EXPECT_EQ(std::filesystem::status(folder_).permissions(), std::filesystem::perms::owner_all);
}

TEST_F(IpcFileTest, ASocketFileThatIsTakenAwayComesBackAndNobodyIsLost) {
  start_server();
  auto first = make_client();
  ASSERT_TRUE(welcome(*first));
  first->send(TrainerWants{0, 1});
  ASSERT_TRUE(serve_until([&] { return incoming_.size() == 1; }));
  std::vector<std::unique_ptr<WorkerClient>> others;
  for (const bool folder_too : {false, true}) {
    notices_.clear();
    if (folder_too) {
      std::filesystem::remove_all(folder_);
    } else {
      std::filesystem::remove(folder_ / "s");
    }
    others.push_back(make_client(folder_too ? "rollout-2" : "rollout-1"));
    ASSERT_TRUE(welcome(*others.back()));
    const size_t before = incoming_.size();
    first->send(TrainerWants{0, folder_too ? 5 : 2});
    others.back()->send(TrainerWants{0, 3});
    ASSERT_TRUE(server_->send("rollout-0", ups_[0].session, Save{0, 4}));
    ASSERT_TRUE(serve_until([&] { return incoming_.size() == before + 2; }));
    Save save;
    ASSERT_TRUE(receive(*first, save));
    ASSERT_EQ(notices_.size(), 1u);
    EXPECT_NE(notices_[0].find((folder_ / "s").string()), std::string::npos) << notices_[0];
  }
  EXPECT_EQ(std::filesystem::status(folder_).permissions(), std::filesystem::perms::owner_all);
  EXPECT_TRUE(downs_.empty()) << "the first kept its session";
  EXPECT_EQ(std::ranges::count_if(
                ups_, [](const WorkerUp& up) { return up.hello.worker == "rollout-0"; }),
            1);
}

// Its place is taken by what is not ours: that stays, it is said, and tried again.
TEST_F(IpcFileTest, ASocketFileThatCannotComeBackIsSaidAtEachDoubling) {
  start_server();
  auto connected = make_client("rollout-1");
  ASSERT_TRUE(welcome(*connected));
  std::filesystem::remove(folder_ / "s");
  std::ofstream(folder_ / "s") << "somebody's";
  ASSERT_TRUE(serve_until([&] { return notices_.size() == 2; }));
  connected->send(TrainerWants{0, 1});
  EXPECT_TRUE(serve_until([&] { return incoming_.size() == 1; })) << "who was connected stays so";
  EXPECT_NE(notices_[0].find("something else lies at"), std::string::npos) << notices_[0];
  EXPECT_NE(notices_[1].find("tried 2 times"), std::string::npos) << notices_[1];
  EXPECT_EQ(std::filesystem::file_size(folder_ / "s"), 10u);
  std::filesystem::remove(folder_ / "s");
  auto client = make_client();
  ASSERT_TRUE(welcome(*client));
  EXPECT_NE(notices_.back().find("there again"), std::string::npos) << notices_.back();
}

TEST_F(IpcFileTest, ATooLongPathIsAUserError) {
  try {
    WorkerServer server("ipc:///tmp/" + std::string(120, 'x'), options_);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("1 to 107"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tailrace::wire
