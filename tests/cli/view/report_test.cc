#include <array>
#include <limits>

#include <gtest/gtest.h>

#include "cli/view/report_page.h"
#include "cli/view/samples_section.h"
#include "core/base/file.h"
#include "core/trajectory/sample_rows.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

constexpr double kBegun = 1.7e9;

ReportData report_example() {
  ReportData data;
  data.name = "a<b>";
  for (int64_t step = 0; step < 20; ++step) {
    double share = static_cast<double>(step) / 20;
    data.rows.push_back({.step = step + 1,
                         .version = step,
                         .unix_seconds = kBegun + 100 + 3.0 * static_cast<double>(step),
                         .values = {{"reward/mean", share},
                                    {"policy/entropy", 2 - share},
                                    {"zz/other", std::numeric_limits<double>::quiet_NaN()}}});
    if (step % 10 == 0)
      data.rows.push_back({.step = step,
                           .version = step,
                           .unix_seconds = kBegun + 101,
                           .values = {{"eval/success", 0.39 + share}}});
  }
  auto sample = [](int64_t step, double success) {
    return Sample{.step = step,
                  .reward = success,
                  .success = success,
                  .segments = {{.text = {{TokenRole::kPrompt, "NE <ice>"},
                                         {TokenRole::kSampled, "up & away"},
                                         {TokenRole::kObservation, "hole"}}}}};
  };
  data.samples = {sample(0, 0), sample(19, 1)};
  data.config = "run:\n  name: \"a<b>\"\n";
  return data;
}

TEST(ReportPage, HoldsCurvesSamplesConfigAndTable) {
  std::string page = make_report_page(report_example());
  EXPECT_EQ(page.substr(0, 15), "<!doctype html>");
  EXPECT_EQ(page.find("a<b>"), std::string::npos) << "names are escaped";
  EXPECT_NE(page.find("<b>0.39 → 0.89</b><span>success, held-out</span>"), std::string::npos);
  EXPECT_NE(page.find("<b>20</b><span>steps</span>"), std::string::npos);
  for (const char* title : {"reward/mean", "eval/success", "policy/entropy"})
    EXPECT_NE(page.find(std::string("aria-label=\"") + title), std::string::npos) << title;
  EXPECT_LT(page.find("aria-label=\"reward/mean"), page.find("aria-label=\"policy/entropy"));
  EXPECT_NE(page.find("<mark>up &amp; away</mark>"), std::string::npos);
  EXPECT_NE(page.find("After: step 19"), std::string::npos);
  EXPECT_NE(page.find("<td>zz/other</td><td>-</td>"), std::string::npos);
  EXPECT_EQ(page, make_report_page(report_example()));
}

TEST(ReportPage, BeginsWithWhatTheRunIsAndWhetherItLearned) {
  ReportData data = report_example();
  data.config = "run: {name: tiny, seed: 5, steps: 40}\nalgo: {name: grpo}\n";
  data.machine = "a <machine>, 2 cores";
  data.timeline = {{.what = TimelineWhat::kUp, .worker = "rollout-0", .slots = 1},
                   {.what = TimelineWhat::kStep, .at = Time(9), .from = Time(9), .number = 1}};
  data.notes = {"a note"};
  const std::string page = make_report_page(data);
  size_t at = 0;
  for (const char* part :
       {"<h1>", "<dt>Algorithm</dt><dd>grpo</dd>", "<dt>Machine</dt><dd>a &lt;machine&gt;, 2 cores",
        "<dt>Date</dt><dd>2023-11-14 22:15 UTC", "<dt>Steps</dt><dd>20 of 40", "a note",
        "success, held-out", "<h2>Samples</h2>", "Before: step 0", "<h2>Workers</h2>",
        "<h2>Curves</h2>", "<h2>All metrics</h2>", "<h2>Configuration</h2>"}) {
    at = page.find(part, at);
    ASSERT_NE(at, std::string::npos) << part << "\n" << page;
  }
}

