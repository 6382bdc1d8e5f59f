#include "cli/view/perfetto.h"

#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tailrace {
namespace {

using enum TimelineWhat;
using std::chrono::microseconds;

TimelineRow lease(int64_t from, int64_t at, int64_t prompt) {
  return {.what = kGenerate,
          .at = microseconds(at),
          .from = microseconds(from),
          .worker = "rollout-0",
          .end = "finished",
          .sample = BodyId{Lane::kTrain, {{.prompt = prompt}, 1}},
          .busy = microseconds(at - from),
          .tokens = 5,
          .min_version = 0,
          .max_version = 0};
}

// What the viewer asks of a trace: names of processes and threads, and complete events that do not
// overlap in a thread.
TEST(PerfettoTrace, HoldsEachSpanInAThreadOfItsWorker) {
  std::vector<TimelineRow> rows = {
      {.what = kUp, .worker = "rollout-0", .slots = 2},
      {.what = kUp, .worker = "trainer-0", .role = Role::kTrainer, .slots = 1}};
  rows.push_back(lease(10, 20, 1));
  rows.push_back(lease(10, 30, 2));
  rows.push_back(lease(20, 40, 3));
  rows.push_back({.what = kInstall,
                  .at = microseconds(35),
                  .from = microseconds(25),
                  .worker = "rollout-0",
                  .end = "installed",
                  .number = 1});
  rows.push_back({.what = kFetch,
                  .at = microseconds(35),
                  .from = microseconds(26),
                  .worker = "rollout-0",
                  .number = 1,
                  .until = microseconds(29)});
  rows.push_back({.what = kTrain,
                  .at = microseconds(60),
                  .from = microseconds(40),
                  .worker = "trainer-0",
                  .end = "published",
                  .number = 1});
  rows.push_back({.what = kStep, .at = microseconds(60), .from = microseconds(60), .number = 1});
  rows.push_back({.what = kDown,
                  .at = microseconds(70),
                  .from = microseconds(70),
                  .worker = "rollout-0",
                  .end = "gone"});
  const auto trace = nlohmann::json::parse(make_perfetto_trace("r\"un", rows));
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> threads;
  std::map<int, std::string> processes;
  std::set<std::pair<int, int>> named;
  int instants = 0;
  for (const auto& event : trace.at("traceEvents")) {
    const auto phase = event.at("ph").get<std::string>();
    const std::pair at(event.at("pid").get<int>(), event.at("tid").get<int>());
    if (phase == "M" && event.at("name") == "process_name")
      processes[at.first] = event.at("args").at("name").get<std::string>();
    if (phase == "M" && event.at("name") == "thread_name") named.insert(at);
    instants += phase == "i";
    if (phase != "X") continue;
    threads[at].emplace_back(event.at("ts").get<double>(), event.at("dur").get<double>());
    EXPECT_FALSE(event.at("name").get<std::string>().empty());
  }
  EXPECT_EQ(processes,
            (std::map<int, std::string>{{0, "run r\"un"}, {1, "rollout-0"}, {2, "trainer-0"}}));
  EXPECT_EQ(instants, 1);
  size_t spans = 0;
  for (auto& [at, events] : threads) {
    EXPECT_TRUE(named.contains(at)) << at.first << " " << at.second;
    std::ranges::sort(events);
    for (size_t i = 1; i < events.size(); ++i)
      EXPECT_LE(events[i - 1].first + events[i - 1].second, events[i].first + 1e-9);
    spans += events.size();
  }
  EXPECT_EQ(spans, 7u);  // three leases, an install and its part, the trainer's step, the step
  EXPECT_EQ(threads.at({1, 1}).size(), 2u) << "the third lease has the first slot again";
  EXPECT_EQ(threads.at({1, 1})[0], std::pair(10.0, 10.0));
  EXPECT_EQ(threads.at({2, 1})[0], std::pair(40.0, 20.0));
}

}  // namespace
}  // namespace tailrace
