// docs/hosts.md, step by step, on two hosts: its commands as they are written.
#include <sstream>

#include "tests/examples/page_blocks.h"
#include "tests/hosts/remote_fixture.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

class HostsPage : public RemoteTest {
 protected:
  // A command as a person types it, in a folder of its own on that host.
  HostProcess& type(Host& host, const std::string& command) {
    const std::string path = fs::path(TAILRACE_BINARY).parent_path().string();
    return host.spawn({"/bin/sh", "-c", "cd /tmp/here && exec " + command}, next_output(),
                      {"PATH=" + path + ":/usr/bin:/bin", "HOME=/tmp/here"});
  }
  // By hand: two hosts of a test have no ssh.
  void carry(const std::string& command) {
    std::istringstream words(command);
    std::vector<std::string> files;
    for (std::string word; words >> word;) files.push_back(word);
    ASSERT_EQ(files.back(), "10.77.0.2:") << command;
    for (size_t i = 1; i + 1 < files.size(); ++i)
      fs::copy_file(home_->outside("/tmp/here/" + files[i]),
                    far_->outside("/tmp/here") / fs::path(files[i]).filename());
  }
};

TEST_F(HostsPage, LeadsFromNothingToAWorkerOnAnotherMachine) {
  for (Host* host : {&*home_, &*far_}) fs::create_directories(host->outside("/tmp/here"));
  fs::copy(fs::path(TAILRACE_SOURCE_DIR) / "configs", home_->outside("/tmp/here/configs"));
  connect({.rate_mbit = 1000, .delay = 1ms});
  const std::string page = read_file(TAILRACE_SOURCE_DIR "/docs/hosts.md").value();
  HostProcess* run = nullptr;
  std::vector<HostProcess*> workers;
  const auto log = [&](const std::string& role) {
    return text_at_home("/tmp/here/runs/two/logs/" + role + ".log");
  };
  int commands = 0;
  for (const PageBlock& block : blocks_of(page)) {
    if (block.language != "bash") continue;
    const bool at_home = block.text.starts_with("# on the first machine\n");
    ASSERT_TRUE(at_home || block.text.starts_with("# on the other machine\n")) << block.text;
    std::istringstream lines(block.text.substr(block.text.find('\n') + 1));
    for (std::string line; std::getline(lines, line);) {
      ++commands;
      if (line.starts_with("scp ")) {
        carry(line);
      } else if (line.starts_with("tailrace launch ")) {
        run = &type(*home_, line + " run.steps=100000");
        ASSERT_TRUE(
            comes_true([&] { return log("gate-0").find("may join at") != std::string::npos; }));
      } else if (line.starts_with("tailrace worker --join ")) {
        workers.push_back(&type(*far_, line));
        ASSERT_TRUE(comes_true([&] {
          return workers.back()->output().find("working as") != std::string::npos;
        })) << workers.back()->output();
      } else {
        if (line.find(" status ") != std::string::npos) {
          ASSERT_TRUE(comes_true([&] {
            return log("scheduler-0").find("rollout-2 has joined") != std::string::npos &&
                   log("scheduler-0").find("reward-1 has joined") != std::string::npos;
          }));
        }
        HostProcess& process = type(at_home ? *home_ : *far_, line);
        ASSERT_EQ(process.wait(kHostPatience), 0) << line << "\n" << process.output();
        if (line.find(" status ") != std::string::npos) {
          EXPECT_NE(process.output().find("rollout-2: joined, host beta"), std::string::npos)
              << process.output();
        }
      }
    }
  }
  EXPECT_EQ(commands, 8);
  ASSERT_NE(run, nullptr);
  // One that the scheduler does not know yet is not told of the end.
  ASSERT_TRUE(comes_true(
      [&] { return log("scheduler-0").find("rollout-3 has joined") != std::string::npos; }));
  run->kill(SIGINT);
  EXPECT_EQ(run->wait(kHostPatience), 130);
  for (HostProcess* worker : workers) EXPECT_EQ(worker->wait(10s), 0);
}

// What is printed as a config is one.
TEST_F(HostsPage, ItsConfigIsOne) {
  fs::create_directories(home_->outside("/tmp/here"));
  fs::copy(fs::path(TAILRACE_SOURCE_DIR) / "configs", home_->outside("/tmp/here/configs"));
  const std::string page = read_file(TAILRACE_SOURCE_DIR "/docs/hosts.md").value();
  bool found = false;
  for (const PageBlock& block : blocks_of(page)) {
    if (block.language != "yaml") continue;
    found = true;
    std::ofstream(home_->outside("/tmp/here/two.yaml"))
        << "extends: configs/quickstart.yaml\n" + block.text;
    HostProcess& plan = type(*home_, "tailrace launch two.yaml --dry-run");
    EXPECT_EQ(plan.wait(kHostPatience), 0);
    EXPECT_NE(plan.output().find("west: 2 rollout workers (pool far), link 1000 Mbit/s"),
              std::string::npos)
        << plan.output();
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace tailrace