TEST(ReportPage, FoldsWhatStaysConstant) {
  ReportData data = report_example();
  for (MetricsRow& row : data.rows) row.values.emplace_back("rollout/turns/mean", 3);
  const std::string page = make_report_page(data);
  EXPECT_EQ(page.find("aria-label=\"rollout/turns/mean"), std::string::npos);
  EXPECT_EQ(page.find("aria-label=\"zz/other"), std::string::npos);
  const size_t fold = page.find("<details><summary>2 metrics stayed constant</summary>");
  ASSERT_NE(fold, std::string::npos);
  EXPECT_NE(page.find("<tr><td>rollout/turns/mean</td><td>3</td></tr>", fold), std::string::npos);
  const size_t others = page.find("<summary>3 metrics: first, last");
  ASSERT_NE(others, std::string::npos);
  EXPECT_LT(page.find("<td>reward/mean</td><td>0</td><td>0.95</td>", others), fold);
}

TEST(ReportPage, SamplesOfOnePromptStandSideBySide) {
  const auto sample = [](int64_t step, const std::string& prompt, const std::string& response) {
    return Sample{
        .step = step,
        .reward = {},
        .success = {},
        .segments = {{.text = {{TokenRole::kPrompt, prompt}, {TokenRole::kSampled, response}}}}};
  };
  const std::vector<Sample> samples = {sample(0, "A", "first of A"), sample(0, "B", "first of B"),
                                       sample(9, "C", "last of C"), sample(9, "B", "last of B")};
  const std::string section = samples_section(samples);
  size_t at = 0;
  for (const char* part : {"first of A", "last of C", "first of B", "last of B"}) {
    at = section.find(part, at);
    ASSERT_NE(at, std::string::npos) << part << "\n" << section;
  }
  EXPECT_EQ(samples_section({}), "");
  EXPECT_EQ(samples_section(std::span(samples).first(2)).find("After"), std::string::npos);
}

// A conversation, what goes on behind it, another answer to its beginning, and a sub-agent.
TEST(ReportPage, ShowsATreeOfSegments) {
  using enum TokenRole;
  SampleRow row;
  row.segments = {
      {.ids = {3, 4, 5, 3}, .roles = {kPrompt, kSampled, kObservation, kSampled}},
      {.ids = {4, 5}, .roles = {kObservation, kSampled}, .parent = 0, .parent_tokens = 4},
      {.ids = {5, 4}, .roles = {kSampled, kSampled}, .parent = 0, .parent_tokens = 1},
      {.ids = {5, 3}, .roles = {kPrompt, kSampled}}};
  TemporaryDirectory folder;
  folder.write("samples.jsonl", format_sample_row(row) + "\n");
  text::write_word_tokenizer(folder / "words", std::array<std::string, 3>{"up", "down", "left"});
  const auto tokenizer = text::load_tokenizer(folder / "words");
  const auto samples = read_samples(folder / "samples.jsonl", *tokenizer);
  ASSERT_TRUE(samples) << samples.failure().message;
  const std::string section = samples_section(samples.value());
  size_t at = 0;
  for (const char* part :
       {"<b>segment 0 begins: 4 tokens, turns 1 to 2</b>\nup<mark> down</mark> left<mark> "
        "up</mark>",
        "<b>segment 1 goes on behind turn 2: 2 tokens, turn 3</b>\n down<mark> left</mark>",
        "<b>segment 2 answers again what turn 1 answers: 2 tokens, turn 4</b>\n"
        "<mark> left down</mark>",
        "<b>segment 3 begins anew: 2 tokens, turn 5</b>\nleft<mark> up</mark>"}) {
    at = section.find(part, at);
    ASSERT_NE(at, std::string::npos) << part << "\n" << section;
  }
  // What cannot be a tree is a damaged row.
  for (const auto& [parent, tokens] : {std::pair(1, 1), std::pair(0, 5)}) {
    SampleRow unsound = row;
    unsound.segments[1].parent = parent;
    unsound.segments[1].parent_tokens = tokens;
    EXPECT_FALSE(parse_sample_row(format_sample_row(unsound))) << parent;
  }
}

