#include "cli/prepare/setup.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/inputs/load.h"
#include "cli/inputs/planned_model.h"
#include "cli/prepare/plan.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/text/tokenizer.h"
#include "reward/verifiers/program.h"
#include "sandbox/builtin/built_in.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// What check_inputs() says; empty: nothing.
UserError refusal(const RunOptions& options, const Registries& registries = built_in_registries()) {
  try {
    (void)check_inputs(place(resolve(options), registries.environments), registries);
  } catch (const UserError& error) {
    return error;
  }
  return UserError("");
}
std::string error_of_check(const RunOptions& options) { return refusal(options).what(); }

class RunSetupTest : public testing::Test {
 protected:
  RunSetupTest() {
    paths_.root = folder_ / "run";
    fs::create_directories(paths_.root);
    // Small, so that preparing is quick: none of these tests trains.
    options_.model.create = {.hidden_size = 32, .layers = 1, .heads = 2};
    options_.env.name = "frozen_grid";
    options_.rollout.engine.max_context_tokens = 128;
    options_.sft.demonstrations = 20;
  }

  void prepare(std::vector<StageFiles> rows = {}) {
    prepare_run(
        paths_, place(resolve(options_), built_in_registries().environments), built_in_registries(),
        [this](const std::string& line) { said_ = line; }, std::move(rows));
  }
  // Of a launch on the prepared run with options that were changed.
  std::string error_with(const std::function<void(RunOptions&)>& change) {
    RunOptions other = load_run_options(paths_.config(), {}, built_in_registries()).run.options;
    change(other);
    try {
      check_same_run(paths_, resolve(other), built_in_registries());
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  // A model folder with stories260K's tokenizer and config, the latter changed.
  void use_model(const std::function<void(nlohmann::json&)>& change) {
    const fs::path source = fs::path(TAILRACE_SOURCE_DIR) / "tests/data/models/stories260K";
    const fs::path model = folder_ / "model";
    fs::create_directories(model);
    fs::copy_file(source / "tokenizer.json", model / "tokenizer.json");
    auto config = nlohmann::json::parse(read_file(source / "config.json").value());
    change(config);
    std::ofstream(model / "config.json") << config.dump();
    options_.model.create = {};
    options_.model.path = model.string();
    options_.sft.demonstrations = 0;
  }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_.path();
  RunPaths paths_;
  RunOptions options_;
  std::string said_;
};

TEST_F(RunSetupTest, WritesConfigTokenizerAndDemonstrations) {
  prepare();
  EXPECT_TRUE(fs::exists(paths_.config()));
  EXPECT_EQ(text::load_tokenizer(paths_.tokenizer())->vocab_size(), 44);
  const std::string rows = read_file(paths_.demonstrations()).value();
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 20);
  EXPECT_NE(said_.find("20 demonstrations"), std::string::npos) << said_;
}

TEST_F(RunSetupTest, LeavesWhatIsThere) {
  prepare();
  const auto written = fs::last_write_time(paths_.demonstrations()) - std::chrono::hours(1);
  fs::last_write_time(paths_.demonstrations(), written);
  prepare();
  EXPECT_EQ(fs::last_write_time(paths_.demonstrations()), written) << "it is not made again";
}

TEST_F(RunSetupTest, TakesTheTokenizerOfTheModel) {
  use_model([](auto&) {});
  prepare();
  EXPECT_EQ(read_file(paths_.tokenizer() / "tokenizer.json").value(),
            read_file(fs::path(options_.model.path) / "tokenizer.json").value());
}

// Reading and encoding them takes the time of a launch.
TEST_F(RunSetupTest, TakesTheSupervisedRowsThatThePlanHasRead) {
  use_model([](auto&) {});
  options_.sft.data = (folder_ / "rows.jsonl").string();
  const auto write = [&](const char* ids) {
    std::ofstream(options_.sft.data) << "{\"input_ids\": [" << ids << "]}\n";
  };
  write("1, 2, 3");
  Plan plan = make_plan(place(resolve(options_), built_in_registries().environments), 0);
  // What is read after this would be these.
  write("4, 5, 6");
  prepare({std::move(plan.stages.at(0).files)});
  EXPECT_EQ(read_file(paths_.stage_rows("sft")).value(),
            "{\"input_ids\":[1,2,3],\"loss_mask\":[0,1,1]}\n");
  EXPECT_EQ(said_, "sft.data: 1 row, 3 tokens");
  // Without a plan that has them they are read here.
  fs::remove_all(paths_.root);
  fs::create_directories(paths_.root);
  prepare();
  EXPECT_EQ(read_file(paths_.stage_rows("sft")).value(),
            "{\"input_ids\":[4,5,6],\"loss_mask\":[0,1,1]}\n");
}

TEST_F(RunSetupTest, AVocabularyThatDoesNotFitTheTokenizerIsAUserError) {
  use_model([](auto& config) { config["vocab_size"] = 100; });
  const std::string error = error_of_check(options_);
  EXPECT_FALSE(fs::exists(paths_.config())) << "nothing is written before";
  EXPECT_NE(error.find("the tokenizer has 512 tokens, and the model's vocab_size is 100"),
            std::string::npos)
      << error;
}

TEST_F(RunSetupTest, AModelWithoutATokenizerIsAUserError) {
  use_model([](auto&) {});
  fs::remove(fs::path(options_.model.path) / "tokenizer.json");
  EXPECT_NE(error_of_check(options_).find("has no tokenizer.json"), std::string::npos);
  EXPECT_EQ(refusal(options_).key(), "model.path");
}

TEST_F(RunSetupTest, APolicyWithoutItsWeightsIsAUserError) {
  use_model([](auto&) {});
  try {
    check_policy(place(resolve(options_), sandbox::built_in_environments()));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("found neither model.safetensors"), std::string::npos)
        << error.what();
    EXPECT_EQ(error.key(), "model.path");
  }
  options_.model.path = std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K";
  EXPECT_NO_THROW(check_policy(place(resolve(options_), sandbox::built_in_environments())));
}

