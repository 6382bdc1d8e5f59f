#include "reward/verifiers/program.h"

#include <optional>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tailrace {
namespace {

using nlohmann::json;
using sandbox::Program;
using sandbox::ProgramEnding;
using sandbox::ProgramLimits;
using sandbox::ProgramRun;
using namespace std::chrono_literals;

const json kSum = {{"prompt", "Add two numbers."},
                   {"language", "sh"},
                   {"tests",
                    {{{"stdin", "2 3\n"}, {"stdout", "5\n"}},
                     {{"stdin", "10 -4\n"}, {"stdout", "6\n"}},
                     {{"stdin", "0 0\n"}, {"stdout", "0\n"}}}}};
const std::string kRightProgram = "read a b; echo $((a + b))\n";

std::string answered(json row, const std::string& response) {
  row["response"] = response;
  return row.dump();
}

double metric(const Score& score, const std::string& name) {
  for (const auto& [known, value] : score.metrics) {
    if (known == name) return value;
  }
  ADD_FAILURE() << "no metric " << name;
  return -1;
}

// ---- without isolation: what runs programs is made up

// A run in which each program ends as it is told.
class ScriptedRuns {
 public:
  std::function<Result<ProgramRun>(const Program&, const ProgramLimits&)> act;
  std::vector<Time> walls;  // of the runs so far
  std::unique_ptr<Verifier> verifier =
      make_program_verifier([this](const Program& program, const ProgramLimits& limits) {
        walls.push_back(limits.wall);
        return act(program, limits);
      });

  // A program that takes so long for each test, and is right or not in the last.
  Score score(double seconds, bool is_right, const json& row = kSum, Time budget = 1000s) {
    act = [=, n = size_t{0}](const Program&, const ProgramLimits& limits) mutable {
      if (std::chrono::duration<double>(limits.wall).count() < seconds)
        return ProgramRun{.ending = ProgramEnding::kOverTime, .seconds = seconds};
      const json& test = row["tests"][n++];
      const bool ends_well = is_right || n < row["tests"].size();
      return ProgramRun{.out = ends_well ? test["stdout"].get<std::string>() : "no",
                        .seconds = seconds};
    };
    walls.clear();
    const auto result = verifier->score(answered(row, "x"), budget);
    EXPECT_TRUE(result.ok()) << result.failure().message;
    return result.value();
  }
};

const std::vector<Time> kThirty(3, 30s);

TEST(ProgramVerifier, LearnsDeadlinesFromProgramsThatPassAllTests) {
  ScriptedRuns scripted;
  EXPECT_EQ(scripted.score(3, false).reward, 0);
  EXPECT_EQ(scripted.walls, kThirty);
  EXPECT_EQ(scripted.score(4, true).reward, 1);
  EXPECT_EQ(scripted.walls, kThirty) << "the wrong one has taught it nothing";
  EXPECT_EQ(scripted.score(5, true).reward, 1);
  EXPECT_EQ(scripted.walls, std::vector<Time>(3, 6s));
  const Score late = scripted.score(8, true);
  EXPECT_EQ(late.reward, 0);
  EXPECT_EQ(metric(late, "over_deadline"), 1);
  EXPECT_EQ(metric(late, "slowest_test_seconds"), 8);
  EXPECT_EQ(scripted.walls, std::vector<Time>{7500ms}) << "the first that fails is the last";
  EXPECT_EQ(metric(scripted.score(0.1, true), "over_deadline"), 0);
}

TEST(ProgramVerifier, ATestIsKnownByItsContentAndItsTask) {
  ScriptedRuns scripted;
  scripted.score(4, true);
  json row = kSum;
  row["id"] = 7;
  scripted.score(4, true, row);
  EXPECT_EQ(scripted.walls, std::vector<Time>(3, 6s)) << "a column of nobody's";
  row["prompt"] = "Another task with these tests.";
  scripted.score(4, true, row);
  EXPECT_EQ(scripted.walls, kThirty);
}

// Each test is in its deadline, and all together are not: nine tenths of the budget are theirs.
TEST(ProgramVerifier, WhoIsOverTheBudgetOfAScoreHasFailedTheTest) {
  ScriptedRuns scripted;
  const Score late = scripted.score(7, true, kSum, 20s);
  EXPECT_EQ(late.reward, 0);
  EXPECT_EQ(metric(late, "over_deadline"), 1);
  EXPECT_EQ(metric(late, "success"), 0);
  EXPECT_DOUBLE_EQ(metric(late, "tests_passed"), 2.0 / 3);
  EXPECT_EQ(scripted.walls, (std::vector<Time>{18s, 11s, 4s}));
  // To its very end: the third has none left, and is not begun.
  const Score spent = scripted.score(9, true, kSum, 20s);
  EXPECT_EQ(spent.reward, 0);
  EXPECT_EQ(metric(spent, "over_deadline"), 1);
  EXPECT_EQ(scripted.walls, (std::vector<Time>{18s, 9s}));
  EXPECT_EQ(scripted.score(7, true, kSum, 24s).reward, 1);
  // By what it has learned, a deadline may still be shorter than the rest.
  EXPECT_EQ(scripted.score(1, true, kSum, 24s).reward, 1);
  EXPECT_EQ(scripted.walls, (std::vector<Time>(3, 10500ms)));
}

// What we took to set the programs up is not theirs to pay for.
TEST(ProgramVerifier, ABudgetThatOurOwnWorkHasUsedIsAFailure) {
  ScriptedRuns scripted;
  scripted.act = [n = 0](const Program&, const ProgramLimits&) mutable {
    std::this_thread::sleep_for(200ms);  // and 100 ms are for the set-up of all
    if (++n == 2) return ProgramRun{.ending = ProgramEnding::kOverTime, .seconds = 0.02};
    EXPECT_EQ(n, 1);
    return ProgramRun{.out = "5\n", .seconds = 0.001};
  };
  const auto over = scripted.verifier->score(answered(kSum, "x"), 1s);
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(over.failure().message,
            "to start the program for test 2 of 3 has left too little of the 1 s of a score; is "
            "the machine overloaded? Give it fewer workers, or raise scheduler.verify_seconds");
  // Nothing is begun that has no time left.
  const size_t before = scripted.walls.size();
  EXPECT_FALSE(scripted.verifier->score(answered(kSum, "x"), 0s).ok());
  EXPECT_EQ(scripted.walls.size(), before);
}

TEST(ProgramVerifier, WhatCannotBeRunIsAFailureAndNeverAZero) {
  ScriptedRuns scripted;
  scripted.act = [](const Program&, const ProgramLimits&) { return Failure{"no processes"}; };
  const auto failed = scripted.verifier->score(answered(kSum, "x"), 30s);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.failure().message, "no processes");
  for (const char* evidence :
       {"", "{}", R"({"response": "x"})", R"({"response": "x", "tests": []})",
        R"({"response": "x", "tests": [{"stdin": "", "stdout": 3}]})",
        R"({"response": "x", "tests": [{"stdin": "", "stdout": ""}], "language": "perl"})"})
    EXPECT_FALSE(scripted.verifier->score(evidence, 30s).ok()) << evidence;
}