TEST(ReportPage, ShowsWhatDatasetsHaveInOneChart) {
  ReportData data = report_example();
  for (MetricsRow& row : data.rows) {
    if (row.find("reward/mean") == nullptr) continue;
    row.values.emplace_back("reward/grid/mean", 0.5 + static_cast<double>(row.step) / 100);
    row.values.emplace_back("reward/sums/mean", 0.25);
    row.values.emplace_back("rollout/sums/prompts", row.step % 2);
    row.values.emplace_back("rollout/turns/mean", row.step % 3);
    row.values.emplace_back("env/grid/size", 4);
  }
  data.samples[0].dataset = "grid";
  const std::string page = make_report_page(data);
  const auto chart = page.find("aria-label=\"reward/mean, by dataset");
  ASSERT_NE(chart, std::string::npos);
  EXPECT_GT(chart, page.find("aria-label=\"reward/mean\""));
  EXPECT_LT(chart, page.find("aria-label=\"eval/success"));
  EXPECT_EQ(page.find("aria-label=\"reward/mean, by dataset", chart + 1), std::string::npos);
  EXPECT_NE(page.find("aria-label=\"rollout/prompts, by dataset"), std::string::npos);
  EXPECT_NE(page.find("aria-label=\"rollout/turns/mean\""), std::string::npos);
  EXPECT_NE(page.find("<td>reward/sums/mean</td><td>0.25</td>"), std::string::npos);
  EXPECT_NE(page.find(">sums</text>", chart), std::string::npos) << "beside one that changes";
  EXPECT_EQ(page.find("aria-label=\"env/size, by dataset"), std::string::npos);
  EXPECT_NE(page.find("<span>grid</span>"), std::string::npos);
}

TEST(ReportPage, NeedsNothingFromOutside) {
  std::string page = make_report_page(report_example());
  for (const char* part : {"<script", "src=", "href=", "url(", "@import"})
    EXPECT_EQ(page.find(part), std::string::npos) << part;
}

TEST(LearningCurve, ShowsRewardAndEvaluations) {
  std::string svg = make_learning_curve(report_example());
  EXPECT_NE(svg.find("training reward"), std::string::npos);
  EXPECT_NE(svg.find("held-out success"), std::string::npos);
  EXPECT_NE(svg.find("prefers-color-scheme"), std::string::npos);
}

TEST(WriteReport, MakesThePageOfARunDirectory) {
  TemporaryDirectory folder;
  folder.write("metrics.jsonl",
               "{\"step\":0,\"version\":0,\"time\":1,\"reward/"
               "mean\":0.25}\n{\"step\":1,\"version\":1,\"time\":2,\"reward/mean\":0.5}\n");
  folder.write("config.yaml", "run: {seed: 5}\n");
  std::vector<std::string> words = {"up", "down", "ice", "\n"};
  text::write_word_tokenizer(folder / "tokenizer", words);
  folder.write("samples.jsonl",
               "{\"step\":0,\"version\":0,\"reward\":0.5,\"success\":null,\"segments\":[{"
               "\"tokens\":[5,3,6],\"roles\":[0,1,1]}]}\n{\"step\":");
  RunPaths paths{folder.path()};
  auto written = write_report(paths);
  ASSERT_TRUE(written) << written.failure().message;
  std::string page = read_file(paths.report()).value();
  EXPECT_NE(page.find("run: {seed: 5}"), std::string::npos);
  EXPECT_NE(page.find("ice<mark>"), std::string::npos);
  EXPECT_EQ(page.find("class=\"note\""), std::string::npos);
}