TEST_F(RunSetupTest, TheSchedulerTakesItsConfigFromSeveralSections) {
  use_model([](auto&) {});
  std::ofstream(folder_ / "prompts.jsonl") << "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n";
  options_.env.dataset = (folder_ / "prompts.jsonl").string();
  options_.step.prompts_per_step = 4;
  options_.step.group_size = 3;
  options_.run.steps = 10;
  options_.run.epochs = 5;
  options_.eval.prompts = 6;
  options_.scheduler.retries.lost = 7;
  // Everything else is the default on both sides.
  scheduler::Config expected;
  expected.datasets = {
      {.prompts_per_step = 4, .prompts_per_epoch = 2, .epochs = 5, .name = options_.env.name}};
  expected.group_size = 3;
  expected.steps = 10;
  expected.eval.prompts = 6;
  expected.retries.lost = 7;
  EXPECT_EQ(scheduler_config(resolve(options_)), expected);
}

TEST_F(RunSetupTest, EachDatasetHasItsQuotaItsLengthAndItsEpochs) {
  use_model([](auto&) {});
  std::ofstream(folder_ / "a.jsonl")
      << "{\"prompt\": \"a\", \"words\": [\"a\"]}\n{\"prompt\": \"b\", \"words\": [\"a\"]}\n";
  std::ofstream(folder_ / "b.jsonl") << "{\"q\": \"a\", \"words\": [\"a\"]}\n";
  const sandbox::EnvironmentSettings rules = {{"verifier", "text_rules"}};
  options_.datasets = {
      {.name = "a", .ratio = 2, .env = "text", .settings = rules, .dataset = folder_ / "a.jsonl"},
      {.name = "b",
       .ratio = 1,
       .env = "text",
       .settings = rules,
       .dataset = folder_ / "b.jsonl",
       .columns = {{"prompt", "q"}},
       .epochs = 3},
      {.name = "grid", .ratio = 1, .env = "frozen_grid"},
      {.name = "held",
       .ratio = 0,
       .env = "text",
       .settings = rules,
       .eval_dataset = folder_ / "b.jsonl",
       .columns = {{"prompt", "q"}}}};
  options_.env = {};
  options_.datasets[2].pool = "large";
  options_.step.prompts_per_step = 8;
  options_.run.epochs = 5;
  const std::vector<scheduler::DatasetConfig> expected = {
      {.prompts_per_step = 4, .prompts_per_epoch = 2, .epochs = 5, .name = "a"},
      {.prompts_per_step = 2, .prompts_per_epoch = 1, .epochs = 3, .name = "b"},
      {.prompts_per_step = 2, .prompts_per_epoch = 0, .epochs = 5, .pool = "large", .name = "grid"},
      {.prompts_per_step = 0, .prompts_per_epoch = 0, .epochs = 5, .name = "held"}};
  EXPECT_EQ(scheduler_config(resolve(options_)).datasets, expected);
  // A row that cannot be read is a mistake in the key of its dataset.
  std::ofstream(folder_ / "b.jsonl") << "{\"p\": \"a\"}\n";
  EXPECT_EQ(refusal(options_).key(), "datasets.b.dataset");
  options_.datasets[1].ratio = 0;
  options_.eval.prompts = 1;
  EXPECT_EQ(refusal(options_).key(), "datasets.held.eval_dataset");
}

