#include "bench/report/report.h"

#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/report/program.h"
#include "core/base/error.h"

namespace tailrace {
namespace {

using nlohmann::json;

Heading heading() {
  return {.bench = "engine",
          .version = "0.1.0",
          .settings = {{"geometry", "tiny"}, {"layers", int64_t{4}}, {"share", 0.5}},
          .cpu = "a CPU",
          .cores = 2,
          .numerics = "cpu-plain",
          .threads = 2};
}

// What `write` prints to a file.
std::string printed(const std::function<void(std::FILE*)>& write) {
  std::FILE* file = std::tmpfile();
  write(file);
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(Spread, OfAnOddAndAnEvenNumberOfValues) {
  const Spread odd = spread({3, 1, 2});
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 3);
  EXPECT_EQ(odd.runs, 3);
  EXPECT_EQ(spread({4, 1, 2, 8}).median, 3);
  const Spread one = spread({7});
  EXPECT_EQ(one.median, 7);
  EXPECT_EQ(one.min, one.max);
}

TEST(SpreadDeathTest, OfNothing) { EXPECT_DEATH(spread({}), "a spread of no values"); }

TEST(Stopwatch, CountsFromTheLastLap) {
  Stopwatch watch;
  const Stopwatch total;
  while (total.seconds() < 1e-3) {
  }
  EXPECT_GE(watch.lap(), 1e-3);
  EXPECT_LE(watch.seconds(), total.seconds());
}

TEST(Report, IsOneJsonObjectARow) {
  const std::string text = printed([](std::FILE* file) {
    Report report(heading(), Report::Form::kJson, file);
    report.add("tiny", "decode", "tokens/s", {30, 10, 20}, 40);
    report.note("it waits for nothing");
    report.add("tiny", "wait", "ms", {1});
  });
  const size_t end = text.find('\n');
  const json first = json::parse(text.substr(0, end)), second = json::parse(text.substr(end + 1));
  EXPECT_EQ(first, json::parse(R"({
    "bench": "engine", "system": "tailrace", "version": "0.1.0",
    "case": "tiny", "metric": "decode", "unit": "tokens/s",
    "median": 20, "min": 10, "max": 30, "runs": 3, "limit": 40,
    "settings": {"geometry": "tiny", "layers": 4, "share": 0.5},
    "machine": {"device": "cpu", "cpu": "a CPU", "cores": 2, "numerics": "cpu-plain", "threads": 2}
  })"));
  EXPECT_TRUE(second["limit"].is_null());
  ASSERT_EQ(first.size(), second.size());
  for (const auto& [key, value] : first.items()) EXPECT_TRUE(second.contains(key)) << key;
}

TEST(Report, IsATableThatNamesACaseOnce) {
  EXPECT_EQ(
      printed([](std::FILE* file) {
        Report report(heading(), Report::Form::kTable, file);
        report.add("tiny", "decode", "tokens/s", {3000, 1000, 2000}, 4000);
        report.add("tiny", "wait", "ms", {0.00123});
        report.note("it waits for nothing");
      }),
      "engine: tailrace 0.1.0 on a CPU, 2 cores, 2 threads, cpu-plain\n"
      "geometry tiny, layers 4, share 0.5\n"
      "\n"
      "                              median         min         max  unit        runs  of limit\n"
      "tiny\n"
      "  decode                        2000        1000        3000  tokens/s       3      50 %\n"
      "  wait                       0.00123     0.00123     0.00123  ms             1          \n"
      "  -> it waits for nothing\n");
}

TEST(Report, KnowsThisBuildAndThisMachine) {
  const Heading here = make_heading("engine", {}, 3);
  EXPECT_FALSE(here.version.empty());
  EXPECT_GE(here.cores, 1);
  EXPECT_NE(here.numerics.find("cpu-"), std::string::npos);
  EXPECT_EQ(here.threads, 3);
}

int status_of(const std::vector<const char*>& words, const std::function<void()>& measure) {
  std::vector<const char*> argv = {"bench"};
  argv.insert(argv.end(), words.begin(), words.end());
  return Program("engine", "what it measures", "engine")
      .run(static_cast<int>(argv.size()), argv.data(), measure);
}

TEST(Program, EndsWithOneForAWrongResultAndTwoForAPersonsMistake) {
  EXPECT_EQ(status_of({}, [] {}), 0);
  testing::internal::CaptureStderr();
  EXPECT_EQ(status_of({}, [] { require(1 + 1 == 3, "{} is not {}", 1 + 1, 3); }), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "error: 2 is not 3\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(status_of({}, [] { throw UserError("no such file"); }), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "error: no such file\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(status_of({"--threads", "0"}, [] { FAIL(); }), 2);
  const std::string message = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(message.starts_with("error: --threads is 0; ")) << message;
  EXPECT_TRUE(message.ends_with("\n       Run 'tailrace bench engine --help'.\n")) << message;
}

}  // namespace
}  // namespace tailrace
