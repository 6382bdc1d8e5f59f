#include "cli/inputs/fitted_prompts.h"

#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/inputs/length.h"
#include "cli/inputs/load.h"
#include "cli/prepare/plan.h"
#include "cli/prepare/setup.h"
#include "cli/prepare/worker_configs.h"
#include "cli/roles/bundle.h"
#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_file.h"
#include "core/text/tokenizer.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("word{} ", i % 10);
  return text + "end";
}

std::string row(const std::string& prompt) {
  return nlohmann::json{{"prompt", prompt}, {"words", {"a"}}}.dump() + "\n";
}

class FittedPromptsTest : public testing::Test {
 protected:
  FittedPromptsTest() {
    paths_.root = folder_ / "run";
    fs::create_directories(paths_.root);
    const fs::path source = fs::path(TAILRACE_SOURCE_DIR) / "tests/data/models/stories260K";
    options_.model.path = source.string();
    options_.env.name = "text";
    options_.env.settings = {{"verifier", "text_rules"}};
    options_.env.dataset = (folder_ / "train.jsonl").string();
    options_.rollout.engine.max_context_tokens = 64;
    options_.rollout.max_prompt_tokens = 20;
    options_.rollout.max_turns = 1;
    options_.step.prompts_per_step = 2;
    options_.run.steps = 0;
    options_.run.epochs = 1;
    options_.eval.prompts = 0;
  }

  void write(const std::string& text, const char* name = "train.jsonl") {
    std::ofstream(folder_ / name) << text;
  }
  UserError refusal() {
    try {
      (void)check_inputs(placed(), registries_);
    } catch (const UserError& error) {
      return error;
    }
    return UserError("");
  }
  Plan checked(bool is_new = true) { return checked_plan(paths_, placed(), registries_, is_new); }
  void prepare(Plan plan) {
    prepare_run(
        paths_, placed(), registries_, [this](const std::string& line) { said_ += line + "\n"; },
        {}, std::move(plan.prompts));
  }
  // As a role of the run has them.
  ResolvedRun played() const { return load_stored_run(paths_, {}, built_in_registries()).run; }
  // A launch of the run alone, which finds what an earlier one has written.
  void go_on() {
    stored_ = played();
    options_ = stored_->options;
  }
  // A launch with a config.
  void start(const RunOptions& options) {
    stored_.reset();
    options_ = options;
  }
  PlacedRun placed() const { return place(given(), registries_.environments); }
  ResolvedRun given() const { return stored_ ? changed(*stored_, options_) : resolve(options_); }
  int64_t tokens_of(const std::string& row) const {
    const auto tokenizer = text::load_tokenizer(options_.model.path);
    const auto format = chat::PromptFormat::of(options_.chat, options_.model.path, *tokenizer);
    const nlohmann::json prompt = nlohmann::json::parse(row).at("prompt");
    const chat::Said said = prompt.is_string() ? chat::Said{.text = prompt.get<std::string>()}
                                               : chat::Said{.messages = prompt.dump()};
    return std::ssize(format.first(said).value());
  }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_.path();
  RunPaths paths_;
  RunOptions options_;
  std::optional<ResolvedRun> stored_;
  Registries registries_ = built_in_registries();
  std::string said_;
};

TEST_F(FittedPromptsTest, AllRowsThatAreTooLongAreNamedInOneMessage) {
  std::string text = row("a");
  for (int i = 0; i < 3; ++i) text += row(words(20 + i)) + row("b");
  write(text);
  const UserError error = refusal();
  const std::string what = error.what(), file = options_.env.dataset;
  EXPECT_EQ(error.key(), "env.dataset");
  EXPECT_NE(what.find(fmt::format("{}: 3 of 7 prompts are too long; at most 20 fit "
                                  "(rollout.max_context_tokens, rollout.max_prompt_tokens):",
                                  file)),
            std::string::npos)
      << what;
  for (const int line : {2, 4, 6})
    EXPECT_NE(what.find(fmt::format("\n         {}:{}: ", file, line)), std::string::npos) << what;
  EXPECT_EQ(what.find(fmt::format("{}:3: ", file)), std::string::npos) << what;
  EXPECT_NE(what.find("env.too_long=drop"), std::string::npos) << what;

  for (int i = 0; i < 30; ++i) text += row(words(50));
  write(text);
  EXPECT_NE(std::string(refusal().what()).find("and 13 more; the longest has "), std::string::npos)
      << refusal().what();
}