TEST_F(RunSetupTest, SeveralDatasetsShareATokenizerAndTheDemonstrations) {
  prepare();
  const std::string alone = read_file(paths_.demonstrations()).value();
  fs::remove_all(paths_.root);
  fs::create_directories(paths_.root);
  options_.env = {};
  options_.datasets = {{.name = "grid", .ratio = 3, .env = "frozen_grid"},
                       {.name = "sums", .ratio = 1, .env = "calculator"}};
  prepare();
  const int64_t words = text::load_tokenizer(paths_.tokenizer())->vocab_size();
  EXPECT_EQ(words, planned_model(resolve(options_), sandbox::built_in_environments()).vocab_size);
  EXPECT_GE(words, 44 + 100) << "numbers up to 99";
  const std::string rows = read_file(paths_.demonstrations()).value();
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 20);
  // 15 of the grid, and the words of the first environment keep their ids.
  size_t end = 0;
  for (int i = 0; i < 15; ++i) end = alone.find('\n', end) + 1;
  EXPECT_EQ(rows.substr(0, end), alone.substr(0, end));
  EXPECT_NE(rows.substr(0, alone.size()), alone);
  // The run keeps them, and their order.
  EXPECT_NE(error_with([](RunOptions& o) {
              o.datasets[1].ratio = 2;
            }).find("datasets.sums.ratio is 1 there, 2 here"),
            std::string::npos);
  EXPECT_NE(error_with([](RunOptions& o) {
              std::swap(o.datasets[0], o.datasets[1]);
            }).find("a run with other datasets: grid, sums there, sums, grid here"),
            std::string::npos);
  EXPECT_NE(error_with([](RunOptions& o) {
              o.datasets.clear();
            }).find("grid, sums there, the section env here"),
            std::string::npos);
}

TEST_F(RunSetupTest, WhatTheSchedulerRefusesIsNamedBeforeTheRun) {
  options_.run.steps = 0;
  const std::string error = error_of_check(options_);
  EXPECT_EQ(error.find("run.steps is 0"), 0u) << error;
  EXPECT_EQ(refusal(options_).key(), "run.steps");
  EXPECT_NE(error.find("never end"), std::string::npos) << error;
  options_.run.steps = 1;
  EXPECT_EQ(error_of_check(options_), "");
}

TEST_F(RunSetupTest, FewerHeldOutPromptsThanAnEvaluationWantsIsAUserError) {
  use_model([](auto&) {});
  std::ofstream(folder_ / "held_out.jsonl")
      << "{\"prompt\": \"a\", \"words\": [\"a\"]}\n{\"prompt\": \"b\", \"words\": [\"a\"]}\n";
  options_.env.name = "text";
  options_.env.settings = {{"verifier", "text_rules"}};
  options_.env.dataset = options_.env.eval_dataset = (folder_ / "held_out.jsonl").string();
  options_.eval.prompts = 3;
  EXPECT_NE(error_of_check(options_).find("Try eval.prompts=2"), std::string::npos);
  EXPECT_EQ(refusal(options_).key(), "eval.prompts");
  options_.eval.prompts = 2;
  EXPECT_EQ(error_of_check(options_), "");
}

