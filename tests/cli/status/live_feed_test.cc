#include "cli/status/live_feed.h"

#include <chrono>

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
  EXPECT_EQ(steps_of(data_of(feed.poll(Time(0)), "rows")), std::vector<int64_t>{1});
  EXPECT_TRUE(data_of(feed.poll(Time(1ms)), "rows").is_null());
  run.add_row(2, {{"reward/mean", 0.2}});
  const json rows = data_of(feed.poll(Time(2ms)), "rows");
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
  feed.poll(Time(0));
  std::filesystem::resize_file(run.paths.metrics(),
                               RunOfSteps::line_of(1, {{"reward/mean", 0.1}}).size());
  json rows = data_of(feed.poll(Time(1ms)), "rows");
  EXPECT_TRUE(rows.at("reset"));
  EXPECT_EQ(steps_of(rows), std::vector<int64_t>{1});
  run.add_row(2, {{"reward/mean", 0.9}});
  rows = data_of(feed.poll(Time(2ms)), "rows");
  EXPECT_FALSE(rows.at("reset"));
  EXPECT_EQ(rows.at("rows").at(0).at("reward/mean"), 0.9);
  EXPECT_EQ(steps_of(data_of(feed.whole(), "rows")), (std::vector<int64_t>{1, 2}));
}

TEST(LiveFeed, OfALongRunSomeRowsAreLeftOut) {
  std::vector<MetricsRow> rows(10'000);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].step = static_cast<int64_t>(i);
    rows[i].values = {{i % 1000 == 7 ? "eval/success" : "reward/mean", 1.0}};
  }
  const auto kept = thinned(rows, 100);
  EXPECT_EQ(kept.size(), 100u + 10u + 1u);
  EXPECT_EQ(kept.front()->step, 0);
  EXPECT_EQ(kept.back()->step, 9999);
  EXPECT_EQ(std::ranges::count_if(kept, [](auto* row) { return row->find("eval/success"); }), 10);
  // Where all are evaluations none is kept besides.
  for (MetricsRow& row : rows) row.values = {{"eval/success", 1.0}};
  EXPECT_EQ(thinned(rows, 100).size(), 101u);
  EXPECT_TRUE(thinned({}, 100).empty());
}

TEST(LiveFeed, SamplesComeAsText) {
  const RunOfSteps run;
  run.add_sample(1, "two and two", " four");
  LiveFeed feed(run.name());
  json samples = data_of(feed.poll(Time(0)), "samples");
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].at("reward"), 0.5);
  EXPECT_TRUE(samples[0].at("success").is_null());
  const json& text = samples[0].at("segments").at(0).at("text");
  ASSERT_EQ(text.size(), 2u) << text;
  EXPECT_EQ(text[0].at("role"), "prompt");
  EXPECT_EQ(text[1], json({{"role", "sampled"}, {"text", " four"}}));

  run.add_sample(2, "much", std::string(100'000, 'x'));
  samples = data_of(feed.poll(Time(1ms)), "samples");
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_LT(samples.dump().size(), 21'000u);
  EXPECT_EQ(data_of(feed.whole(), "samples").size(), 2u);
  for (int64_t step = 3; step < 60; ++step) run.add_sample(step, "a", "b");
  EXPECT_EQ(data_of(feed.poll(Time(2ms)), "samples").size(), LiveFeed::kMostSamples);
  samples = data_of(feed.whole(), "samples");
  EXPECT_EQ(samples.size(), LiveFeed::kMostSamples);
  EXPECT_EQ(samples.back().at("step"), 59);
}

// A look at the journal costs more than one at a file's size.
TEST(LiveFeed, TheJournalIsReadOnceASecondAtMost) {
  const RunOfSteps run;
  LiveFeed feed(run.name());
  const json status = data_of(feed.poll(Time(0)), "status");
  EXPECT_EQ(status.at("steps"), 10);
  EXPECT_EQ(status.at("workers").at(0).at("name"), "rollout-0");
  run.add_row(1, {{"reward/mean", 0.1}, {"policy/entropy", 1.0}, {"time/step", 2.0}});
  std::filesystem::remove_all(run.paths.journal());
  EXPECT_TRUE(data_of(feed.poll(Time(999ms)), "status").is_null());
  // It goes on without a journal, and says so.
  const json later = data_of(feed.poll(Time(1h)), "status");
  EXPECT_EQ(later.at("state"), "unknown");
  EXPECT_NE(later.at("about").get<std::string>().find("has no journal"), std::string::npos);
}

TEST(LiveFeed, AFolderWithoutAJournalIsNoRun) {
  const TemporaryDirectory folder;
  EXPECT_THROW(LiveFeed feed(folder.path().string()), UserError);
}

}  // namespace
}  // namespace tailrace
