// Who may not join a run of another host: each is told why in one line, and so is the run.
#include <cstring>

#include "tests/hosts/remote_fixture.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

class RemoteStranger : public RemoteTest {
 protected:
  void SetUp() override {
    RemoteTest::SetUp();
    if (IsSkipped()) return;
    connect({.rate_mbit = 1000, .delay = 1ms});
    run_ = &launch();
    ASSERT_NO_FATAL_FAILURE(expect_open());
  }
  // It ends by itself, with a status for a person's mistake and these words in its one message.
  void expect_refused(HostProcess& worker, const std::string& words) {
    EXPECT_EQ(worker.wait(kHostPatience), 2);
    const std::string said = worker.output();
    EXPECT_NE(said.find(words), std::string::npos) << said;
    EXPECT_EQ(said.find("error: "), said.rfind("error: ")) << said;
  }
  void expect_told(const std::string& words) {
    EXPECT_TRUE(comes_true([&] { return log_of("gate-0").find(words) != std::string::npos; }, 10s))
        << log_of("gate-0");
  }

  HostProcess* run_ = nullptr;
};

TEST_F(RemoteStranger, EachIsToldWhyAndSoIsTheRun) {
  make_keys("eve");
  carry_keys("eve");
  fs::remove(home_->outside("/tmp/keys/allowed/eve.pub"));
  expect_refused(join({"--pool", "far"}, "eve"), "the run does not know this key");
  expect_told("refused a connection from 10.77.0.2: its key");

  HostProcess& other = far_->spawn(
      {TAILRACE_BINARY, "worker", "keys", "new", "x", "--dir", "/tmp/other"}, next_output());
  EXPECT_EQ(other.wait(kHostPatience), 0);
  expect_refused(join({"--pool", "far"}, "box7", "/tmp/other/server.pub"),
                 "the run has another key than --server-key names");
  expect_told("has not the key of this run");

  expect_refused(join({"--pool", "near"}), "--pool is near, and this run has far");
  expect_refused(join({"--pool", "far", "--cluster", "east"}), "--cluster is east");
  expect_refused(join({"--pool", "far"}, "none"), "none.key");

  // What lies in a folder of somebody else stays.
  const fs::path busy = far_->outside("/tmp/busy");
  fs::create_directories(busy / "weights/mine");
  std::ofstream(busy / "weights/mine/model") << "mine";
  expect_refused(join({"--pool", "far"}, "box7", "/tmp/keys/server.pub", "/tmp/busy"),
                 "holds files of somebody else");
  EXPECT_EQ(read_file(busy / "weights/mine/model").value(), "mine");

  // A key that is put in the folder counts at once.
  fs::copy_file(far_->outside("/tmp/other/allowed/x.pub"),
                home_->outside("/tmp/keys/allowed/x.pub"));
  fs::copy_file(far_->outside("/tmp/other/x.key"), far_->outside("/tmp/keys/x.key"));
  HostProcess& late = join({"--pool", "far"}, "x");
  EXPECT_TRUE(
      comes_true([&] { return late.output().find("working as") != std::string::npos; }, 30s))
      << late.output();
}

TEST_F(RemoteStranger, AnotherBuildIsNamed) {
  // The same program under another build id: the note that the linker has written.
  std::string binary = read_file(TAILRACE_BINARY).value();
  const std::string_view note("\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0", 16);
  const size_t at = binary.find(note);
  ASSERT_NE(at, std::string::npos);
  binary[at + note.size()] = static_cast<char>(binary[at + note.size()] ^ 1);
  const fs::path other = far_->outside("/tmp/tailrace");
  std::ofstream(other, std::ios::binary) << binary;
  fs::permissions(other, fs::perms::owner_all);
  HostProcess& worker = far_->spawn(
      {"/tmp/tailrace", "worker", "--join", kListen, "--key", "/tmp/keys/box7.key", "--server-key",
       "/tmp/keys/server.pub", "--work-dir", "/tmp/work", "--pool", "far"},
      next_output());
  expect_refused(worker, "another build of tailrace");
  expect_told("it is another build of tailrace");
}

}  // namespace
}  // namespace tailrace
