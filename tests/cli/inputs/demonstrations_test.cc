#include "cli/inputs/demonstrations.h"

#include <cstdlib>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "reward/verifiers/built_in.h"
#include "sandbox/builtin/built_in.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class DemonstrationsTest : public testing::Test {
 protected:
  DemonstrationsTest() {
    environment_ = sandbox::built_in_environments().make("frozen_grid", {});
    text::write_word_tokenizer(folder_, environment_->info().vocabulary);
    tokenizer_ = text::load_tokenizer(folder_);
  }

  std::string write(int64_t episodes, const DemonstrationPlan& plan) {
    return write(std::vector<DemonstratedDataset>{{*environment_, {}, episodes}}, plan);
  }
  std::string write(const std::vector<DemonstratedDataset>& datasets,
                    const DemonstrationPlan& plan) {
    counts_ = write_demonstrations(folder_ / "d.jsonl", datasets, chat::PromptFormat(*tokenizer_),
                                   built_in_verifiers(), plan);
    return read_file(folder_ / "d.jsonl").value();
  }
  static std::vector<json> rows(const std::string& text) {
    std::vector<json> out;
    LineReader reader(text);
    while (auto line = reader.next()) out.push_back(json::parse(line->text));
    return out;
  }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_.path();
  std::unique_ptr<sandbox::Environment> environment_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  DemonstrationCounts counts_;
};

TEST_F(DemonstrationsTest, CountsExactlyTheActions) {
  const auto all = rows(write(50, {7, 256}));
  ASSERT_EQ(all.size(), 50u);
  const std::set<std::string> seen_only = {">", "ice", "hole", "wall", "goal", "?", "what"};
  for (const json& row : all) {
    const std::vector<TokenId> tokens = row.at("input_ids");
    const std::vector<int> mask = row.at("loss_mask");
    ASSERT_EQ(tokens.size(), mask.size());
    EXPECT_EQ(tokens[0], tokenizer_->bos());
    EXPECT_EQ(mask[0], 0);
    EXPECT_EQ(mask.back(), 1) << "an episode ends with an action";
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string text = tokenizer_->decode(std::vector{tokens[i]});
      if (text == "\n") {
        EXPECT_EQ(mask[i], 1) << "only actions end in a newline, and it counts";
      }
      if (seen_only.contains(text)) {
        EXPECT_EQ(mask[i], 0) << text;
      }
      if (text == ">") {
        EXPECT_EQ(mask[i + 1], 1) << "an action follows the prompt sign";
      }
    }
  }
}

TEST_F(DemonstrationsTest, TheSameSeedGivesTheSameBytes) {
  const std::string first = write(20, {7, 256});
  EXPECT_EQ(write(20, {7, 256}), first);
  EXPECT_NE(write(20, {8, 256}), first);
}

TEST_F(DemonstrationsTest, OfSeveralDatasetsComeOneAfterTheOther) {
  const std::string one = write(20, {7, 256});
  const DemonstratedDataset grid{*environment_, {}, 20}, none{*environment_, {}, 0};
  EXPECT_EQ(write({grid, none}, {7, 256}), one);
  const std::string both = write({grid, grid}, {7, 256});
  EXPECT_EQ(both.substr(0, one.size()), one) << "the first has what it would have alone";
  EXPECT_EQ(rows(both).size(), 40u);
  EXPECT_NE(both.substr(one.size()), one) << "the same environment, and other episodes";
  EXPECT_EQ(write({none, grid}, {7, 256}), both.substr(one.size()));
}

TEST_F(DemonstrationsTest, AreImperfectOnPurpose) {
  write(1000, {0, 256});
  // About 0.4 of 1000, with a standard deviation of 15: far enough away on both sides.
  EXPECT_GT(counts_.successes, 300);
  EXPECT_LT(counts_.successes, 500);
}

TEST_F(DemonstrationsTest, ALongEpisodeIsCutBetweenTurns) {
  for (const json& row : rows(write(50, {7, 30}))) {
    EXPECT_LE(row.at("input_ids").size(), 30u);
    // Cut, not dropped: the first prompt and an action are there.
    EXPECT_GE(row.at("input_ids").size(), 9u);
  }
}

class Undemonstrated final : public sandbox::Environment {
 public:
  const sandbox::EnvironmentInfo& info() const override { return info_; }
  Result<sandbox::Observation> reset(const sandbox::Task&) override {
    return sandbox::Observation{"ice >"};
  }
  Result<sandbox::StepResult> step(const std::string&) override { return sandbox::StepResult{}; }
  std::string sample_action(Rng&) override { return "up\n"; }

 private:
  sandbox::EnvironmentInfo info_{.name = "undemonstrated"};
};

// Fails in some of its calls, and never twice in a row.
class Shaky : public sandbox::Environment {
 public:
  explicit Shaky(std::unique_ptr<sandbox::Environment> sound) : sound_(std::move(sound)) {}
  const sandbox::EnvironmentInfo& info() const override { return sound_->info(); }
  Result<sandbox::Observation> reset(const sandbox::Task& task) override {
    if (++calls_ % 37 == 0) return Failure{"a bad day"};
    return sound_->reset(task);
  }
  Result<sandbox::StepResult> step(const std::string& action) override {
    if (++calls_ % 37 == 0) return Failure{"a bad day"};
    return sound_->step(action);
  }
  std::optional<std::string> demonstrate(Rng& rng) override { return sound_->demonstrate(rng); }
  std::string sample_action(Rng& rng) override { return sound_->sample_action(rng); }

 private:
  std::unique_ptr<sandbox::Environment> sound_;
  int calls_ = 0;
};

TEST_F(DemonstrationsTest, AnEpisodeThatFailsIsShownAgain) {
  const std::string sound = write(30, {7, 256});
  environment_ = std::make_unique<Shaky>(std::move(environment_));
  EXPECT_EQ(write(30, {7, 256}), sound);
}

TEST_F(DemonstrationsTest, AnEnvironmentWithoutADemonstratorIsAUserError) {
  environment_ = std::make_unique<Undemonstrated>();
  try {
    write(5, {7, 256});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("undemonstrated failed: it shows nothing"),
              std::string::npos)
        << error.what();
  }
}

class NeverReady final : public sandbox::Environment {
 public:
  const sandbox::EnvironmentInfo& info() const override { return info_; }
  Result<sandbox::Observation> reset(const sandbox::Task&) override {
    return sandbox::Observation{"ice >"};
  }
  Result<sandbox::StepResult> step(const std::string&) override {
    sandbox::StepResult waits;
    waits.pending = true;
    return waits;
  }
  std::optional<std::string> demonstrate(Rng&) override { return "up\n"; }
  std::string sample_action(Rng&) override { return "up\n"; }

 private:
  sandbox::EnvironmentInfo info_{.name = "never_ready"};
};

TEST_F(DemonstrationsTest, AnEnvironmentThatStaysPendingIsAUserError) {
  environment_ = std::make_unique<NeverReady>();
  try {
    write(5, {.max_tokens = 256, .step_timeout = std::chrono::milliseconds(20)});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("never_ready was still pending after 0.02 s"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tailrace