TEST(ProgramVerifier, EndingBadlyIsAFailedTestWhateverWasWritten) {
  ScriptedRuns scripted;
  const json row = {{"tests", {{{"stdin", ""}, {"stdout", "5"}}}}};
  const auto reward = [&](ProgramEnding ending, int code, const std::string& out) {
    scripted.act = [=](const Program&, const ProgramLimits&) {
      return ProgramRun{.ending = ending, .code = code, .out = out};
    };
    return scripted.verifier->score(answered(row, "x"), 30s).value().reward;
  };
  EXPECT_EQ(reward(ProgramEnding::kExited, 0, "5"), 1);
  EXPECT_EQ(reward(ProgramEnding::kExited, 1, "5"), 0);
  EXPECT_EQ(reward(ProgramEnding::kSignalled, 11, "5"), 0);
  EXPECT_EQ(reward(ProgramEnding::kOverOutput, 0, "5"), 0);
  // Blanks at the ends of lines and empty lines at the end are of no account, others are.
  for (const char* same : {"5\n", "5 \r\n\n  \n"})
    EXPECT_EQ(reward(ProgramEnding::kExited, 0, same), 1) << same;
  for (const char* other : {"", " 5", "\n5", "5\n5", "55"})
    EXPECT_EQ(reward(ProgramEnding::kExited, 0, other), 0) << other;
}

TEST(ProgramVerifier, TheProgramIsTheLastBlockOfCode) {
  EXPECT_EQ(program_in("echo 1"), "echo 1");
  EXPECT_EQ(program_in("First:\n```sh\necho 1\n```\nBetter:\n```\necho 2\n\necho 3\n```\nDone."),
            "echo 2\n\necho 3\n");
  EXPECT_EQ(program_in("```python\nprint(1)"), "print(1)\n") << "cut before its end";
  EXPECT_EQ(program_in("````\n```\nx\n```\n````"), "```\nx\n```\n") << "fences inside a longer one";
  EXPECT_EQ(program_in("```sh\necho '```sh'\n```sh\n```"), "echo '```sh'\n```sh\n");
  EXPECT_EQ(program_in("```\n```"), "");
  // Code within a line is no block (CommonMark 4.5), and what follows it is not in one.
  EXPECT_EQ(program_in("Use ```echo``` here:\n```echo 0```\n```sh\necho 1\n```\nNot ```x```."),
            "echo 1\n");
  EXPECT_EQ(program_in("```sh\necho 1\n```\n```x``` it was\n"), "echo 1\n");
  EXPECT_EQ(program_in("```echo 1```"), "```echo 1```");
  EXPECT_EQ(program_in(""), "");
}