TEST_F(FittedPromptsTest, HeldOutRowsAreHeldToTheSame) {
  write(row("a"));
  write(row("a") + row(words(40)) + row("b"), "eval.jsonl");
  options_.env.eval_dataset = (folder_ / "eval.jsonl").string();
  options_.eval.prompts = 2;
  EXPECT_EQ(refusal().key(), "env.eval_dataset");
  EXPECT_NE(std::string(refusal().what()).find("eval.jsonl:2: the prompt has "), std::string::npos);
  options_.env.too_long = TooLong::kDrop;
  EXPECT_STREQ(refusal().what(), "");
  options_.eval.prompts = 3;
  EXPECT_NE(std::string(refusal().what()).find("has 2 rows that fit"), std::string::npos)
      << refusal().what();
}

TEST_F(FittedPromptsTest, RowsThatAreDroppedAreNoPromptsOfTheRun) {
  write(row("a") + row(words(40)) + row("b") + row("c") + row(words(60)));
  options_.env.too_long = TooLong::kDrop;
  Plan plan = checked();
  EXPECT_EQ(plan.steps, 2) << "two of three prompts and one of one";
  EXPECT_NE(format_plan(plan, given())
                .find("env.dataset: 3 prompts; 2 too long and dropped: "
                      "lines 2 ("),
            std::string::npos)
      << format_plan(plan, given());
  prepare(std::move(plan));
  EXPECT_NE(said_.find("2 too long and dropped: lines 2 ("), std::string::npos) << said_;

  const ResolvedRun run = played();
  EXPECT_EQ(prompts_of_epoch(run), std::vector<int64_t>{3});
  EXPECT_EQ(scheduler_config(run).datasets[0].prompts_per_epoch, 3);
  const RowsFile rows = rows_of(run.datasets[0]);
  EXPECT_EQ(read_file(rows.file).value(), row("a") + row("b") + row("c"));
  EXPECT_EQ(rollout_config(place(run, registries_.environments), {}, {}).datasets[0].rows,
            rows.file);
  const std::vector<PromptFit> fits = read_prompt_fits(paths_);
  ASSERT_EQ(fits.size(), 1u);
  ASSERT_EQ(fits[0].dropped.size(), 2u);
  EXPECT_EQ(fits[0].dropped[0].line, 2);
  EXPECT_EQ(fits[0].dropped[1].line, 5);
  EXPECT_EQ(fits[0].rows, 3);
}

TEST_F(FittedPromptsTest, ARunThatGoesOnFindsTheSameRows) {
  write(row("a") + row(words(40)) + row("b"));
  options_.env.too_long = TooLong::kDrop;
  prepare(checked());
  const fs::path file = rows_of(played().datasets[0]).file;
  const auto written = fs::last_write_time(file) - std::chrono::hours(1);
  fs::last_write_time(file, written);

  go_on();
  Plan plan = checked(/*is_new=*/false);
  EXPECT_EQ(plan.steps, 1);
  EXPECT_NE(format_plan(plan, given()).find("1 too long and dropped: line 2 ("), std::string::npos);
  prepare(std::move(plan));
  EXPECT_EQ(fs::last_write_time(file), written) << "it is not made again";
  // Nobody changes it in between, either.
  std::ofstream(file, std::ios::app) << row("c");
  EXPECT_THROW(prepare(checked(/*is_new=*/false)), UserError);
}

