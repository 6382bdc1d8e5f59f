#include "sandbox/plugin/hosted_library.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "sandbox/plugin/hosted_environment.h"
#include "sandbox/plugin/plugin_environment.h"
#include "tests/sandbox/plugin/plugins.h"

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::plugin;

std::shared_ptr<HostedLibrary> host(const std::string& name) {
  return HostedLibrary::start(plugin(name), TAILRACE_BINARY);
}

EnvironmentSettings whole(const HostedLibrary& library, const std::string& name,
                          const EnvironmentSettings& settings) {
  for (const Declaration& entry : library.facts().environments)
    if (entry.name == name)
      return complete_settings(entry.settings, settings, name, "env.settings");
  throw std::out_of_range(name);
}

std::unique_ptr<Environment> hosted(const std::shared_ptr<HostedLibrary>& library,
                                    const std::string& name,
                                    const EnvironmentSettings& settings = {}, Time timeout = 10s) {
  const EnvironmentSettings all = whole(*library, name, settings);
  return make_hosted_environment(library, ask_info(*library, name, all, 30s), all, timeout);
}

// All that a player hears, to the last bit; the failure that ended it.
std::string transcript(Environment& environment, uint64_t seed) {
  Rng rng(seed);
  std::string heard;
  auto first = environment.reset({.seed = seed, .data = {}});
  if (!first) return "failed: " + first.failure().message;
  heard += first.value().text + "\n";
  for (int turn = 0; turn < 40; ++turn) {
    const std::string action = turn % 3 == 0 ? environment.demonstrate(rng).value_or("none")
                                             : environment.sample_action(rng);
    auto step = environment.step(action);
    if (!step) return heard + "failed: " + step.failure().message;
    const StepResult& result = step.value();
    heard += fmt::format("{} -> {} {} {} {} {} {} {}\n", action, result.observation.text,
                         result.reward, result.terminated, result.truncated, result.pending,
                         result.verifier, result.evidence);
    for (const auto& [name, value] : result.metrics) heard += fmt::format("{}={} ", name, value);
    if (result.terminated || result.truncated) break;
  }
  environment.close();
  return heard;
}

TEST(HostedLibrary, PlaysTheSameEpisodes) {
  const auto library = host("maze");
  EXPECT_EQ(library->facts().environments[0].settings.size(), 3u);
  EXPECT_EQ(library->facts().rewards[0].name, "short_way");
  for (const char* judge : {"itself", "short_way"}) {
    const EnvironmentSettings settings = {{"size", "6"}, {"scored_by", judge}};
    const auto there = hosted(library, "maze", settings);
    const auto here = testing::make("maze", "maze", settings);
    EXPECT_EQ(there->info().vocabulary, here->info().vocabulary);
    EXPECT_EQ(there->info().max_turns, here->info().max_turns);
    EXPECT_EQ(there->info().verifier, here->info().verifier);
    for (uint64_t seed = 0; seed < 20; ++seed)
      EXPECT_EQ(transcript(*there, seed), transcript(*here, seed)) << seed;
  }
}

std::string play_fault(const std::shared_ptr<HostedLibrary>& library, const char* fault,
                       Time timeout = 10s) {
  return transcript(*hosted(library, "faulty", {{"fault", fault}}, timeout), 1);
}