TEST_F(RunSetupTest, ALinePromptLongerThanTheContextIsNamedBeforeTheRun) {
  use_model([](auto&) {});
  // The blank line before it counts as a line of the file.
  const std::string longest(400, 'x');
  std::ofstream(folder_ / "prompts.jsonl")
      << "{\"prompt\": \"a\", \"words\": [\"a\"]}\n\n{\"prompt\": \"" << longest
      << "\", \"words\": [\"a\"]}\n";
  options_.env.name = "text";
  options_.env.settings = {{"verifier", "text_rules"}};
  options_.env.dataset = (folder_ / "prompts.jsonl").string();
  options_.eval.prompts = 0;
  const std::string error = error_of_check(options_);
  EXPECT_EQ(error.find(fmt::format("env.dataset: {}:3: the prompt has ", options_.env.dataset)), 0u)
      << error;
  EXPECT_EQ(refusal(options_).key(), "env.dataset");
  EXPECT_NE(error.find("rollout.max_context_tokens"), std::string::npos) << error;
}

TEST_F(RunSetupTest, ARowThatItsVerifierCannotScoreIsNamedBeforeTheRun) {
  use_model([](auto&) {});
  std::ofstream(folder_ / "prompts.jsonl")
      << "{\"prompt\": \"a\", \"answer\": 4}\n{\"prompt\": \"b\", \"answers\": 5}\n";
  options_.env.name = "text";
  options_.env.settings = {{"verifier", "number"}};
  options_.env.dataset = (folder_ / "prompts.jsonl").string();
  options_.eval.prompts = 0;
  EXPECT_EQ(error_of_check(options_),
            fmt::format("env.dataset: {}:2: there is no \"answer\" (for the verifier number)",
                        options_.env.dataset));
}

// On a machine where each program ends as `run` does.
Registries with_programs(RunProgram run) {
  Registries registries = built_in_registries();
  auto verifiers = std::make_shared<VerifierRegistry>();
  verifiers->add("program", "", make_program_verifier(std::move(run)));
  registries.verifiers = std::move(verifiers);
  return registries;
}

TEST_F(RunSetupTest, TimeThatIsTooShortForProgramsIsNamedBeforeTheRun) {
  use_model([](auto&) {});
  const Registries registries = with_programs(
      [](const sandbox::Program&, const sandbox::ProgramLimits&) { return sandbox::ProgramRun{}; });
  const auto row = [](size_t num_tests) {
    const nlohmann::json test = {{"stdin", "1"}, {"stdout", "1"}};
    return nlohmann::json{{"prompt", "a"}, {"tests", nlohmann::json(num_tests, test)}}.dump();
  };
  options_.env.name = "text";
  options_.env.settings = {{"verifier", "program"}};
  options_.env.dataset = (folder_ / "prompts.jsonl").string();
  options_.eval.prompts = 0;
  std::ofstream(options_.env.dataset) << row(1) << "\n" << row(4) << "\n";
  options_.scheduler.deadlines.verify = std::chrono::seconds(11);
  EXPECT_STREQ(refusal(options_, registries).what(), "");
  options_.scheduler.deadlines.verify = std::chrono::seconds(10);
  UserError error = refusal(options_, registries);
  EXPECT_EQ(error.key(), "env.dataset");
  EXPECT_EQ(error.what(),
            fmt::format("env.dataset: {}:2: its 4 tests may take 2 s each, 8 s together, and a "
                        "score has 7.3 s for them; give it at most 3, or raise "
                        "scheduler.verify_seconds to 11 (for the verifier program)",
                        options_.env.dataset));
  // Of no row, and also where there is none.
  options_.scheduler.deadlines.verify = std::chrono::seconds(2);
  error = refusal(options_, registries);
  EXPECT_EQ(error.key(), "scheduler.verify_seconds");
  EXPECT_STREQ(error.what(),
               "scheduler.verify_seconds is 2; in less than 3 the verifier program decides "
               "nothing.\n       Try scheduler.verify_seconds=60.");
}

// The scheduler has patience for the start of a program that scores.
TEST_F(RunSetupTest, AVerificationMayTakeAsLongAsItsProgramTakesToStart) {
  use_model([](auto&) {});
  const Time before = scheduler_config(resolve(options_)).deadlines.verify;
  options_.reward.start_timeout_s = 40;
  EXPECT_EQ(scheduler_config(resolve(options_)).deadlines.verify, before);
  options_.reward.command = {"python3", "reward.py"};
  EXPECT_EQ(scheduler_config(resolve(options_)).deadlines.verify,
            before + std::chrono::seconds(40));
}

