// A step of an environment of a library: called in this process, through a process of its own, and
// many in flight at once. The floor stands beside it, measured in the same run: a message of the
// same size to a forked process and back.
//
// Checked first: the episodes in a process of its own are those of this process.
#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/report/program.h"
#include "core/base/error.h"
#include "rollout/episode/environment_calls.h"
#include "sandbox/plugin/hosted_environment.h"
#include "sandbox/plugin/plugin_environment.h"
#include "sandbox/plugin/used_library.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using sandbox::EnvironmentCall;

constexpr Time kDeadline = 30s;
constexpr int64_t kBatch = 32;

struct Options {
  std::string library;
  std::string environment;
  int steps = 5000;
  int sessions = 1000;
  int rounds = 20;
};

fs::path build_folder() { return fs::read_symlink("/proc/self/exe").parent_path().parent_path(); }

// The environment that is measured, here and apart.
struct Measured {
  std::shared_ptr<const sandbox::PluginLibrary> here;
  std::shared_ptr<const sandbox::HostedLibrary> apart;
  std::string name;
  sandbox::EnvironmentSettings settings;
  sandbox::EnvironmentInfo info;

  explicit Measured(const Options& options) {
    const fs::path file =
        options.library.empty() ? build_folder() / "plugins/libmaze.so" : fs::path(options.library);
    if (!fs::exists(file))
      throw UserError("{}: not found.\n       Give a library with --library FILE.so.",
                      file.string());
    here = sandbox::PluginLibrary::load(file);
    apart = sandbox::HostedLibrary::start(file, build_folder() / "tailrace");
    if (here->environments().empty()) throw UserError("{} has no environment", file.string());
    name = options.environment.empty() ? here->environments().front().name : options.environment;
    settings = complete_settings(entry().settings, {}, "environment " + name, "settings");
    info = sandbox::ask_info(*apart, name, settings, kDeadline);
    if (info.needs_dataset)
      throw UserError("{} needs a dataset; this bench has none. Name another with --env.", name);
  }

  const sandbox::PluginLibrary::EnvironmentEntry& entry() const {
    for (const auto& one : here->environments())
      if (one.name == name) return one;
    throw UserError("there is no environment {}", name);
  }
  std::unique_ptr<sandbox::Environment> open_here() const {
    return sandbox::make_plugin_environment(here, entry(), settings);
  }
  std::unique_ptr<sandbox::Environment> open_apart() const {
    return sandbox::make_hosted_environment(apart, info, settings, kDeadline);
  }
};

// Plays with legal actions, an episode after the other; what was heard, and the seconds of each
// step.
struct Playthrough {
  std::string heard;
  std::vector<double> step_us;
};
Playthrough play(sandbox::Environment& environment, int64_t steps) {
  Playthrough played;
  Rng rng(1);
  bool running = false;
  for (uint64_t seed = 0; std::ssize(played.step_us) < steps;) {
    if (!running) {
      const auto first = environment.reset({.seed = seed++, .data = {}});
      require(first.ok(), "reset() failed");
      played.heard += first.value().text;
    }
    const std::string action = environment.sample_action(rng);
    const Stopwatch watch;
    const auto step = environment.step(action);
    played.step_us.push_back(1e6 * watch.seconds());
    require(step.ok(), "step() failed");
    played.heard += step.value().observation.text;
    running = !step.value().terminated && !step.value().truncated;
  }
  environment.close();
  return played;
}

// Of `bytes` to a forked process and back.
std::vector<double> echo_us(int64_t rounds, size_t bytes) {
  int files[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, files) == 0, "no sockets");
  std::string message(bytes, 'x');
  const pid_t child = ::fork();
  if (child == 0) {
    while (::recv(files[1], message.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes))
      if (::send(files[1], message.data(), bytes, 0) < 0) break;
    ::_exit(0);
  }
  std::vector<double> times;
  for (int64_t i = 0; i < rounds; ++i) {
    const Stopwatch watch;
    const bool sent = ::send(files[0], message.data(), bytes, 0) == static_cast<ssize_t>(bytes);
    require(
        sent && ::recv(files[0], message.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes),
        "the echo does not answer");
    times.push_back(1e6 * watch.seconds());
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(files[0]);
  ::close(files[1]);
  return times;
}

// Begun from this thread, answered from another.
class InFlight {
 public:
  InFlight(const Measured& measured, int64_t sessions) : measured_(measured) {
    for (int64_t i = 0; i < sessions; ++i)
      remote_.push_back(sandbox::make_remote_environment(measured.apart, measured.name,
                                                         measured.settings, kDeadline));
  }

