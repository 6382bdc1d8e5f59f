// A launch of the real binary, over processes, in folders of its own.
//
// The run is the smallest that has all parts; it takes a few seconds. To hit the middle of it, the
// trainer is stopped (SIGSTOP) while something is done to the others: the run cannot end meanwhile.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "cli/process/child_process.h"
#include "cli/process/supervisor.h"
#include "core/base/file.h"
#include "core/run/metrics.h"
#include "core/run/run_directory.h"
#include "core/weights/manifest.h"
#include "tests/cli/run_binary.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {

namespace fs = std::filesystem;

inline constexpr auto kPatience = std::chrono::seconds(100);
inline constexpr int kSteps = 16;

inline constexpr std::string_view kConfig = R"(
run: {name: tiny, seed: 3, steps: 16}
model:
  create: {hidden_size: 32, intermediate_size: 64, layers: 1, heads: 2, kv_heads: 1, max_positions: 128}
env:
  name: frozen_grid
  settings: {max_turns: 8}
rollout:
  prompts_per_step: 4
  group_size: 4
  max_turns: 8
  max_context_tokens: 128
  workers: 2
sft:
  demonstrations: 300
  epochs: 3
  batch_tokens: 512
  optim: {lr: 0.008}
optim: {lr: 0.001}
train: {microbatch_tokens: 1024, threads: 1}
eval: {prompts: 8, interval_steps: 8}
checkpoint: {interval_steps: 3}
)";

template <class Done>
bool wait_until(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// Processes whose command line holds all of `parts`.
inline std::vector<pid_t> processes_with(const std::vector<std::string>& parts) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    auto read = read_file(entry.path() / "cmdline");
    if (!read) continue;  // it ended meanwhile
    std::string line = std::move(read).value();
    std::replace(line.begin(), line.end(), '\0', ' ');
    if (std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
          return line.find(part) != std::string::npos;
        })) {
      found.push_back(static_cast<pid_t>(std::stol(name)));
    }
  }
  return found;
}

class LaunchTest : public testing::Test {
 protected:
  LaunchTest() { std::ofstream(folder_ / "tiny.yaml") << kConfig; }
  ~LaunchTest() override {
    if (HasFailure()) {
      for (const auto& run : {"run", "other"}) show_logs(folder_ / run);
    }
    launched_.reset();
  }

  static void show_logs(const fs::path& run) {
    std::error_code ignored;
    for (const auto& log : fs::directory_iterator(run / "logs", ignored)) {
      std::string text;
      for (const auto& line : last_lines(log.path(), 12)) text += "  " + line + "\n";
      fmt::print("{}:\n{}", log.path().filename().string(), text);
    }
  }