TEST(HostedLibrary, WhatItDoesItDoesToItsOwnProcess) {
  const auto library = host("faulty");
  const std::string good = play_fault(library, "none");
  EXPECT_THAT(play_fault(library, "crash"), HasSubstr("signal 11 (Segmentation fault) in step()"));
  EXPECT_THAT(play_fault(library, "exit"), HasSubstr("has ended with status 7 in step()"));
  EXPECT_THAT(play_fault(library, "throw"), HasSubstr("failed: a bad day"));
  EXPECT_THAT(play_fault(library, "leak"), HasSubstr("failed: "));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(play_fault(library, "hang", 1500ms),
              HasSubstr("step() did not return within 1.5 s, and its process was killed"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  EXPECT_EQ(play_fault(library, "stdout"), good);
  EXPECT_EQ(play_fault(library, "signals"), good);
  EXPECT_EQ(play_fault(library, "fork"), good);
  EXPECT_EQ(transcript(*hosted(library, "big"), 1).find("failed: the observation has") !=
                std::string::npos,
            true);
  // Whoever came before, the next episode is as ever.
  EXPECT_EQ(play_fault(library, "none"), good);
}

// Of this process, whichever thread has started them.
std::vector<pid_t> children() {
  std::vector<pid_t> all;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream list(thread.path() / "children");
    for (pid_t pid = 0; list >> pid;) all.push_back(pid);
  }
  return all;
}

pid_t only_child() {
  const std::vector<pid_t> all = children();
  EXPECT_EQ(all.size(), 1u);
  return all.empty() ? 0 : all.front();
}

// The thread that starts it leaves all signals to others.
TEST(HostedLibrary, HasTheSignalsOfTheThreadThatAskedForIt) {
  sigset_t one, before;
  ::sigemptyset(&one);
  ::sigaddset(&one, SIGUSR1);
  ::pthread_sigmask(SIG_SETMASK, &one, &before);
  const auto library = host("maze");
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const auto status = read_file(fmt::format("/proc/{}/status", only_child()));
  ASSERT_TRUE(status);
  EXPECT_THAT(status.value(), HasSubstr(fmt::format("SigBlk:\t{:016x}\n", 1 << (SIGUSR1 - 1))));
}

TEST(HostedLibrary, LeavesNoProcessBehind) {
  const size_t before = children().size();
  {
    const auto library = host("faulty");
    std::vector<std::unique_ptr<Environment>> many;
    for (int i = 0; i < 20; ++i) {
      many.push_back(hosted(library, "faulty", {{"fault", i % 2 == 0 ? "fork" : "none"}}));
      EXPECT_TRUE(many.back()->reset({.seed = 1, .data = {}}));
      EXPECT_TRUE(many.back()->step("1\n"));
    }
    EXPECT_EQ(children().size(), before + 1);
  }
  EXPECT_EQ(children().size(), before);
}

// As an engine plays them: begun from one thread, answered from another.
struct Answers {
  std::mutex mutex;
  std::condition_variable came;
  std::vector<Result<StepResult>> all;

  RemoteEnvironment::Done taker() {
    return [this](Result<StepResult> result) {
      const std::unique_lock lock(mutex);
      all.push_back(std::move(result));
      came.notify_one();
    };
  }
  std::vector<Result<StepResult>> await(size_t count) {
    std::unique_lock lock(mutex);
    came.wait_for(lock, 60s, [&] { return all.size() >= count; });
    return std::exchange(all, {});
  }
};

const EnvironmentCall kReset{.kind = EnvironmentCall::Kind::kReset};
EnvironmentCall step_call() { return {.kind = EnvironmentCall::Kind::kStep, .action = "1\n"}; }

TEST(RemoteEnvironment, ManyPlayAtOnceAndHoldNoThread) {
  constexpr size_t kMany = 1000;
  const auto library = host("faulty");
  const size_t before = children().size();
  const EnvironmentSettings settings = whole(*library, "faulty", {});
  Answers answers;
  std::vector<std::unique_ptr<RemoteEnvironment>> many;
  for (size_t i = 0; i < kMany; ++i) {
    many.push_back(make_remote_environment(library, "faulty", settings, 60s));
    many.back()->begin(kReset, answers.taker());
  }
  for (const auto& first : answers.await(kMany)) ASSERT_TRUE(first) << first.failure().message;
  for (const auto& one : many) one->begin(step_call(), answers.taker());
  const auto steps = answers.await(kMany);
  ASSERT_EQ(steps.size(), kMany);
  for (const auto& step : steps) {
    ASSERT_TRUE(step) << step.failure().message;
    EXPECT_EQ(step.value().observation.text, steps[0].value().observation.text);
  }
  EXPECT_EQ(children().size(), before) << "they are children of their host";
}

TEST(RemoteEnvironment, FailsByItselfAndAlone) {
  const auto library = host("faulty");
  Answers bad, good;
  const auto remote = [&](const char* fault, Time timeout) {
    return make_remote_environment(library, "faulty", whole(*library, "faulty", {{"fault", fault}}),
                                   timeout);
  };
  const auto hangs = remote("hang", 1500ms), crashes = remote("crash", 30s),
             plays = remote("none", 30s);
  for (const auto* one : {&hangs, &crashes}) (*one)->begin(kReset, bad.taker());
  for (const auto& first : bad.await(2)) EXPECT_TRUE(first);
  plays->begin(kReset, good.taker());
  EXPECT_TRUE(good.await(1).at(0));
  const auto failure_of = [&](RemoteEnvironment& one) -> std::string {
    for (int turn = 0; turn < 40; ++turn) {
      one.begin(step_call(), bad.taker());
      if (const auto step = bad.await(1).at(0); !step) return step.failure().message;
    }
    return "";
  };
  EXPECT_THAT(failure_of(*hangs), HasSubstr("did not return within 1.5 s"));
  EXPECT_THAT(failure_of(*crashes), HasSubstr("signal 11"));
  EXPECT_THAT(failure_of(*crashes), HasSubstr("has ended before step()"));
  plays->begin(step_call(), good.taker());
  EXPECT_TRUE(good.await(1).at(0));
}

// Whoever ends an episode in the middle of a call waits for nothing, and the call is answered.
TEST(RemoteEnvironment, IsEndedInTheMiddleOfACall) {
  const auto library = host("faulty");
  Answers answers;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    auto remote = make_remote_environment(library, "faulty",
                                          whole(*library, "faulty", {{"fault", "hang"}}), 600s);
    remote->begin(kReset, answers.taker());
    if (i % 2 == 0) {
      EXPECT_TRUE(answers.await(1).at(0));
      for (int turn = 0; turn < 2; ++turn) {
        remote->begin(step_call(), answers.taker());
        EXPECT_TRUE(answers.await(1).at(0));
      }
      remote->begin(step_call(), answers.taker());  // the third one hangs
    }
    remote.reset();
    const auto ended = answers.await(1);
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_TRUE(i % 2 != 0 || !ended[0]) << "it was in its call";
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
}

// While it is loaded a library may do anything to the socket; the launch says so and goes on.
TEST(HostedLibrary, OneThatClosesItsSocketIsNotAwaited) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    HostedLibrary::start(plugin("closes_files"), TAILRACE_BINARY);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("closed or spoiled its socket"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 25s);
}