// Each file of RUN/prompts by its name, and never as if the run's own data were at fault.
TEST_F(FittedPromptsTest, WhatBecameOfTheRowsIsKeptAsTheRowsAre) {
  write(row("a") + row(words(40)) + row("b"));
  for (const TooLong too_long : {TooLong::kDrop, TooLong::kCut}) {
    options_.env.too_long = too_long;
    paths_.root = folder_ / fmt::format("run-{}", name_of(too_long));
    fs::create_directories(paths_.root);
    prepare(checked());
    const RunOptions fresh = options_;
    const auto refused = [&](const fs::path& file, const std::string& how) {
      // As 'launch --run-dir' has them, and 'launch CONFIG --run-dir'.
      for (const bool with_config : {false, true}) {
        try {
          if (with_config)
            start(fresh);
          else
            go_on();
          (void)checked(/*is_new=*/false);
          ADD_FAILURE() << file << " passed";
        } catch (const UserError& error) {
          EXPECT_EQ(std::string(error.what()).find(file.string() + ": it " + how), 0u)
              << error.what();
        }
      }
      start(fresh);
    };
    for (const char* name : {"too_long.json", "0-train.jsonl"}) {
      const fs::path file = paths_.prompts() / name;
      const std::string text = read_file(file).value();
      std::string edited = text;
      // Another number of tokens, or a prompt that is too long.
      if (file.extension() == ".json")
        edited.replace(edited.find("\"rows\": "), 9, "\"rows\": 1");
      else
        edited += row(words(40));
      std::ofstream(file) << edited;
      refused(file, "has changed since the run began");
      std::ofstream(file) << text;
      go_on();
      EXPECT_NO_THROW(prepare(checked(/*is_new=*/false)));
      start(fresh);
    }
    const fs::path file = paths_.prompts() / "too_long.json";
    fs::remove(file);
    refused(file, "is gone since the run began");
    start(fresh);
  }
}

// inputs.json notes what became of the rows by their numbers: a run goes on with a build whose
// sentences about them are others.
TEST_F(FittedPromptsTest, TheirProofIsOfFieldsAlone) {
  write(row("a") + row(words(40)) + row("b"));
  options_.env.too_long = TooLong::kDrop;
  prepare(checked());
  const PromptFit fit = read_prompt_fits(paths_).at(0);
  EXPECT_EQ(read_proved_json(paths_.inputs()).at("env.dataset/fit"),
            digest_of(fmt::format("{}\n2\ndropped 2,{},0\ncut", fit.file, fit.dropped[0].tokens)));
}

// Held-out rows that are first read when the run goes on are told beside the others.
TEST_F(FittedPromptsTest, WhatBecomesOfMoreRowsIsAddedLater) {
  write(row("a") + row(words(40)) + row("b"));
  write(row("c") + row(words(40)), "eval.jsonl");
  options_.env.too_long = TooLong::kDrop;
  options_.env.eval_dataset = (folder_ / "eval.jsonl").string();
  prepare(checked());
  EXPECT_EQ(read_prompt_fits(paths_).size(), 1u);
  go_on();
  options_.eval.prompts = 1;
  prepare(checked(/*is_new=*/false));
  EXPECT_EQ(read_prompt_fits(paths_).size(), 2u);
  EXPECT_NO_THROW(prepare(checked(/*is_new=*/false)));
}

// What a launch would say that was killed before it had written the rows.
TEST_F(FittedPromptsTest, RowsThatAreNotThereAreWrittenAgain) {
  write(row("a") + row(words(40)) + row("b"));
  options_.env.too_long = TooLong::kDrop;
  prepare(checked());
  const fs::path file = rows_of(played().datasets[0]).file;
  const std::string rows = read_file(file).value();
  fs::remove(file);
  go_on();
  Plan plan = checked(/*is_new=*/false);
  ASSERT_EQ(plan.prompt_fits.size(), 1u) << "it is told once";
  EXPECT_EQ(plan.prompt_fits[0].key, "env.dataset");
  prepare(std::move(plan));
  EXPECT_EQ(read_file(file).value(), rows);
}