TEST_F(RunSetupTest, AMachineThatTestsNoProgramsIsNoFaultOfARow) {
  use_model([](auto&) {});
  options_.env.name = "text";
  options_.env.settings = {{"verifier", "program"}};
  options_.env.dataset = (folder_ / "prompts.jsonl").string();
  options_.eval.prompts = 0;
  std::ofstream(options_.env.dataset)
      << R"({"prompt": "a", "tests": [{"stdin": "", "stdout": "1"}]})"
      << "\n";
  const UserError error =
      refusal(options_, with_programs([](const sandbox::Program&, const sandbox::ProgramLimits&) {
                return Failure{"this kernel forbids it"};
              }));
  EXPECT_EQ(error.key(), "env.dataset");
  EXPECT_STREQ(error.what(),
               "env.dataset: this machine cannot test programs: this kernel forbids it (for the "
               "verifier program)");
}

// Its files are never hidden.
class Open final : public Verifier {
 public:
  Result<Score> score(const std::string&, Time) const override { return Failure{"not asked"}; }
  Result<void> check_hidden(const fs::path& path) const override {
    return Failure{path.filename().string() + " is open"};
  }
};

// Supervised rows are answers too.
TEST_F(RunSetupTest, SupervisedRowsThatProgramsCouldReadAreNamedBeforeTheRun) {
  use_model([](auto&) {});
  std::ofstream(folder_ / "prompts.jsonl")
      << R"({"prompt": "a", "tests": [{"stdin": "", "stdout": "1"}]})"
      << "\n";
  const Registries registries = with_programs(
      [](const sandbox::Program&, const sandbox::ProgramLimits&) { return sandbox::ProgramRun{}; });
  options_.env.name = "text";
  options_.env.settings = {{"verifier", "program"}};
  options_.env.dataset = (folder_ / "prompts.jsonl").string();
  options_.eval.prompts = 0;
  options_.sft.eval_data = (folder_ / "held_out.jsonl").string();
  options_.sft.data = "/usr/share/x.jsonl";
  const UserError error = refusal(options_, registries);
  EXPECT_EQ(error.key(), "sft.data");
  EXPECT_STREQ(error.what(),
               "sft.data: /usr/share/x.jsonl lies below /usr, which programs under test can read, "
               "with the answers in it; put it elsewhere (for the verifier program)");
  std::swap(options_.sft.data, options_.sft.eval_data);
  EXPECT_EQ(refusal(options_, registries).key(), "sft.eval_data");
}

TEST_F(RunSetupTest, PromptsThatProgramsCouldReadAreNamedBeforeTheRun) {
  use_model([](auto&) {});
  auto verifiers = std::make_shared<VerifierRegistry>();
  verifiers->add("open", "", std::make_unique<Open>());
  Registries registries = built_in_registries();
  registries.verifiers = verifiers;
  std::ofstream(folder_ / "prompts.jsonl") << "{\"prompt\": \"a\"}\n";
  options_.env.name = "text";
  options_.env.settings = {{"verifier", "open"}};
  options_.env.dataset = (folder_ / "prompts.jsonl").string();
  options_.eval.prompts = 0;
  const UserError error = refusal(options_, registries);
  EXPECT_EQ(error.key(), "env.dataset");
  EXPECT_STREQ(error.what(), "env.dataset: prompts.jsonl is open (for the verifier open)");
}

// A clone below /usr/src is what many images have.
TEST_F(RunSetupTest, AnswersThatProgramsCouldReadAreNamedBeforeTheRun) {
  const Registries registries = with_programs(
      [](const sandbox::Program&, const sandbox::ProgramLimits&) { return sandbox::ProgramRun{}; });
  const auto refusal_of = [&](const fs::path& directory) -> std::string {
    try {
      check_run_is_hidden(directory, resolve(options_), registries);
    } catch (const UserError& error) {
      EXPECT_EQ(error.key(), "run.dir");
      return error.what();
    }
    return "";
  };
  options_.env.name = "text";
  options_.env.settings = {{"verifier", "program"}};
  EXPECT_EQ(refusal_of(folder_), "");
  EXPECT_EQ(
      refusal_of("/usr/src/tailrace/runs/a"),
      "run.dir: /usr/src/tailrace/runs/a lies below /usr, which programs under test can "
      "read, with the answers in it; put it elsewhere (for the verifier program).\n       Try "
      "--run-dir DIR.");
  options_.env.settings = {{"verifier", "number"}};
  EXPECT_EQ(refusal_of("/usr/src/tailrace/runs/a"), "");
}