// A host that dies with calls in flight, and sessions that it has not heard of: each is answered.
// A reward is first asked by a thread that may be given up later.
TEST(HostedLibrary, OutlivesTheThreadThatHasStartedIt) {
  std::shared_ptr<HostedLibrary> library;
  std::thread([&] { library = host("maze"); }).join();
  const auto before = only_child();
  const auto environment = hosted(library, "maze");
  std::thread([&] { EXPECT_TRUE(environment->reset({.seed = 1, .data = {}})); }).join();
  EXPECT_TRUE(environment->step("right\n"));
  EXPECT_EQ(only_child(), before);
}

TEST(RemoteEnvironment, EachCallIsAnsweredWhenTheHostDies) {
  constexpr size_t kMany = 400;
  const auto library = host("faulty");
  const EnvironmentSettings settings = whole(*library, "faulty", {});
  const pid_t pid = only_child();
  ::kill(pid, SIGSTOP);
  Answers answers;
  std::vector<std::unique_ptr<RemoteEnvironment>> many;
  for (size_t i = 0; i < kMany; ++i) {
    many.push_back(make_remote_environment(library, "faulty", settings, 2s));
    many.back()->begin(kReset, answers.taker());
  }
  std::this_thread::sleep_for(3s);  // all of them are late
  ::kill(pid, SIGKILL);
  EXPECT_EQ(answers.await(kMany).size(), kMany);
  // The next host serves those that come.
  auto next = make_remote_environment(library, "faulty", settings, 30s);
  next->begin(kReset, answers.taker());
  EXPECT_TRUE(answers.await(1).at(0));
}