TEST_F(FittedPromptsTest, OfARowThatIsCutTheEndStays) {
  write(row("a") + row(words(40)));
  options_.env.too_long = TooLong::kCut;
  prepare(checked());
  const std::vector<text::DatasetRow> rows = text::read_dataset(rows_of(played().datasets[0]).file);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].json + "\n", row("a")) << "byte for byte";
  const auto prompt = nlohmann::json::parse(rows[1].json).at("prompt").get<std::string>();
  EXPECT_TRUE(words(40).ends_with(prompt)) << prompt;
  EXPECT_LE(tokens_of(rows[1].json), 20);
  EXPECT_GE(tokens_of(rows[1].json), 18) << "no more than has to go";
  EXPECT_EQ(read_prompt_fits(paths_)[0].cut.size(), 1u);
}

// Without a limit of prompts, too: an answer of one token says nothing.
TEST_F(FittedPromptsTest, WhatIsCutLeavesRoomForAWholeAnswer) {
  write(row("a") + row(words(60)));
  options_.env.too_long = TooLong::kCut;
  options_.rollout.max_prompt_tokens = 0;
  for (const auto& [action, most] : {std::pair{24, 40}, {60, 32}}) {
    options_.rollout.max_action_tokens = action;
    paths_.root = folder_ / fmt::format("run{}", action);
    fs::create_directories(paths_.root);
    prepare(checked());
    const auto rows = text::read_dataset(rows_of(played().datasets[0]).file);
    EXPECT_LE(tokens_of(rows.at(1).json), most) << action;
    EXPECT_GE(tokens_of(rows.at(1).json), most - 2) << action;
  }
}

TEST_F(FittedPromptsTest, PromptsBehindWhichNoWholeAnswerFitsAreTold) {
  write(row("a") + row(words(8)));
  options_.rollout.max_action_tokens = 40;
  options_.rollout.max_prompt_tokens = 0;
  const auto notes = [&] {
    std::string all;
    for (const std::string& note : check_inputs(placed(), registries_)) all += note + "\n";
    return all;
  };
  EXPECT_NE(notes().find("env.dataset: behind 1 prompt the context has no room for an answer"),
            std::string::npos)
      << notes();
  options_.rollout.max_action_tokens = 20;
  EXPECT_EQ(notes(), "");
}

TEST_F(FittedPromptsTest, CharactersStayWhole) {
  std::string prompt;
  for (int i = 0; i < 40; ++i) prompt += "\xE2\x82\xAC\xC3\xA4";
  write(row(prompt));
  options_.env.too_long = TooLong::kCut;
  prepare(checked());
  const auto rows = text::read_dataset(rows_of(played().datasets[0]).file);
  const auto cut = nlohmann::json::parse(rows[0].json).at("prompt").get<std::string>();
  EXPECT_TRUE(prompt.ends_with(cut));
  EXPECT_TRUE(cut.starts_with("\xE2") || cut.starts_with("\xC3")) << cut;
}

// Who said what stays: of a conversation the longest message of the user's is cut.
TEST_F(FittedPromptsTest, AConversationStaysOne) {
  std::ofstream(folder_ / "chat.jinja")
      << "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
         "{% if add_generation_prompt %}a:{% endif %}";
  options_.chat.template_file = folder_ / "chat.jinja";
  options_.rollout.max_prompt_tokens = 50;
  const nlohmann::ordered_json messages = {{{"role", "system"}, {"content", "be kind"}},
                                           {{"role", "user"}, {"content", words(60)}},
                                           {{"role", "assistant"}, {"content", "yes"}},
                                           {{"role", "user"}, {"content", "and now"}}};
  write(nlohmann::ordered_json{{"prompt", messages}, {"words", {"a"}}}.dump() + "\n");
  options_.env.too_long = TooLong::kCut;
  prepare(checked());
  const auto rows = text::read_dataset(rows_of(played().datasets[0]).file);
  const auto cut = nlohmann::json::parse(rows[0].json).at("prompt");
  ASSERT_EQ(cut.size(), 4u);
  for (const size_t i : {0u, 2u, 3u}) EXPECT_EQ(cut[i], messages[i]);
  EXPECT_EQ(cut[1].at("role"), "user");
  const auto text = cut[1].at("content").get<std::string>();
  EXPECT_TRUE(words(60).ends_with(text)) << text;
  EXPECT_FALSE(text.empty());
  EXPECT_LE(tokens_of(rows[0].json), 50);
}