TEST(ProgramVerifier, RowsAreCheckedAndTheMachineWithThem) {
  ScriptedRuns scripted;
  int code = 0;
  scripted.act = [&](const Program&, const ProgramLimits&) { return ProgramRun{.code = code}; };
  const auto fault = [&](const json& row) {
    const Result<void> fit = scripted.verifier->check_row(row.dump(), kScoreBudget);
    return fit ? "" : fit.failure().message;
  };
  const json tests = kSum["tests"];
  const std::string wrong =
      "\"tests\" must be a list of at least one {\"stdin\": TEXT, \"stdout\": TEXT}";
  EXPECT_EQ(fault({{"prompt", "?"}, {"tests", tests}}), "");
  EXPECT_EQ(fault(kSum), "");
  EXPECT_EQ(fault(kSum), "");
  EXPECT_EQ(scripted.walls.size(), 2u) << "once for each language";
  EXPECT_EQ(fault({{"prompt", "?"}}), "there is no \"tests\"");
  EXPECT_EQ(fault({{"tests", json::array()}}), wrong);
  EXPECT_EQ(fault({{"tests", {{{"stdin", "1"}}}}}), wrong);
  EXPECT_EQ(fault({{"tests", {{{"input", "1"}, {"output", "1"}}}}}), wrong);
  // One that wants nothing rewards a program that does nothing; others may want nothing of a test.
  EXPECT_EQ(
      fault({{"tests", {{{"stdin", "1"}, {"stdout", ""}}, {{"stdin", "2"}, {"stdout", " \n\n"}}}}}),
      "every \"stdout\" of its \"tests\" is blank, and a program that does nothing would pass; "
      "give it a test that wants some output");
  EXPECT_EQ(
      fault({{"tests", {{{"stdin", "1"}, {"stdout", ""}}, {{"stdin", "2"}, {"stdout", "x"}}}}}),
      "");
  // No program passes a test that wants more than is kept of what it writes.
  const auto wanted = [&](size_t bytes, const std::string& rest) {
    const json long_test = {{"stdin", ""}, {"stdout", std::string(bytes, 'x') + rest}};
    return fault({{"tests", {tests[0], long_test}}});
  };
  EXPECT_EQ(wanted(1 << 20, " \n\n"), "") << "blanks and lines that need not be written";
  EXPECT_EQ(wanted((1 << 20) - 1, "\nx"),
            "the \"stdout\" of test 2 wants 1048577 bytes, and a program is killed once it has "
            "written more than 1048576, so none can pass; shorten it or leave the test out");
  EXPECT_EQ(fault({{"tests", tests}, {"language", "perl"}}),
            "\"language\" is \"perl\"; it must be \"python\" or \"sh\"");
  EXPECT_EQ(fault({{"tests", tests}, {"languag", "sh"}}),
            "there is no column \"languag\"; did you mean \"language\"?");

  scripted.verifier = make_program_verifier(scripted.act);
  code = 127;
  EXPECT_EQ(fault(kSum),
            "\"language\" is \"sh\", and isolated programs find no sh in /usr/local/bin, /usr/bin "
            "or /bin; install it there");
}

TEST(ProgramVerifier, SaysWhatTheMachineLacks) {
  ScriptedRuns scripted;
  scripted.act = [](const Program&, const ProgramLimits&) { return ProgramRun{}; };
  EXPECT_TRUE(scripted.verifier->check_machine().ok());
  scripted.act = [](const Program&, const ProgramLimits&) { return Failure{"allow namespaces"}; };
  const Result<void> fit = scripted.verifier->check_machine();
  ASSERT_FALSE(fit.ok());
  EXPECT_EQ(fit.failure().message, "this machine cannot test programs: allow namespaces");
}

TEST(ProgramVerifier, AnswersLieWhereProgramsDoNotLook) {
  const auto verifier = make_program_verifier();
  EXPECT_TRUE(verifier->check_hidden("/home/me/rows.jsonl").ok());
  const Result<void> fit = verifier->check_hidden("/usr/share/rows.jsonl");
  ASSERT_FALSE(fit.ok());
  EXPECT_EQ(fit.failure().message,
            "/usr/share/rows.jsonl lies below /usr, which programs under test can read, with the "
            "answers in it; put it elsewhere");
}