// What has left its process group as well.
TEST(HostedLibrary, EndsWhatASessionHasForked) {
  const auto library = host("faulty");
  const auto environment = hosted(library, "faulty", {{"fault", "daemon"}});
  ASSERT_TRUE(environment->reset({.seed = 1, .data = {}}));
  for (int turn = 0; turn < 3; ++turn) ASSERT_TRUE(environment->step("1\n"));
  const auto sleepers = [] {
    int64_t count = 0;
    for (const auto& process : std::filesystem::directory_iterator("/proc")) {
      const auto name = read_file(process.path() / "comm");
      count += name && name.value() == "tr-daemon\n";
    }
    return count;
  };
  for (int i = 0; i < 500 && sleepers() == 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_GE(sleepers(), 1);
  environment->close();
  for (int i = 0; i < 500 && sleepers() > 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(sleepers(), 0);
}

TEST(HostedLibrary, AHostThatDiesIsReplaced) {
  const auto library = host("faulty");
  const auto environment = hosted(library, "faulty");
  ASSERT_TRUE(environment->reset({.seed = 1, .data = {}}));
  const pid_t pid = only_child();
  ::kill(pid, SIGKILL);
  // It is awaited when its end is known. Its sessions die with it, and the next one is there.
  for (int i = 0; i < 2000 && std::ranges::count(children(), pid) > 0; ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_FALSE(environment->step("1\n"));
  EXPECT_TRUE(environment->reset({.seed = 1, .data = {}}));
  EXPECT_TRUE(environment->step("1\n"));
}

TEST(HostedLibrary, WhatCannotBeLoadedIsRefusedAsHere) {
  const auto refusal = [](const char* name) -> std::string {
    try {
      host(name);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal("gone"), HasSubstr("not found"));
  EXPECT_THAT(refusal("without_entry"), HasSubstr("no function tailrace_library_1"));
  EXPECT_THAT(refusal("other_abi"), HasSubstr("built with ABI 2, and this Tailrace"));
  EXPECT_THAT(refusal("refuses"), HasSubstr("refuses to work here"));
}

TEST(HostedLibrary, ASettingThatItsConstructorRefusesIsNamedByItsKey) {
  const auto refusal = [](auto&& make) {
    try {
      make();
    } catch (const UserError& error) {
      return error.key() + ": " + error.what();
    }
    return std::string("made");
  };
  const EnvironmentSettings settings = {{"fault", "construct"}};
  const std::string expected = "env.settings.fault: environment faulty: fault is construct";
  EXPECT_EQ(refusal([&] { hosted(host("faulty"), "faulty", settings); }), expected);
  EXPECT_EQ(refusal([&] { testing::make("faulty", "faulty", settings); }), expected);
}

// What a process of a library says may be anything.
TEST(PluginMessages, AreCheckedBeforeTheyAreUsed) {
  Packer packer;
  StepResult result;
  result.observation = {.text = "seen", .state = "3 4"};
  result.metrics = {{"a", 1}, {"b", std::nan("")}};
  pack(packer, result);
  const std::string whole = packer.bytes();
  for (size_t length = 0; length < whole.size(); ++length) {
    Unpacker cut(std::string_view(whole).substr(0, length));
    (void)unpack_step(cut);
    EXPECT_FALSE(cut.whole()) << length;
  }
  Unpacker good(whole);
  const StepResult same = unpack_step(good);
  EXPECT_EQ(same.observation.state, "3 4");
  EXPECT_EQ(same.metrics.size(), 2u);
  EXPECT_TRUE(good.whole());
  const std::string more = whole + "x";
  Unpacker longer(more);
  (void)unpack_step(longer);
  EXPECT_FALSE(longer.whole());
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    std::string other = whole;
    for (int64_t k = 0; k <= rng.below(4); ++k)
      other[static_cast<size_t>(rng.below(static_cast<int64_t>(other.size())))] =
          static_cast<char>(rng.below(256));
    Unpacker read(other);
    (void)unpack_step(read);  // no crash, and no more memory than the message has
  }
}

}  // namespace
}  // namespace tailrace::sandbox