// Who has put a chat template around the prompts would else not know why the model is confused.
TEST_F(RunSetupTest, ASpecialTokenInAPromptIsTextAndSaidToBe) {
  use_model([](auto&) {});
  std::ofstream(folder_ / "prompts.jsonl")
      << "{\"prompt\": \"a\", \"words\": [\"a\"]}\n{\"prompt\": \"<s>Once upon a time\", "
         "\"words\": [\"a\"]}\n";
  options_.env.name = "text";
  options_.env.settings = {{"verifier", "text_rules"}};
  options_.env.dataset = (folder_ / "prompts.jsonl").string();
  options_.eval.prompts = 0;
  const auto notes = check_inputs(place(resolve(options_), built_in_registries().environments),
                                  built_in_registries());
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].find("env.dataset: the prompt of line 2 holds the text of a special token"),
            0u)
      << notes[0];
}

// As Parquet pads schemas and arguments.
TEST_F(RunSetupTest, NullKeysThatAreLeftOutOfPromptsAreCounted) {
  use_model([](auto&) {});
  std::ofstream(folder_ / "chat.jinja")
      << "{{ tools | tojson }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
         "{% if add_generation_prompt %}assistant: {% endif %}";
  options_.chat.template_file = (folder_ / "chat.jinja").string();
  std::ofstream(folder_ / "prompts.jsonl") << R"({"prompt": "a", "words": ["a"]}
{"prompt": "b", "words": ["a"], "tools": [{"a": null, "b": {"c": null}}]})";
  options_.env.name = "text";
  options_.env.settings = {{"verifier", "text_rules"}};
  options_.env.dataset = (folder_ / "prompts.jsonl").string();
  options_.eval.prompts = 0;
  const auto notes = check_inputs(place(resolve(options_), built_in_registries().environments),
                                  built_in_registries());
  EXPECT_EQ(std::ranges::count(
                notes, "env.dataset: 2 keys that are null in arguments or tools are left out"),
            1)
      << fmt::format("{}", fmt::join(notes, "\n"));
}

TEST_F(RunSetupTest, ADatasetThatCannotBeReadIsAMistakeInItsKey) {
  use_model([](auto&) {});
  options_.env.name = "text";
  options_.env.settings = {{"verifier", "text_rules"}};
  options_.env.dataset = (folder_ / "prompts.jsonl").string();
  EXPECT_EQ(refusal(options_).key(), "env.dataset");
  std::ofstream(options_.env.dataset) << "{\"prompt\": \"a\", \"words\": [\"a\"]}\n";
  options_.env.eval_dataset = (folder_ / "held_out.jsonl").string();
  std::ofstream(options_.env.eval_dataset) << "{\"text\": \"a\"}\n";
  options_.eval.prompts = 1;
  EXPECT_EQ(error_of_check(options_).find(
                fmt::format("env.eval_dataset: {}:1: there is no", options_.env.eval_dataset)),
            0u)
      << error_of_check(options_);
  EXPECT_EQ(refusal(options_).key(), "env.eval_dataset");
}

TEST_F(RunSetupTest, TheResolvedConfigLoadsToTheSameRun) {
  // The directory is where a run lies, not what it is: a run may be moved.
  options_.run.dir = "somewhere";
  options_.run.name = "a name: with a colon";
  prepare();
  check_same_run(paths_, load_run_options(paths_.config(), {}, built_in_registries()).run,
                 built_in_registries());
  EXPECT_EQ(read_file(paths_.config()).value().find("somewhere"), std::string::npos);
}