  std::vector<std::string> command(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {TAILRACE_BINARY, "launch"});
    return arguments;
  }
  void start(const std::vector<std::string>& whole_command) {
    output_ = folder_ / fmt::format("output-{}", ++num_started_);
    auto child = ChildProcess::spawn(whole_command, output_);
    ASSERT_TRUE(child) << child.failure().message;
    launched_.emplace(std::move(child).value());
  }
  void start_run(const std::string& run = "run", const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {(folder_ / "tiny.yaml").string(), "--run-dir",
                                          (folder_ / run).string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    start(command(arguments));
  }
  void continue_run() { start(command({"--run-dir", (folder_ / "run").string()})); }

  // Of the launch that was started last. It hangs when it says nothing new for kPatience: how long
  // all of a run takes is a matter of the machine, and of who else works on it.
  ExitStatus finish() {
    std::optional<ExitStatus> status;
    const auto has_ended = [&] { return (status = launched_->try_reap()).has_value(); };
    for (std::string said; !wait_until(has_ended);) {
      if (output() == said) {
        ADD_FAILURE() << "it hangs:\n" << said;
        launched_->send_signal(SIGKILL);
        return {-1, SIGKILL};
      }
      said = output();
    }
    launched_.reset();
    return *status;
  }
  std::string output() const {
    auto text = read_file(output_);
    return text ? text.value() : "";
  }
  void expect_done() {
    const ExitStatus status = finish();
    EXPECT_TRUE(status.ok()) << describe(status) << "\n" << output();
  }
  void expect_refused(std::string_view words) {
    EXPECT_EQ(finish().code, 2) << output();
    EXPECT_NE(output().find(words), std::string::npos) << output();
  }

  RunPaths paths(const std::string& run = "run") const { return {folder_ / run}; }
  // The processes of this run that play a role.
  std::vector<pid_t> workers(const std::string& role, int index = 0) const {
    return processes_with(
        {"worker", "--role " + role, fmt::format("--index {} ", index), paths().root.string()});
  }
  bool has_step(int64_t step) const {
    const auto rows = read_metrics(paths().metrics());
    return rows &&
           std::any_of(rows.value().begin(), rows.value().end(), [step](const MetricsRow& row) {
             return row.step >= step && row.find("reward/mean") != nullptr;
           });
  }
  // Of all rows of the run that have this number.
  double sum_of_rows(const std::string& name, const std::string& run = "run") const {
    const auto rows = read_metrics(paths(run).metrics());
    EXPECT_TRUE(rows);
    double sum = 0;
    if (!rows) return sum;
    for (const MetricsRow& row : rows.value())
      if (const double* value = row.find(name)) sum += *value;
    return sum;
  }
  // Leaves the run in its middle, some steps done and the trainer stopped. The trainer runs in
  // short bursts until then: however slow this test is, it does not miss the moment.
  pid_t stop_in_the_middle() {
    std::vector<pid_t> trainers;
    const bool reached = wait_until([&] {
      if (trainers.empty()) trainers = workers("trainer");
      if (trainers.empty()) return false;
      ::kill(trainers[0], SIGSTOP);
      if (has_step(2)) return true;
      ::kill(trainers[0], SIGCONT);
      return false;
    });
    EXPECT_TRUE(reached) << output();
    EXPECT_FALSE(has_step(kSteps)) << "too late";
    return reached ? trainers[0] : -1;
  }
  // Work is leased to a worker that is stopped, by the line of `status` that begins so. Looked at
  // twice: what it had finished before it was stopped may be on its way.
  bool holds_work(const std::string& line) const {
    for (int i = 0; i < 2; ++i) {
      const std::string status = run_binary("status " + paths().root.string()).out;
      if (status.find(line) == std::string::npos || status.find(line + "0 of") != std::string::npos)
        return false;
      if (i == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    return true;
  }
  // Root digest of the last version: the proof that two runs are one.
  std::string final_digest(const std::string& run = "run", int steps = kSteps) const {
    auto manifest = read_manifest(paths(run).weights() / fmt::format("p0-v{}.json", steps));
    if (manifest) return manifest.value().root;
    ADD_FAILURE() << manifest.failure().message;
    return "";
  }
  // Each step is counted once, whatever happened.
  void expect_each_step_once(const std::string& run = "run", int num_steps = kSteps) const {
    auto rows = read_metrics(paths(run).metrics());
    ASSERT_TRUE(rows) << rows.failure().message;
    std::multiset<int64_t> steps;
    for (const auto& row : rows.value()) {
      if (row.find("reward/mean") != nullptr) steps.insert(row.step);
    }
    std::multiset<int64_t> expected;
    for (int64_t step = 1; step <= num_steps; ++step) expected.insert(step);
    EXPECT_EQ(steps, expected);
  }
  // What an undisturbed run of the same config gives; computed once.
  const std::string& undisturbed_digest() {
    static std::string digest;
    if (digest.empty()) {
      start_run("other");
      expect_done();
      digest = final_digest("other");
    }
    return digest;
  }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_.path(), output_;
  std::optional<ChildProcess> launched_;
  int num_started_ = 0;
};

}  // namespace tailrace