TEST(WriteReport, GoesOnWithoutSamplesThatCannotBeRead) {
  TemporaryDirectory folder;
  folder.write("metrics.jsonl", "{\"step\":0,\"version\":0,\"time\":1,\"reward/mean\":0.25}\n");
  folder.write("config.yaml", "");
  text::write_word_tokenizer(folder / "tokenizer", std::array<std::string, 1>{"up"});
  folder.write("samples.jsonl", "{\"step\":0,\"segments\":[{\"tokens\":[900],\"roles\":[1]}]}\n");
  RunPaths paths{folder.path()};
  ASSERT_TRUE(write_report(paths));
  EXPECT_NE(read_file(paths.report())
                .value()
                .find("samples.jsonl:1: token 900 with role 1 is out of range"),
            std::string::npos);
}

TEST(WriteReport, ADamagedRowOfTheTimelineIsANoteAndTheOthersAreShown) {
  TemporaryDirectory folder;
  folder.write("metrics.jsonl", "{\"step\":0,\"version\":0,\"time\":1,\"reward/mean\":0.25}\n");
  folder.write("config.yaml", "");
  const auto up = [](const char* worker) {
    return format_timeline_row({.what = TimelineWhat::kUp, .worker = worker, .slots = 1}) + "\n";
  };
  std::string damaged = up("rollout-1");
  damaged[3] ^= 1;
  const TimelineRow step{.what = TimelineWhat::kStep, .at = Time(9), .from = Time(9), .number = 1};
  folder.write("timeline.jsonl", up("rollout-0") + damaged + format_timeline_row(step) + "\n");
  const RunPaths paths{folder.path()};
  ASSERT_TRUE(write_report(paths));
  const std::string page = read_file(paths.report()).value();
  EXPECT_NE(page.find("timeline.jsonl:2: the row was changed or damaged"), std::string::npos);
  EXPECT_NE(page.find(">rollout-0</text>"), std::string::npos);
  EXPECT_EQ(page.find(">rollout-1</text>"), std::string::npos);
  EXPECT_NE(page.find("Samples by decile"), std::string::npos);
}

TEST(FormatSample, ReadsBack) {
  TemporaryDirectory folder;
  std::vector<std::string> words = {"up", "down"};
  text::write_word_tokenizer(folder.path(), words);
  auto tokenizer = text::load_tokenizer(folder.path());
  Trajectory trajectory;
  trajectory.reward = 0.75;
  trajectory.metrics = {{"success", 1}};
  trajectory.segments = {{.tokens = {3, 4, text::kEosWord},
                          .roles = {TokenRole::kPrompt, TokenRole::kSampled, TokenRole::kSampled},
                          .logprobs = {0, -1, -1},
                          .versions = {-1, 7, 7},
                          .classes = {-1, 0, 0},
                          .turn_begins = {1}}};
  folder.write("samples.jsonl", format_sample_row(sample_row(trajectory, 12, 7)) + "\n");
  auto samples = read_samples(folder / "samples.jsonl", *tokenizer);
  ASSERT_TRUE(samples) << samples.failure().message;
  ASSERT_EQ(samples.value().size(), 1u);
  EXPECT_EQ(samples.value()[0].step, 12);
  EXPECT_EQ(samples.value()[0].dataset, "");
  EXPECT_EQ(samples.value()[0].version, 7);
  EXPECT_EQ(samples.value()[0].name, to_string(trajectory.lease));
  EXPECT_EQ(samples.value()[0].reward, 0.75);
  EXPECT_EQ(samples.value()[0].success, 1);
  ASSERT_EQ(samples.value()[0].segments[0].text.size(), 2u);
  EXPECT_EQ(samples.value()[0].segments[0].text[1].role, TokenRole::kSampled);
  EXPECT_EQ(samples.value()[0].segments[0].text[1].text, " down </s>")
      << "what ends a turn is shown";
}

TEST(ReadReportData, NamesARunWithoutMetrics) {
  TemporaryDirectory folder;
  EXPECT_NE(read_report_data(RunPaths{folder.path()})
                .failure()
                .message.find("metrics.jsonl: No such file"),
            std::string::npos);
  folder.write("metrics.jsonl", "");
  EXPECT_NE(read_report_data(RunPaths{folder.path()}).failure().message.find("has no rows yet"),
            std::string::npos);
}

}  // namespace
}  // namespace tailrace