TEST_F(RunSetupTest, AnotherConfigForTheSameDirectoryIsAUserError) {
  prepare();
  EXPECT_NE(
      error_with([](RunOptions& o) { o.optim.lr = 0.125; })
          .find("optim.lr is 1e-06 there, 0.125 here. A run that goes on keeps it; run.steps may "
                "grow, and what decides how and where the work is done may change."),
      std::string::npos);
  // Settings of environments follow from who scores.
  EXPECT_NE(error_with([](RunOptions& o) {
              o.env.settings = {{"verifier", "number"}};
              o.reward.command = {"cat"};
            }).find("reward.command is [] there, [cat] here"),
            std::string::npos);
  EXPECT_NE(error_with([](RunOptions& o) {
              o.env.settings = {{"verifier", "number"}};
              o.reward.parts = {{.name = "a"}, {.name = "b"}};
            }).find("reward.parts is [] there, [a, b] here"),
            std::string::npos);
  EXPECT_NE(error_with([](RunOptions& o) { o.env.name = "countdown"; }).find("env.name is "),
            std::string::npos);
  EXPECT_NE(error_with([](RunOptions& o) {
              o.model.create.hidden_size = 64;
            }).find("model.create.hidden_size is 32 there, 64 here"),
            std::string::npos);
}

// A stage that is added behind those that are done would never be trained.
TEST_F(RunSetupTest, ARunKeepsItsStagesAndMayGetMoreSteps) {
  options_.sft = {};
  options_.stages.resize(2);
  options_.stages[0].sft.demonstrations = 20;
  options_.stages[0].until = "2 epochs";
  options_.stages[1].until = "8 steps";
  options_.run.steps = 8;
  prepare();
  EXPECT_NE(error_with([](RunOptions& o) {
              o.stages.insert(o.stages.begin() + 1, o.stages[0]);
            }).find("stages is sft there, sft, sft_2 here. A run that goes on keeps it;"),
            std::string::npos);
  EXPECT_NE(error_with([](RunOptions& o) {
              o.stages[0].until = "3 epochs";
            }).find("stages[0].until is \"2 epochs\" there, \"3 epochs\" here"),
            std::string::npos);
  const auto with_steps = [&](const std::string& until, int64_t steps) {
    return error_with([&](RunOptions& o) {
      o.stages[1].until = until;
      o.run.steps = steps;
    });
  };
  EXPECT_EQ(with_steps("12 steps", 12), "");
  EXPECT_NE(with_steps("6 steps", 8).find("stages[1].until is \"8 steps\" there, \"6 steps\" here"),
            std::string::npos);
}

TEST_F(RunSetupTest, ARunWhoseBuildDidNotKnowAKeyIsNotGivenItsDefault) {
  prepare();
  const auto continued_without = [&](const std::string& line) -> std::string {
    std::string config = print_config(options_);
    const size_t at = config.find(line);
    EXPECT_NE(at, std::string::npos) << line;
    config.erase(at, line.size());
    std::ofstream(paths_.config()) << prove_config("a test", config);
    try {
      (void)load_stored_run(paths_, {}, built_in_registries());
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(continued_without(""), "");
  EXPECT_NE(continued_without("  compute: auto\n")
                .find("config.yaml: model.compute is missing: an older build"),
            std::string::npos);
  // Nothing reads it: the policy of the run is made, and has no chat template.
  EXPECT_EQ(continued_without("  style: auto\n"), "");
  // How work is done may be new, and so may a key whose default is what was done before it.
  EXPECT_EQ(continued_without("  level: info\n"), "");
  EXPECT_EQ(continued_without("  kv_cache_dtype: auto\n"), "");
}

// A golden list: who changes it has thought of the runs that are under way.
TEST_F(RunSetupTest, AContinuedRunMayChangeHowItsWorkIsDone) {
  prepare();
  EXPECT_EQ(error_with([](RunOptions& o) {
              o.run.steps += 1;
              o.run.name = "renamed";
              o.rollout_processes.workers = 3;
              o.rollout_processes.pools = {{.name = "small", .workers = 2},
                                           {.name = "far", .cluster = "west"}};
              o.clusters = {{.name = "west", .link_mbit = 100}};
              o.run.listen = "tcp://*:7117";
              o.run.keys = "/keys";
              o.train.threads = 2;
              o.eval.prompts = 5;
              o.save.interval_steps = 7;
              o.log.level = LogLevel::kDebug;
            }),
            "");
  EXPECT_NE(error_with([](RunOptions& o) { o.run.steps -= 1; }).find("run.steps may only grow"),
            std::string::npos);
}

}  // namespace
}  // namespace tailrace
