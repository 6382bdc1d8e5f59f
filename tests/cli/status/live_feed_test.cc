#include "cli/status/live_feed.h"

#include <chrono>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "tests/cli/status/run_of_steps.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

// The data of the event of this name; null: there is none.
json data_of(const std::vector<LiveEvent>& events, std::string_view name) {
  json found;
  for (const LiveEvent& event : events) {
    EXPECT_EQ(event.data.find('\n'), std::string::npos) << "a line of its own ends an event";
    if (event.name == name) found = json::parse(event.data);
  }
  return found;
}

std::vector<int64_t> steps_of(const json& rows) {
  std::vector<int64_t> steps;
  for (const json& row : rows.at("rows")) steps.push_back(row.at("step"));
  return steps;
}

TEST(LiveFeed, TellsEachRowOnceAndAPageThatBeginsAllOfThem) {
  const RunOfSteps run;
  run.add_row(1, {{"reward/mean", 0.1}});
  LiveFeed feed(run.name());
  EXPECT_EQ(steps_of(data_of(feed.poll(Time(0), true), "rows")), std::vector<int64_t>{1});
  EXPECT_TRUE(data_of(feed.poll(Time(1ms), true), "rows").is_null());
  run.add_row(2, {{"reward/mean", 0.2}});
  const json rows = data_of(feed.poll(Time(2ms), true), "rows");
  EXPECT_FALSE(rows.at("reset"));
  ASSERT_EQ(steps_of(rows), std::vector<int64_t>{2});
  EXPECT_EQ(rows.at("rows")[0].at("reward/mean"), 0.2);
  const json whole = data_of(feed.whole(), "rows");
  EXPECT_TRUE(whole.at("reset"));
  EXPECT_EQ(steps_of(whole), (std::vector<int64_t>{1, 2}));
}

// As a launch that goes on behind its last checkpoint does.
TEST(LiveFeed, RowsThatWereTakenBackAreGone) {
  const RunOfSteps run;
  for (int64_t step = 1; step <= 3; ++step) run.add_row(step, {{"reward/mean", 0.1}});
  LiveFeed feed(run.name());
  feed.poll(Time(0), true);
  std::filesystem::resize_file(run.paths.metrics(),
                               RunOfSteps::line_of(1, {{"reward/mean", 0.1}}).size());
  json rows = data_of(feed.poll(Time(1ms), true), "rows");
  EXPECT_TRUE(rows.at("reset"));
  EXPECT_EQ(steps_of(rows), std::vector<int64_t>{1});
  run.add_row(2, {{"reward/mean", 0.9}});
  rows = data_of(feed.poll(Time(2ms), true), "rows");
  EXPECT_FALSE(rows.at("reset"));
  EXPECT_EQ(rows.at("rows").at(0).at("reward/mean"), 0.9);
  EXPECT_EQ(steps_of(data_of(feed.whole(), "rows")), (std::vector<int64_t>{1, 2}));
}

TEST(LiveFeed, SamplesComeAsText) {
  const RunOfSteps run;
  run.add_sample(1, "two and two", " four");
  LiveFeed feed(run.name());
  json samples = data_of(feed.poll(Time(0), true), "samples").at("samples");
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].at("reward"), 0.5);
  EXPECT_TRUE(samples[0].at("success").is_null());
  const json& text = samples[0].at("segments").at(0).at("text");
  ASSERT_EQ(text.size(), 2u) << text;
  EXPECT_EQ(text[0].at("role"), "prompt");
  EXPECT_EQ(text[1], json({{"role", "sampled"}, {"text", " four"}}));

  run.add_sample(2, "much", std::string(100'000, 'x'));
  samples = data_of(feed.poll(Time(1ms), true), "samples").at("samples");
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_LT(samples.dump().size(), 21'000u);
  EXPECT_EQ(data_of(feed.whole(), "samples").at("samples").size(), 2u);
  for (int64_t step = 3; step < 60; ++step) run.add_sample(step, "a", "b");
  // Not for who asks for numbers alone.
  EXPECT_TRUE(data_of(feed.poll(Time(2ms), false), "samples").is_null());
  EXPECT_EQ(data_of(feed.poll(Time(2ms), true), "samples").at("samples").size(),
            LiveFeed::kMostSamples);
  samples = data_of(feed.whole(), "samples").at("samples");
  EXPECT_EQ(samples.size(), LiveFeed::kMostSamples);
  EXPECT_EQ(samples.back().at("step"), 59);
}

// Somebody who comes late is not shown what nobody waited for.
TEST(LiveFeed, OfManySamplesTheLastAreRead) {
  const RunOfSteps run;
  // Lines that are no samples: they are not even parsed.
  std::ofstream(run.paths.samples()) << std::string(3 << 20, 'x') << '\n';
  run.add_sample(1, "two and two", " four");
  std::ofstream(run.paths.samples(), std::ios::app) << std::string(900 << 10, 'y') << '\n';
  run.add_sample(2, "two and two", " four");
  LiveFeed feed(run.name());
  const json samples = data_of(feed.poll(Time(0), true), "samples").at("samples");
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].at("step"), 1);
}

// A launch that goes on does some steps again: their samples go with their rows.
TEST(LiveFeed, SamplesOfStepsThatAreDoneAgainAreGone) {
  const RunOfSteps run;
  for (int64_t step = 1; step <= 3; ++step) {
    run.add_row(step, {{"reward/mean", 0.1}});
    run.add_sample(step, "a", "b");
  }
  LiveFeed feed(run.name());
  feed.poll(Time(0), true);
  std::filesystem::resize_file(run.paths.metrics(),
                               2 * RunOfSteps::line_of(1, {{"reward/mean", 0.1}}).size());
  const json samples = data_of(feed.poll(Time(1ms), true), "samples");
  EXPECT_TRUE(samples.at("reset"));
  // Its row is of version 1, which is what the second step begins from.
  ASSERT_EQ(samples.at("samples").size(), 1u);
  EXPECT_EQ(samples.at("samples")[0].at("step"), 1);
}

// Time goes by for a run that is over, too.
TEST(LiveFeed, AStatusThatIsTheSameIsNotToldAgain) {
  const RunOfSteps run;
  LiveFeed feed(run.name());
  EXPECT_FALSE(data_of(feed.poll(Time(0), true), "status").is_null());
  for (int second = 2; second < 1000; second += 100)
    EXPECT_TRUE(data_of(feed.poll(Time(second * 1s), true), "status").is_null());
}

// A look at the journal costs more than one at a file's size.
TEST(LiveFeed, TheJournalIsReadOnceASecondAtMost) {
  const RunOfSteps run;
  LiveFeed feed(run.name());
  const json status = data_of(feed.poll(Time(0), true), "status");
  EXPECT_EQ(status.at("steps"), 10);
  EXPECT_EQ(status.at("workers").at(0).at("name"), "rollout-0");
  run.add_row(1, {{"reward/mean", 0.1}, {"policy/entropy", 1.0}, {"time/step", 2.0}});
  std::filesystem::remove_all(run.paths.journal());
  EXPECT_TRUE(data_of(feed.poll(Time(999ms), true), "status").is_null());
  // It goes on without a journal, and says so.
  const json later = data_of(feed.poll(Time(1h), true), "status");
  EXPECT_EQ(later.at("state"), "unknown");
  EXPECT_NE(later.at("about").get<std::string>().find("has no journal"), std::string::npos);
}

TEST(LiveFeed, AFolderWithoutAJournalIsNoRun) {
  const TemporaryDirectory folder;
  EXPECT_THROW(LiveFeed feed(folder.path().string()), UserError);
}

}  // namespace
}  // namespace tailrace
