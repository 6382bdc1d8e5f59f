// A service with a real run directory, and the same in a process of its own that can be killed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/run/metrics.h"
#include "scheduler/service/service.h"
#include "tests/scheduler/service/fake_workers.h"
#include "tests/scheduler/store/files.h"

namespace tailrace::scheduler {

inline Config run_config(int64_t steps) {
  Config config;
  config.datasets = {DatasetConfig{.prompts_per_step = 2}};
  config.group_size = 2;
  config.steps = steps;
  config.eval = {.prompts = 2, .group_size = 1, .interval_steps = 2};
  config.retries.lost = 1000;
  config.save.interval_steps = 3;
  config.deadlines.save = std::chrono::seconds(20);
  return config;
}

struct TestRun {
  ScratchFolder folder;
  ServiceOptions options;
  SteadyClock clock;
  // Not in the folder, whose path may be too long for one.
  std::filesystem::path socket = fmt::format("/tmp/tailrace-test-{}", ::getpid());

  explicit TestRun(int64_t steps) {
    options.config = run_config(steps);
    options.paths.root = folder.path();
    options.endpoint = "ipc://" + socket.string();
    options.link = fakes::fast_link();
    options.storage = {.store_bytes = 4096, .journal_bytes = 4096};
  }
  ~TestRun() { std::filesystem::remove(socket); }  // a service that was killed has left it

  std::unique_ptr<Service> make_service(Log& log) {
    return std::make_unique<Service>(options, clock, log);
  }
  std::vector<MetricsRow> rows() const {
    auto read = read_metrics(options.paths.metrics());
    EXPECT_TRUE(read) << read.failure().message;
    return read ? read.value() : std::vector<MetricsRow>{};
  }
};

template <class Done>
bool wait_until(const Done& done, std::chrono::milliseconds patience = std::chrono::seconds(30)) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// A service that does not end by itself is stopped, and the test fails.
inline ServiceResult run_to_its_end(Service& service,
                                    std::chrono::seconds patience = std::chrono::seconds(60)) {
  std::mutex mu;
  std::condition_variable changed;
  bool ended = false;
  std::thread watchdog([&] {
    std::unique_lock lock(mu);
    if (!changed.wait_for(lock, patience, [&] { return ended; })) {
      ADD_FAILURE() << "the service did not end within " << patience.count() << " s";
      service.request_stop();
    }
  });
  const ServiceResult result = service.run();
  {
    std::lock_guard lock(mu);
    ended = true;
  }
  changed.notify_all();
  watchdog.join();
  return result;
}

// Starts and kills the service in a process of its own. Forked while the test has one thread only.
class ServiceLauncher {
 public:
  explicit ServiceLauncher(TestRun& run) {
    int down[2], up[2];
    if (::pipe(down) != 0 || ::pipe(up) != 0) std::abort();
    launcher_ = ::fork();
    if (launcher_ == 0) {
      ::close(down[1]);
      ::close(up[0]);
      launch(run, down[0], up[1]);
    }
    ::close(down[0]);
    ::close(up[1]);
    commands_ = down[1];
    answers_ = up[0];
  }
  ~ServiceLauncher() {
    ::close(commands_);
    ::close(answers_);
    ::waitpid(launcher_, nullptr, 0);
  }
  void start() { tell('s'); }
  void kill() { tell('k'); }
  // The exit status of a service that ends by itself; -1 while it runs.
  int poll() { return tell('p'); }

 private:
  int tell(char command) {
    int answer = -1;
    if (::write(commands_, &command, 1) != 1 ||
        ::read(answers_, &answer, sizeof(answer)) != sizeof(answer))
      return -2;
    return answer;
  }

  [[noreturn]] static void launch(TestRun& run, int commands, int answers) {
    pid_t service = -1;
    char command = 0;
    while (::read(commands, &command, 1) == 1) {
      int answer = -1, status = 0;
      if (command == 's') {
        service = ::fork();
        if (service == 0) serve(run);
      } else if (command == 'k' && service > 0) {
        ::kill(service, SIGKILL);
        ::waitpid(service, &status, 0);
        service = -1;
      } else if (command == 'p' && service > 0 && ::waitpid(service, &status, WNOHANG) == service) {
        answer = WIFEXITED(status) ? WEXITSTATUS(status) : 99;
        service = -1;
      }
      if (::write(answers, &answer, sizeof(answer)) != sizeof(answer)) break;
    }
    if (service > 0) ::kill(service, SIGKILL);
    ::_exit(0);
  }

  [[noreturn]] static void serve(TestRun& run) {
    int status = 1;
    try {
      Log log("scheduler", run.folder.path() / "log");
      const ServiceResult result = run.make_service(log)->run();
      status = result.end == ServiceResult::End::kDone ? 0 : 3;
    } catch (const std::exception& error) {
      fmt::print(stderr, "service: {}\n", error.what());
      status = 2;
    }
    ::_exit(status);
  }

  pid_t launcher_ = -1;
  int commands_ = -1, answers_ = -1;
};

}  // namespace tailrace::scheduler