TEST(ProgramVerifier, ARowHasNoMoreTestsThanABudgetHasTimeFor) {
  ScriptedRuns scripted;
  scripted.act = [](const Program&, const ProgramLimits&) { return ProgramRun{}; };
  const auto fault = [&](size_t num_tests, Time budget) {
    const json row = {{"tests", json(num_tests, kSum["tests"][0])}};
    const Result<void> fit = scripted.verifier->check_row(row.dump(), budget);
    return fit ? "" : fit.failure().message;
  };
  EXPECT_EQ(fault(21, score_budget(60s)), "");
  EXPECT_EQ(
      fault(22, score_budget(60s)),
      "its 22 tests may take 2 s each, 44 s together, and a score has 43.7 s for them; give it "
      "at most 21, or raise scheduler.verify_seconds to 61");
  EXPECT_EQ(fault(22, score_budget(61s)), "");
  EXPECT_EQ(fault(1, scripted.verifier->least_budget()), "");
  EXPECT_NE(fault(1, scripted.verifier->least_budget() - 2ns), "");
  EXPECT_EQ(verify_for(scripted.verifier->least_budget()), 3s);
}

// ---- isolated

class IsolatedProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto fit = verifier_->check_machine(); !fit) GTEST_SKIP() << fit.failure().message;
  }
  Score score(const std::string& response, const json& row = kSum) const {
    const auto result = verifier_->score(answered(row, response), 60s);
    EXPECT_TRUE(result.ok()) << result.failure().message;
    return result ? result.value() : Score{};
  }
  const std::unique_ptr<Verifier> verifier_ = make_program_verifier();
};

TEST_F(IsolatedProgram, PassesItsTestsOrNot) {
  const Score right = score("Like this:\n```sh\n" + kRightProgram + "```\n");
  EXPECT_EQ(right.reward, 1);
  EXPECT_EQ(metric(right, "success"), 1);
  EXPECT_EQ(metric(right, "tests_passed"), 1);
  EXPECT_GT(metric(right, "slowest_test_seconds"), 0);
  // Right in the first test alone.
  const Score wrong = score("read a b; echo 5");
  EXPECT_EQ(wrong.reward, 0);
  EXPECT_DOUBLE_EQ(metric(wrong, "tests_passed"), 1.0 / 3);
  EXPECT_EQ(metric(score("this is no program"), "tests_passed"), 0);
}

TEST_F(IsolatedProgram, OneThatHangsIsStoppedAfterWhatRightOnesTake) {
  EXPECT_EQ(score(kRightProgram).reward, 1);
  const auto begin = std::chrono::steady_clock::now();
  const Score hung = score("while :; do :; done");
  EXPECT_EQ(hung.reward, 0);
  EXPECT_EQ(metric(hung, "over_deadline"), 1);
  EXPECT_GE(metric(hung, "slowest_test_seconds"), 2);
  // It would be 30 s had it learned nothing.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

// The most that a test may want.
TEST_F(IsolatedProgram, MayWriteAllThatIsKept) {
  const std::string most(1 << 20, 'x');
  const json row = {{"language", "sh"}, {"tests", {{{"stdin", ""}, {"stdout", most + "\n"}}}}};
  EXPECT_EQ(score("head -c 1048576 /dev/zero | tr '\\0' x", row).reward, 1);
  EXPECT_EQ(score("head -c 1048577 /dev/zero | tr '\\0' x", row).reward, 0);
}

// Three times 1.5 s, and 3.6 s for all.
TEST_F(IsolatedProgram, OneThatIsSlowInEachTestIsOverTheBudgetOfAll) {
  const auto result = verifier_->score(answered(kSum, "sleep 1.5; " + kRightProgram), 4s);
  ASSERT_TRUE(result.ok()) << result.failure().message;
  EXPECT_EQ(result.value().reward, 0);
  EXPECT_EQ(metric(result.value(), "over_deadline"), 1);
  EXPECT_LT(metric(result.value(), "tests_passed"), 1);
  EXPECT_LT(metric(result.value(), "slowest_test_seconds"), 3.6);
}

TEST_F(IsolatedProgram, ThreadsScoreSideBySide) {
  std::vector<std::jthread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 5; ++n) {
        const bool is_right = (i + n) % 2 == 0;
        if (score(is_right ? kRightProgram : "echo no").reward == (is_right ? 1 : 0)) ++right;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(right, 20);
}

TEST_F(IsolatedProgram, PythonRunsWhereItIs) {
  const json row = {{"tests", kSum["tests"]}};
  if (const auto fit = verifier_->check_row(row.dump(), kScoreBudget); !fit)
    GTEST_SKIP() << fit.failure().message;
  EXPECT_EQ(score("```python\nprint(sum(map(int, input().split())))\n```", row).reward, 1);
  EXPECT_EQ(score("```python\nx = [0] * (1 << 40)\n```", row).reward, 0) << "out of its memory";
}

}  // namespace
}  // namespace tailrace