TEST_F(FittedPromptsTest, WhatNoCutHelpsIsRefusedByItsRows) {
  std::ofstream(folder_ / "chat.jinja")
      << "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}a:";
  options_.chat.template_file = folder_ / "chat.jinja";
  const nlohmann::ordered_json messages = {{{"role", "system"}, {"content", words(60)}},
                                           {{"role", "user"}, {"content", "and now"}}};
  write(nlohmann::ordered_json{{"prompt", messages}, {"words", {"a"}}}.dump() + "\n");
  options_.env.too_long = TooLong::kCut;
  const std::string what = refusal().what();
  EXPECT_NE(what.find("train.jsonl:1: the prompt has "), std::string::npos) << what;
  EXPECT_NE(what.find("no cut of its own text helps"), std::string::npos) << what;
  EXPECT_NE(what.find("env.too_long=drop"), std::string::npos) << what;
}

// No episode takes a prompt of more bytes (kMostObservationBytes); it is too long like any other.
TEST_F(FittedPromptsTest, APromptThatIsTooLongToBeEncodedIsATooLongPrompt) {
  const std::string huge(3 << 20, ' ');
  write(row("a") + row(huge) + row(words(40)) + row("b") + row(huge + "end"));
  std::string what = refusal().what();
  for (const char* part :
       {"3 of 5 prompts are too long; at most 20 fit (rollout.max_context_tokens, "
        "rollout.max_prompt_tokens), and no prompt of more than 1048576 bytes is encoded:",
        "train.jsonl:2: 3145728 bytes", "train.jsonl:3: ", "train.jsonl:5: 3145731 bytes"})
    EXPECT_NE(what.find(part), std::string::npos) << what;
  options_.env.too_long = TooLong::kDrop;
  Plan plan = checked();
  EXPECT_EQ(plan.steps, 1);
  prepare(std::move(plan));
  EXPECT_NE(said_.find("3 too long and dropped: lines 2 (3145728 bytes), 3 ("), std::string::npos)
      << said_;
  const std::vector<PromptFit> fits = read_prompt_fits(paths_);
  ASSERT_EQ(fits.size(), 1u);
  EXPECT_EQ(fits[0].dropped.back(), (LongRow{.line = 5, .tokens = 0, .bytes = 3145731}));

  fs::remove_all(paths_.root);
  fs::create_directories(paths_.root);
  options_.env.too_long = TooLong::kCut;
  prepare(checked());
  const auto rows = text::read_dataset(rows_of(played().datasets[0]).file);
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_LE(tokens_of(rows[4].json), 20);
  EXPECT_TRUE(nlohmann::json::parse(rows[4].json).at("prompt").get<std::string>().ends_with("end"));

  write(row(huge) + row(huge + "end"));
  options_.env.too_long = TooLong::kDrop;
  what = refusal().what();
  EXPECT_NE(what.find("the shortest has 3145728 bytes"), std::string::npos) << what;
}

// An attempt at such a row would fail at its end, whatever the policy answers.
TEST_F(FittedPromptsTest, RowsThatAreTooLongToBeScoredAreNamedWithThoseThatAreTooLong) {
  const auto long_row = [](int64_t bytes) {
    return nlohmann::json{{"prompt", "a"},
                          {"words", {"a"}},
                          {"answer", std::string(static_cast<size_t>(bytes), 'x')}}
               .dump() +
           "\n";
  };
  write(row("a") + long_row(int64_t{3} << 20) + row("b"));
  EXPECT_STREQ(refusal().what(), "");
  write(row("a") + long_row(int64_t{5} << 20) + row("b"));
  std::string what = refusal().what();
  EXPECT_EQ(refusal().key(), "env.dataset");
  EXPECT_NE(what.find("train.jsonl:2: the row is too long to be scored: the evidence has 52"),
            std::string::npos)
      << what;
  EXPECT_NE(what.find("at most 4194304 are taken"), std::string::npos) << what;
  write(row("a") + long_row(int64_t{5} << 20) + row(words(40)) + long_row(int64_t{6} << 20));
  what = refusal().what();
  for (const char* part :
       {"train.jsonl:3: the prompt has ", "2 of 4 rows are too long to be scored:\n         ",
        "train.jsonl:2: the evidence has 52", "train.jsonl:4: the evidence has 62"})
    EXPECT_NE(what.find(part), std::string::npos) << what;
}