  // Of each session's call, us.
  double all(const EnvironmentCall& call) {
    const Stopwatch watch;
    left_ = std::ssize(remote_);
    for (const auto& one : remote_)
      one->begin(call, [this](const Result<sandbox::StepResult>& result) {
        const std::lock_guard lock(mutex_);
        failed_ += !result.ok();
        if (--left_ == 0) done_.notify_one();
      });
    std::unique_lock lock(mutex_);
    const bool came = done_.wait_for(lock, 60s, [&] { return left_ == 0; });
    require(came && failed_ == 0, "{} calls are open and {} failed", left_, failed_);
    return 1e6 * watch.seconds() / static_cast<double>(remote_.size());
  }

 private:
  const Measured& measured_;
  std::mutex mutex_;
  std::condition_variable done_;
  int64_t left_ = 0, failed_ = 0;
  std::vector<std::unique_ptr<sandbox::RemoteEnvironment>> remote_;
};

class LocalSource final : public sandbox::EnvironmentSource {
 public:
  explicit LocalSource(const Measured& measured) : measured_(measured) {}
  const sandbox::EnvironmentInfo& info() const override { return measured_.info; }
  std::unique_ptr<sandbox::Environment> open() const override { return measured_.open_here(); }

 private:
  const Measured& measured_;
};

// Batches of steps through the executor, us a call.
std::vector<double> executor_us(const Measured& measured, const std::string& action,
                                int64_t rounds) {
  const SteadyClock clock;
  EnvironmentCalls calls(1, kDeadline, clock);
  const auto source = std::make_shared<LocalSource>(measured);
  const auto all = [&](const EnvironmentCall& call) {
    std::vector<EnvironmentCalls::Call> batch;
    for (int64_t id = 0; id < kBatch; ++id)
      batch.push_back({.id = id, .call = call, .source = source, .encode = nullptr});
    const Stopwatch watch;
    calls.hand_over(std::move(batch));
    int64_t answered = 0;
    while (answered < kBatch) answered += std::ssize(calls.collect(1s, /*all=*/true));
    return 1e6 * watch.seconds() / static_cast<double>(kBatch);
  };
  std::vector<double> times;
  for (int64_t round = 0; round < rounds; ++round) {
    all({.kind = EnvironmentCall::Kind::kReset, .task = {.seed = 1, .data = {}}});
    times.push_back(all({.kind = EnvironmentCall::Kind::kStep, .action = action}));
    for (int64_t id = 0; id < kBatch; ++id) calls.close(id);
  }
  return times;
}

void measure(const Options& options, const Program& program) {
  const Measured measured(options);
  const auto here = measured.open_here(), apart = measured.open_apart();
  require(play(*here, 500).heard == play(*apart, 500).heard,
          "the episodes in a process of its own are others");

  Report report = program.report({{"library", measured.here->file().filename().string()},
                                  {"environment", measured.name},
                                  {"deadline_s", static_cast<int64_t>(30)}});
  const std::string& name = measured.name;
  const std::vector<double> local = play(*here, options.steps).step_us;
  report.add(name, "step in this process", "us", local);
  report.add("socket", "200 bytes to a process and back", "us", echo_us(options.steps, 200));
  report.add(name, "step in a process of its own", "us", play(*apart, options.steps).step_us);

  Rng rng(1);
  const auto probe = measured.open_here();
  require(probe->reset({.seed = 1, .data = {}}).ok(), "reset() failed");
  const std::string action = probe->sample_action(rng);
  report.add(name, "call in batches of 32 by one thread of the executor", "us",
             executor_us(measured, action, 50 * options.rounds));
  for (const int64_t sessions : {int64_t{1}, kBatch, static_cast<int64_t>(options.sessions)}) {
    std::vector<double> open, step;
    for (int round = 0; round < options.rounds; ++round) {
      InFlight all(measured, sessions);
      open.push_back(
          all.all({.kind = EnvironmentCall::Kind::kReset, .task = {.seed = 1, .data = {}}}));
      step.push_back(all.all({.kind = EnvironmentCall::Kind::kStep, .action = action}));
    }
    const std::string group = fmt::format("{} processes at once", sessions);
    report.add(group, "process and reset, of each", "us", open);
    report.add(group, "step, of each", "us", step);
  }
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("env", TAILRACE_MEASURES, "env --library ./libmaze.so");
  program.fix_threads(0);
  program.flags().option(
      "--library", options.library,
      {.help = "whose environment; without one the maze of examples/", .value = "FILE.so"});
  program.flags().option("--env", options.environment,
                         {.help = "which of its environments", .value = "NAME"});
  program.flags().option("--steps", options.steps,
                         {.help = "measured steps", .min = 100, .max = 10000000});
  program.flags().option("--sessions", options.sessions,
                         {.help = "processes at once", .min = 1, .max = 10000});
  program.flags().option("--rounds", options.rounds, {.help = "of each", .min = 1, .max = 10000});
  return program.run(argc, argv, [&] { measure(options, program); });
}
