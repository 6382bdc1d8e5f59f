// A run on one host and workers of it on another, with nothing in common but a slow link: the real
// binary on both.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "core/base/file.h"
#include "core/run/run_directory.h"
#include "core/weights/manifest.h"
#include "tests/hosts/hosts_test_suite.h"
#include "tests/hosts/link_emulator.h"
#include "tests/hosts/recording.h"

namespace tailrace {

namespace fs = std::filesystem;

inline constexpr std::chrono::seconds kHostPatience{100};
inline constexpr char kListen[] = "tcp://10.77.0.1:7701";

// A model that was really trained, a dataset and a verifier: all that a bundle can have but
// libraries. All that samples and scores is elsewhere.
inline constexpr std::string_view kFarConfig = R"(
run: {name: far, seed: 3, steps: 3, listen: "tcp://10.77.0.1:7701", keys: /tmp/keys}
model: {path: /tmp/data/model}
clusters: [{name: west, link_mbit: 100}]
env:
  name: text
  dataset: /tmp/data/prompts.jsonl
  eval_dataset: /tmp/data/held_out.jsonl
  settings: {verifier: text_rules, stop: "\n"}
rollout:
  prompts_per_step: 4
  group_size: 4
  max_turns: 1
  max_action_tokens: 48
  max_context_tokens: 256
  pools: [{name: far, workers: 1, cluster: west}]
reward: {workers: 0}
algo: {filter_zero_signal: none}
train: {microbatch_tokens: 1024, threads: 1}
optim: {lr: 0.0005}
eval: {prompts: 4, interval_steps: 2}
checkpoint: {interval_steps: 2}
)";

template <class Done>
bool comes_true(const Done& done, std::chrono::milliseconds patience = kHostPatience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

class RemoteTest : public HostsTest {
 protected:
  void SetUp() override {
    HostsTest::SetUp();
    if (IsSkipped()) return;
    std::string path = (fs::temp_directory_path() / "trhosts-XXXXXX").string();
    folder_ = ::mkdtemp(path.data());
    const fs::path data = fs::path(TAILRACE_SOURCE_DIR) / "tests/data";
    std::vector<fs::path> hidden = {data};
    if (const char* more = std::getenv("TAILRACE_DATA"); more != nullptr && fs::exists(more))
      hidden.emplace_back(more);
    home_.emplace("alpha");
    far_.emplace("beta", HostOptions{.hidden = hidden});
    // The run's host alone has these.
    const fs::path kept = home_->outside("/tmp/data");
    fs::create_directories(kept);
    fs::copy(data / "models/stories260K", kept / "model", fs::copy_options::recursive);
    fs::copy(data / "prompts/tinystories_prompts.jsonl", kept / "prompts.jsonl");
    fs::copy(data / "prompts/tinystories_held_out.jsonl", kept / "held_out.jsonl");
    std::ofstream(home_->outside("/tmp/far.yaml")) << kFarConfig;
    make_keys("box7");
    carry_keys("box7");
  }
  void TearDown() override {
    if (HasFailure())
      for (const fs::path& file : outputs_)
        if (const auto text = read_file(file)) fmt::print("{}:\n{}", file.string(), text.value());
    if (HasFailure() && home_) show_logs();
    link_.reset();
    far_.reset();
    home_.reset();
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  void show_logs() const {
    std::error_code ignored;
    for (const auto& log : fs::directory_iterator(home_->outside("/tmp/run/logs"), ignored))
      if (const auto text = read_file(log.path()))
        fmt::print("{}:\n{}", log.path().filename().string(),
                   text.value().substr(std::max<size_t>(text.value().size(), 3000) - 3000));
  }

  void make_keys(const std::string& name) {
    HostProcess& made = home_->spawn(
        {TAILRACE_BINARY, "worker", "keys", "new", name, "--dir", "/tmp/keys"}, next_output());
    ASSERT_EQ(made.wait(kHostPatience), 0);
  }
  // As a person would: by hand, over another way than the link.
  void carry_keys(const std::string& name) { carry_keys(name, *far_); }
  void carry_keys(const std::string& name, const Host& host) {
    const fs::path keys = host.outside("/tmp/keys");
    fs::create_directories(keys);
    for (const std::string& file : {name + ".key", std::string("server.pub")})
      fs::copy_file(home_->outside("/tmp/keys") / file, keys / file,
                    fs::copy_options::overwrite_existing);
  }

  void connect(const LinkOptions& options) { link_.emplace(*home_, *far_, options); }

  HostProcess& launch(const std::vector<std::string>& more = {},
                      const std::string& run = "/tmp/run") {
    std::vector<std::string> command = {TAILRACE_BINARY, "launch", "/tmp/far.yaml", "--run-dir",
                                        run};
    command.insert(command.end(), more.begin(), more.end());
    return home_->spawn(command, next_output());
  }
  HostProcess& join(const std::vector<std::string>& more = {}, const std::string& key = "box7",
                    const std::string& server_key = "/tmp/keys/server.pub",
                    const std::string& work_dir = "/tmp/work") {
    std::vector<std::string> command = {TAILRACE_BINARY, "worker",
                                        "--join",        kListen,
                                        "--key",         fmt::format("/tmp/keys/{}.key", key),
                                        "--server-key",  server_key,
                                        "--work-dir",    work_dir};
    command.insert(command.end(), more.begin(), more.end());
    return far_->spawn(command, next_output());
  }
  HostProcess& join_rollout() { return join({"--pool", "far"}); }
  HostProcess& join_reward() { return join({"--role", "reward", "--cluster", "west"}); }

  fs::path next_output() {
    outputs_.push_back(folder_ / fmt::format("output-{}", outputs_.size()));
    return outputs_.back();
  }

  std::string text_at_home(const std::string& file) const {
    const auto text = read_file(home_->outside(file));
    return text ? text.value() : std::string();
  }
  std::string log_of(const std::string& role) const {
    return text_at_home(fmt::format("/tmp/run/logs/{}.log", role));
  }
  // The port is open.
  void expect_open() {
    ASSERT_TRUE(
        comes_true([&] { return log_of("gate-0").find("may join at") != std::string::npos; }));
  }
  // Steps that are trained, by the rows of metrics.jsonl.
  int64_t steps_done() const {
    const std::string rows = text_at_home("/tmp/run/metrics.jsonl");
    int64_t count = 0;
    for (size_t at = 0; (at = rows.find("\"reward/mean\"", at)) != std::string::npos;
         at = rows.find('\n', at))
      ++count;
    return count;
  }
  Digest root_of(int version, const std::string& run = "/tmp/run") const {
    const auto manifest =
        read_manifest(home_->outside(run + fmt::format("/weights/p0-v{}.json", version)));
    return manifest ? manifest.value().root : Digest(manifest.failure().message);
  }

  fs::path folder_;
  std::vector<fs::path> outputs_;
  std::optional<Host> home_, far_;  // the run's, and that of the workers
  Recording recording_;
  std::optional<LinkEmulator> link_;
};

}  // namespace tailrace