TEST_F(FittedPromptsTest, OneLaunchTellsOfAllFiles) {
  write(row("a") + row(words(40)));
  write(row(words(50)) + row("b"), "eval.jsonl");
  options_.env.eval_dataset = (folder_ / "eval.jsonl").string();
  options_.eval.prompts = 2;
  for (const TooLong too_long : {TooLong::kRefuse, TooLong::kCut}) {
    options_.env.too_long = too_long;
    if (too_long == TooLong::kCut) {  // which helps neither
      std::ofstream(folder_ / "chat.jinja") << words(60) << "{{ messages[-1].content }}";
      options_.chat.template_file = folder_ / "chat.jinja";
    }
    std::string what;
    try {
      (void)checked();
    } catch (const UserError& error) {
      what = error.what();
      EXPECT_EQ(error.key(), "env.dataset");
    }
    EXPECT_NE(what.find("env.dataset: "), std::string::npos) << what;
    EXPECT_NE(what.find("\n       env.eval_dataset: "), std::string::npos) << what;
    EXPECT_NE(what.find("train.jsonl:2: "), std::string::npos) << what;
    EXPECT_NE(what.find("eval.jsonl:1: "), std::string::npos) << what;
  }
}

TEST_F(FittedPromptsTest, ADatasetOfWhichNothingIsLeftIsRefused) {
  write(row(words(40)) + row(words(50)));
  options_.env.too_long = TooLong::kDrop;
  EXPECT_NE(std::string(refusal().what()).find("env.too_long=drop leaves none of its 2 prompts"),
            std::string::npos)
      << refusal().what();
}

// The columns of the file are told by their names once.
TEST_F(FittedPromptsTest, ColumnsWithOtherNamesAreCutAsWell) {
  write(nlohmann::json{{"question", words(40)}, {"words", {"a"}}}.dump() + "\n");
  options_.env.columns = {{"prompt", "question"}};
  options_.env.too_long = TooLong::kCut;
  prepare(checked());
  const ResolvedRun run = played();
  const RolloutDataset dataset =
      rollout_config(place(run, registries_.environments), {}, {}).datasets[0];
  const auto rows = text::read_dataset(dataset.rows, dataset.columns);
  EXPECT_LE(tokens_of(rows[0].json), 20);
}

// A worker of another host has the rows where those of this one have them.
TEST_F(FittedPromptsTest, TheBundleHoldsTheRowsThatTheRunUses) {
  write(row("a") + row(words(40)) + row("b"));
  options_.env.too_long = TooLong::kDrop;
  prepare(checked());
  const ResolvedRun run = played();
  const Bundle bundle(paths_, run);
  const auto found = bundle.find("files/prompts/0-train.jsonl");
  ASSERT_TRUE(found);
  EXPECT_EQ(read_file(found->path).value(), row("a") + row("b"));
}

TEST_F(FittedPromptsTest, OfAPolicyThatIsMadeNothingIsMeasured) {
  write(row("a"));
  std::ofstream(folder_ / "run.yaml") << fmt::format(
      "model: {{create: {{hidden_size: 32, layers: 1, heads: 2}}}}\n"
      "env: {{name: text, dataset: {}, too_long: drop, settings: {{verifier: text_rules}}}}\n",
      options_.env.dataset);
  try {
    load_run_options(folder_ / "run.yaml", {}, registries_);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("env.too_long has no effect"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tailrace
