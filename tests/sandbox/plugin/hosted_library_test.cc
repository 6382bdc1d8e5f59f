#include "sandbox/plugin/hosted_library.h"

#include <cmath>
#include <csignal>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/sandbox/plugin/plugins.h"

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::plugin;

std::shared_ptr<HostedLibrary> host(const std::string& name) {
  return HostedLibrary::start(plugin(name), TAILRACE_BINARY);
}

std::unique_ptr<Environment> hosted(const std::shared_ptr<HostedLibrary>& library,
                                    const std::string& name,
                                    const EnvironmentSettings& settings = {}, Time timeout = 10s) {
  for (const auto& entry : library->environments())
    if (entry.name == name)
      return make_hosted_environment(
          library, name, complete_settings(entry.settings, settings, name, "env.settings"),
          timeout);
  throw std::out_of_range(name);
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
  EXPECT_EQ(library->environments()[0].settings.size(), 3u);
  EXPECT_EQ(library->rewards()[0].name, "short_way");
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
  EXPECT_THAT(play_fault(library, "hang", 300ms),
              HasSubstr("step() did not return within 0.3 s, and its process was killed"));
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

int64_t children_of(pid_t parent) {
  const auto list = read_file(fmt::format("/proc/{}/task/{}/children", parent, parent));
  return list ? std::ranges::count(list.value(), ' ') : -1;
}

TEST(HostedLibrary, LeavesNoProcessBehind) {
  const int64_t before = children_of(::getpid());
  {
    const auto library = host("faulty");
    std::vector<std::unique_ptr<Environment>> many;
    for (int i = 0; i < 20; ++i) {
      many.push_back(hosted(library, "faulty", {{"fault", i % 2 == 0 ? "fork" : "none"}}));
      EXPECT_TRUE(many.back()->reset({.seed = 1, .data = {}}));
      EXPECT_TRUE(many.back()->step("1\n"));
    }
    EXPECT_EQ(children_of(::getpid()), before + 1);
  }
  EXPECT_EQ(children_of(::getpid()), before);
}

TEST(HostedLibrary, AHostThatDiesIsReplaced) {
  const auto library = host("faulty");
  const auto environment = hosted(library, "faulty");
  ASSERT_TRUE(environment->reset({.seed = 1, .data = {}}));
  const auto list = read_file(fmt::format("/proc/{}/task/{}/children", ::getpid(), ::getpid()));
  ::kill(std::stoi(list.value().substr(list.value().rfind(' ', list.value().size() - 2) + 1)),
         SIGKILL);
  // Its sessions die with it, and the next one is there.
  std::this_thread::sleep_for(100ms);
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
  EXPECT_THROW(hosted(host("faulty"), "faulty", {{"fault", "construct"}}), UserError);
}

// What a process of a library says may be anything.
TEST(PluginMessages, AreCheckedBeforeTheyAreUsed) {
  Packer packer;
  StepResult result;
  result.observation.text = "seen";
  result.metrics = {{"a", 1}, {"b", std::nan("")}};
  pack(packer, result);
  const std::string whole = packer.bytes();
  for (size_t length = 0; length < whole.size(); ++length) {
    Unpacker cut(std::string_view(whole).substr(0, length));
    (void)unpack_step(cut);
    EXPECT_FALSE(cut.whole()) << length;
  }
  Unpacker good(whole);
  EXPECT_EQ(unpack_step(good).metrics.size(), 2u);
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
