// The commands as a person or a script meets them: the real binary, its output and its messages.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "core/base/file.h"
#include "core/model/safetensors.h"
#include "kernels/base/isa.h"
#include "sandbox/launcher/launcher.h"
#include "tests/cli/commands/stories.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kGolden = kData + "/golden/llama3-untied-f32";

TEST(Commands, EachHasHelpWithAnExample) {
  for (const char* command :
       {"model check", "model tokenize", "model score", "model generate", "model merge", "eval",
        "report", "status", "doctor", "bench", "launch", "worker", "worker keys new", "env",
        "env list", "env check", "env play", "import"}) {
    auto result = run_binary(std::string(command) + " --help");
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_NE(result.out.find("\nExample"), std::string::npos)
        << command << ": " << result.out << result.err;
  }
}

// The names under the headings of a command's --help, in order.
std::vector<std::string> commands_in_help(const std::string& command) {
  std::istringstream help(run_binary(command + " --help").out);
  std::vector<std::string> names;
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    if (line.ends_with(':')) listed = line == "Subcommands:" || line == "For developers:";
    std::istringstream words(line);
    std::string name;
    if (listed && line.starts_with("  ") && words >> name) names.push_back(name);
  }
  return names;
}

// The table begins each row with names, as `env list` or `report RUN`.
TEST(Commands, OfTheReadmeAreThoseOfHelp) {
  std::vector<std::string> known;
  for (const std::string& name : commands_in_help("")) {
    const std::vector<std::string> inner = commands_in_help(name);
    // The one that has commands and acts by itself too.
    if (inner.empty() || name == "worker") known.push_back(name);
    for (const std::string& command : inner) known.push_back(name + " " + command);
  }
  ASSERT_GT(known.size(), 20u);
  const std::string readme = read_file(TAILRACE_SOURCE_DIR "/README.md").value();
  std::istringstream rows(readme.substr(readme.find("\n## Commands\n")));
  std::vector<std::string> told;
  for (std::string row; std::getline(rows, row) && row != "## On a GPU";) {
    if (!row.starts_with("| `")) continue;
    const std::string cell = row.substr(0, row.find(" | "));
    const size_t before = told.size();
    for (size_t at = cell.find('`'); at != cell.npos;
         at = cell.find('`', cell.find('`', at + 1) + 1)) {
      std::istringstream words(cell.substr(at + 1));
      std::string name, word;
      words >> name >> word;
      for (std::string* text : {&name, &word}) *text = text->substr(0, text->find('`'));
      const bool has_inner = std::ranges::find(known, name + " " + word) != known.end();
      told.push_back(has_inner ? name + " " + word : name);
    }
    EXPECT_GT(told.size(), before) << row;
  }
  std::ranges::sort(told);
  std::ranges::sort(known);
  EXPECT_EQ(told, known);
}

TEST(Commands, AnOldNameAnswersWithTheNewOne) {
  const auto told = [](const std::string& words) {
    const auto result = run_binary(words);
    EXPECT_EQ(result.exit_code, 2) << words;
    EXPECT_EQ(result.out, "") << words;
    return result.err;
  };
  for (const std::string name : {"score", "tokenize", "generate", "merge"})
    EXPECT_EQ(told(name + " --model X"), "error: 'tailrace " + name + "' is 'tailrace model " +
                                             name + "' now: tailrace model " + name +
                                             " --model X\n");
  EXPECT_EQ(told("keys new box7"),
            "error: 'tailrace keys' is 'tailrace worker keys' now: tailrace worker keys new "
            "box7\n");
  const std::string now = "error: 'tailrace trace' is 'tailrace status' now: tailrace status ";
  EXPECT_EQ(told("trace RUN prompt=1 member=2 --json"),
            now + "RUN --sample prompt=1 member=2 --json\n");
  EXPECT_EQ(told("trace --json RUN 'prompt=1 member=2'"),
            now + "RUN --sample 'prompt=1 member=2' --json\n");
  EXPECT_EQ(told("trace RUN"), now + "RUN --sample KEY\n");
  EXPECT_EQ(told("trace"), now + "RUN --sample KEY\n");
  EXPECT_EQ(told("trace --help"), now + "--help\n");
}

TEST(Commands, ExplainAWrongCall) {
  auto result = run_binary("scoer");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err.find("error: there is no command 'scoer'; did you mean 'model score'? "
                            "Commands: launch, "),
            0u)
      << result.err;
  result = run_binary("model score");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err, "error: --model is required\n       Run 'tailrace model score --help'.\n");
}

TEST(Commands, ModelCheckSaysWhatAFolderIsOrWhatIsWrongWithIt) {
  const auto whole = run_binary("model check " + kStories);
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_NE(whole.out.find("LlamaForCausalLM, 5 layers of 64"), std::string::npos) << whole.out;
  EXPECT_NE(whole.out.find("260032 in f32"), std::string::npos) << whole.out;
  EXPECT_NE(whole.out.find("512 ids; a text ends with </s>"), std::string::npos) << whole.out;
  EXPECT_NE(whole.out.find("no template"), std::string::npos) << whole.out;
  // All that is wrong is told together.
  TemporaryDirectory folder;
  for (const char* name : {"model.safetensors", "config.json"})
    fs::copy(fs::path(kStories) / name, folder.path() / name);
  const std::string model = folder.path().string();
  json config = json::parse(read_file(kStories + "/config.json").value());
  config["intermediate_size"] = 96;
  folder.write("config.json", config.dump());
  const auto broken = run_binary("model check " + model);
  EXPECT_EQ(broken.exit_code, 2) << broken.out;
  EXPECT_EQ(broken.out, "");
  EXPECT_EQ(broken.err.find("error: " + model + "/model.safetensors: tensor"), 0u) << broken.err;
  EXPECT_NE(broken.err.find(model + "/tokenizer.json: not found"), std::string::npos) << broken.err;
  config["architectures"] = {"GPT2LMHeadModel"};
  folder.write("config.json", config.dump());
  const auto other = run_binary("model check " + model);
  EXPECT_EQ(other.exit_code, 2) << other.out;
  EXPECT_NE(other.err.find("the architecture GPT2LMHeadModel is not supported; accepted: "),
            std::string::npos)
      << other.err;
}

// As strtol reads them, it would be 8.
TEST(Flags, ALeadingZeroIsNoOctalNumber) {
  const auto result = run_binary("model generate --model " + kStories +
                                 " --prompt a --json --max-new-tokens 1 --samples 010");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 10);
}

// Each is found by another folder, which knows the key; launch adds the line.
TEST(Launch, NamesTheLineOfTheKeyWhoseFileIsWrong) {
  TemporaryDirectory folder;
  const std::string rows = folder.write("rows.jsonl", "{\"input_ids\": [1, 9999]}\n").string();
  const std::string prompts = folder.write("prompts.jsonl", "{\"prompt\": \"a\"}\n[]\n").string();
  const std::string config =
      folder
          .write("a.yaml", "run: {steps: 1}\nmodel:\n  path: " + kStories +
                               "\nenv:\n  name: text\n  dataset: prompts.jsonl\n"
                               "  settings: {verifier: text_rules}\n")
          .string();
  auto error = [&](const std::string& overrides) {
    auto result = run_binary("launch --dry-run " + config + " " + overrides);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_EQ(error("").find("error: " + config + ":6: env.dataset: " + prompts + ":2: the line is"),
            0u)
      << error("");
  EXPECT_EQ(error("sft.data=" + rows)
                .find("error: override sft.data=" + rows + ": sft.data: " + rows + ":1: input_ids"),
            0u)
      << error("sft.data=" + rows);
  EXPECT_EQ(
      error("rollout.kv_cache_blocks=1")
          .find("error: override rollout.kv_cache_blocks=1: rollout.kv_cache_blocks is 1, but"),
      0u)
      << error("rollout.kv_cache_blocks=1");
  EXPECT_EQ(error("model.path=" + folder.path().string())
                .find("error: override model.path=" + folder.path().string() + ": model.path: "),
            0u);
}

// More samples at their longest than any machine of today holds.
TEST(Launch, MemoryThatIsNotThereIsAnErrorThatForcePasses) {
  TemporaryDirectory folder;
  const std::string config =
      folder
          .write(
              "a.yaml",
              "run: {steps: 1}\nmodel: {create: {hidden_size: 64, layers: 2, heads: 4, kv_heads: "
              "2, max_positions: 65536}}\nenv: {name: frozen_grid}\nrollout: {prompts_per_step: "
              "1000000, group_size: "
              "8, max_context_tokens: 65536}\ntrain: {microbatch_tokens: 65536}\n")
          .string();
  const auto refused = run_binary("launch " + config + " --run-dir /proc/none");
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  for (const char* part : {"error: the run may need ", " are free now. The largest parts: ",
                           "or begin all the same with --force."})
    EXPECT_NE(refused.err.find(part), std::string::npos) << part << "\n" << refused.err;
  // What is refused next is the folder.
  const auto forced = run_binary("launch " + config + " --run-dir /proc/none --force");
  EXPECT_EQ(forced.err.find("of memory"), std::string::npos) << forced.err;
  EXPECT_NE(forced.err.find("/proc/none"), std::string::npos) << forced.err;
  // A plan may be about another machine.
  const auto dry = run_binary("launch --dry-run " + config);
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  EXPECT_NE(dry.out.find("are free, and a launch here wants --force"), std::string::npos)
      << dry.out;
}

TEST(Commands, SayThatTheOutputCannotBeWritten) {
  auto result = run_binary("doctor --json > /dev/full");
  // The later redirection of the test wins in the shell, so the command is wrapped.
  TemporaryDirectory folder;
  std::string err = (folder / "err").string();
  int status =
      std::system((std::string(TAILRACE_BINARY) + " doctor --json > /dev/full 2> " + err).c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(read_file(err).value(),
            "error: cannot write the output: No space left on device; free some space or use "
            "another disk\n");
}

TEST(Commands, SayThatARowThatWasFlushedCannotBeWritten) {
  TemporaryDirectory folder;
  folder.write("in", "{\"text\": \"a\"}\n");
  const std::string at = folder.path().string();
  const int status =
      std::system(fmt::format("{} model tokenize --tokenizer {} < {}/in > /dev/full 2> {}/err",
                              TAILRACE_BINARY, kStories, at, at)
                      .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_NE(read_file(folder / "err").value().find("cannot write"), std::string::npos);
}

// A copy of the stories model whose config says something else.
void write_stories(const TemporaryDirectory& folder, const std::string& key, const json& value) {
  for (const char* name : {"model.safetensors", "tokenizer.json"})
    std::filesystem::copy(std::filesystem::path(kStories) / name, folder.path() / name);
  json config = json::parse(read_file(kStories + "/config.json").value());
  config[key] = value;
  folder.write("config.json", config.dump());
}

TEST(Commands, NameTheTensorWhenTheConfigHasOtherSizes) {
  TemporaryDirectory folder;
  write_stories(folder, "intermediate_size", 1 << 24);  // 64 GB of weights, if it were true
  const std::string model = folder.path().string();
  for (const std::string& command :
       {"model score --model " + model, "eval --env countdown --model " + model,
        "model generate --prompt a --model " + model}) {
    const auto result = run_binary(command, "{\"input_ids\": [1, 403]}");
    EXPECT_EQ(result.exit_code, 2) << command;
    EXPECT_NE(result.err.find(model +
                              "/model.safetensors: tensor "
                              "'model.layers.0.mlp.gate_proj.weight' has the shape [172, 64]; the "
                              "config asks for [16777216, 64]"),
              std::string::npos)
        << command << "\n"
        << result.err;
  }
}

// A table of all positions that a file claims would take half a GB.
TEST(Commands, TakeMemoryForThePositionsThatTheyUse) {
  TemporaryDirectory folder;
  write_stories(folder, "max_position_embeddings", 1 << 24);
  const std::string model = folder.path().string();
  const auto peak_kb = [] {
    rusage usage{};
    ::getrusage(RUSAGE_CHILDREN, &usage);
    return usage.ru_maxrss;
  };
  // Of whatever ran before too.
  const auto bound = std::max<int64_t>(peak_kb(), 400 << 10);
  const std::string rows =
      "{\"input_ids\": [1, 403, 407]}\n{\"input_ids\": [1, 403, 407, 261, 378]}";
  const auto scored = run_binary("model score --model " + model, rows);
  EXPECT_EQ(scored.exit_code, 0) << scored.err;
  EXPECT_EQ(scored.out, run_binary("model score --model " + kStories, rows).out);
  const auto evaluated = run_binary(
      "eval --env countdown --episodes 2 --samples 1 --max-context-tokens 256 --model " + model);
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_LE(peak_kb(), bound);
}

TEST(Import, MakesAFolderThatEveryCommandTakes) {
  const TemporaryDirectory folder;
  const std::string out = folder.path().string() + "/model", file = kData + "/gguf/llama.gguf";
  const auto made = run_binary("import " + file + " " + out + "/");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_NE(made.out.find("(22 BF16, 8 F32), in BF16"), std::string::npos) << made.out;
  const auto scored = run_binary("model score --model " + out, "{\"input_ids\": [1, 40, 7]}");
  ASSERT_EQ(scored.exit_code, 0) << scored.err;
  const auto golden =
      run_binary("model score --model " + kData + "/golden/llama3-ropescaled-tied-bf16",
                 "{\"input_ids\": [1, 40, 7]}");
  EXPECT_EQ(scored.out, golden.out);
  const auto generated =
      run_binary("model generate --chat --prompt ABC --max-new-tokens 2 --model " + out);
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
}

TEST(Import, LeavesNothingBehindWhereItFails) {
  const TemporaryDirectory folder;
  const std::string file = kData + "/gguf/qwen2.gguf", out = folder.path().string() + "/model";
  const auto whole = read_file(file);
  ASSERT_TRUE(whole);
  folder.write("cut.gguf", whole.value().substr(0, whole.value().size() - 5));
  const auto cut = run_binary("import " + folder.path().string() + "/cut.gguf " + out);
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_NE(cut.err.find("cut.gguf: not a valid GGUF file: tensor 'output_norm.weight'"),
            std::string::npos)
      << cut.err;
  folder.write("model/mine", "");
  EXPECT_EQ(run_binary("import " + file + " " + out).err,
            "error: " + out + " exists and is not empty. Name a new folder.\n");
  EXPECT_EQ(run_binary("import " + out + "/none.gguf " + out + "2").exit_code, 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2);
}

TEST(Tokenize, GivesIdsAndTextBack) {
  std::string text = "Once upon a time, there was a cat.";
  auto ids = run_binary("model tokenize --tokenizer " + kStories,
                        json{{"text", text}}.dump() + "\n\n" + json{{"text", ""}}.dump());
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  auto rows = rows_of(ids.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_GT(rows[0]["input_ids"].size(), 4u);
  EXPECT_EQ(rows[1]["input_ids"].size(), 0u);

  auto special = rows_of(
      run_binary("model tokenize --special --tokenizer " + kStories, json{{"text", text}}.dump())
          .out);
  EXPECT_EQ(special[0]["input_ids"][0], 1);
  EXPECT_EQ(special[0]["input_ids"].size(), rows[0]["input_ids"].size() + 1);

  auto decoded = run_binary("model tokenize --decode --tokenizer " + kStories, ids.out);
  ASSERT_EQ(decoded.exit_code, 0) << decoded.err;
  EXPECT_EQ(rows_of(decoded.out)[0]["text"], text);
}

TEST(Tokenize, RefusesAnInputThatNeverEndsOrCannotBeRead) {
  const auto said = [](const char* input) {
    TemporaryDirectory folder;
    const std::string err = (folder / "err").string();
    const int status =
        std::system(fmt::format("timeout 60 {} model tokenize --tokenizer {} < {} > {}/out 2> {}",
                                TAILRACE_BINARY, kStories, input, folder.path().string(), err)
                        .c_str());
    EXPECT_EQ(WEXITSTATUS(status), 2) << input;
    return read_file(err).value();
  };
  EXPECT_EQ(said("/dev/zero"), "error: stdin:1: the line is longer than 67108864 bytes\n");
  EXPECT_EQ(said("/"), "error: cannot read stdin: Is a directory\n");
}

TEST(Tokenize, NamesTheLineOfABadRow) {
  auto error = [](const std::string& arguments, const std::string& input) {
    auto result = run_binary("model tokenize --tokenizer " + kStories + arguments, input);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_EQ(error("", "{\"text\": \"a\"}\nhello\n"), "error: stdin:2: not valid JSON: hello\n");
  EXPECT_EQ(error("", "\x1b[2Jx\n"), "error: stdin:1: not valid JSON: \\x1b[2Jx\n");
  EXPECT_EQ(error("", "{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n"),
            "error: stdin:2: not UTF-8: byte 11 of the line is 0xff\n");
  EXPECT_EQ(error("", "{\"txt\": \"a\"}\n"),
            "error: stdin:1: \"text\" is missing; a row is {\"text\": \"...\"}\n");
  EXPECT_EQ(error("", "{\"text\": 5}\n"),
            "error: stdin:1: \"text\" is number; it must be a text\n");
  EXPECT_EQ(error(" --decode", "{\"input_ids\": [1, 99999]}\n"),
            "error: stdin:1: input_ids[1] is 99999; the tokenizer has ids below 512\n");
  EXPECT_EQ(error(" --decode", "{\"input_ids\": [1, \"a\"]}\n"),
            "error: stdin:1: input_ids[1] is \"a\"; it must be a token id (an integer >= 0)\n");
}

// Input rows and expected values of the golden folder.
struct Golden {
  std::vector<int64_t> seq_lens;
  std::vector<std::vector<int64_t>> ids;
  std::vector<float> logprobs, logits;
};

Golden read_golden() {
  SafetensorsFile file(kGolden + "/golden_forward.safetensors");
  auto integers = [&](const char* name) {
    const TensorView& view = file.tensors().find(name)->second;
    std::vector<int64_t> values(static_cast<size_t>(view.num_elements()));
    std::memcpy(values.data(), view.data.data(), view.data.size());
    return values;
  };
  auto floats = [&](const char* name) {
    const TensorView& view = file.tensors().find(name)->second;
    std::vector<float> values(static_cast<size_t>(view.num_elements()));
    to_float(view, values);
    return values;
  };
  Golden golden{integers("seq_lens"), {}, floats("logprobs"), floats("logits")};
  auto all = integers("input_ids");
  auto at = all.begin();
  for (int64_t size : golden.seq_lens) {
    golden.ids.emplace_back(at, at + size);
    at += size;
  }
  return golden;
}

TEST(Score, MatchesTheGoldenValues) {
  Golden golden = read_golden();
  std::string input;
  for (const auto& ids : golden.ids) input += json{{"input_ids", ids}}.dump() + "\n";
  TemporaryDirectory folder;
  auto result = run_binary(
      "model score --model " + kGolden + " --logits " + (folder / "out.safetensors").string(),
      input);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  auto rows = rows_of(result.out);
  ASSERT_EQ(rows.size(), golden.ids.size());

  // The bound that the golden folder gives for float32.
  constexpr double kBound = 1e-4;
  size_t next = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i]["logprobs"].size(), golden.ids[i].size() - 1);
    for (const auto& value : rows[i]["logprobs"])
      EXPECT_NEAR(value.get<double>(), golden.logprobs[next++], kBound);
  }
  EXPECT_EQ(next, golden.logprobs.size());

  SafetensorsFile written(folder / "out.safetensors");
  std::vector<float> logits(golden.logits.size());
  ASSERT_EQ(written.tensors().at("logits").num_elements(), static_cast<int64_t>(logits.size()));
  to_float(written.tensors().at("logits"), logits);
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    worst = std::max(worst, std::abs(double{logits[i]} - golden.logits[i]));
  EXPECT_LE(worst, kBound);
}

// auto is what the files are: bf16 weights lose nothing of a bf16 file, and some of another.
TEST(Score, ComputesWithTheWeightsThatItIsTold) {
  std::string input;
  for (const auto& ids : read_golden().ids) input += json{{"input_ids", ids}}.dump() + "\n";
  const auto score = [&](const std::string& model, const std::string& flag) {
    const auto result = run_binary("model score --model " + model + flag, input);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string bf16_files = kData + "/golden/qwen3-headdim-untied-bf16";
  // The weights are the same ones; in pairs what they are multiplied by is rounded too.
  EXPECT_EQ(score(bf16_files, "") == score(bf16_files, " --compute f32"),
            isa() != Isa::kAvx512Bf16);
  EXPECT_EQ(score(bf16_files, ""), score(bf16_files, " --compute bf16"));
  EXPECT_EQ(score(kGolden, ""), score(kGolden, " --compute f32"));
  EXPECT_NE(score(kGolden, ""), score(kGolden, " --compute bf16"));
  EXPECT_EQ(run_binary("model score --compute fp8 --model " + kGolden, input).exit_code, 2);
}

TEST(Score, GivesTheSameBitsForAnyNumberOfThreads) {
  std::string input;
  for (const auto& ids : read_golden().ids) input += json{{"input_ids", ids}}.dump() + "\n";
  std::string one = run_binary("model score --threads 1 --model " + kGolden, input).out;
  EXPECT_FALSE(one.empty());
  EXPECT_EQ(one, run_binary("model score --threads 3 --model " + kGolden, input).out);
}

// Against the rows of --logits, of a row that is longer than what is in memory at a time.
TEST(Score, GivesTheLikeliestTokensOfEachPosition) {
  std::vector<int> ids;
  for (int i = 0; i < 200; ++i) ids.push_back((i * 37 + 5) % 512);
  const std::string input = json{{"input_ids", ids}}.dump() + "\n{\"input_ids\": [7]}\n";
  TemporaryDirectory folder;
  const auto score = [&](const std::string& flags) {
    const auto result = run_binary("model score --model " + kStories + flags, input);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return rows_of(result.out);
  };
  const auto rows = score(" --top-k 3 --logits " + (folder / "out.safetensors").string());
  EXPECT_EQ(rows[0]["logprobs"], score("")[0]["logprobs"]);
  EXPECT_FALSE(score("")[0].contains("top_logprobs"));
  ASSERT_EQ(rows[0]["top_logprobs"].size(), ids.size() - 1);

  SafetensorsFile written(folder / "out.safetensors");
  std::vector<float> logits(201 * 512);
  to_float(written.tensors().at("logits"), logits);
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    std::vector<int> order(512);
    std::iota(order.begin(), order.end(), 0);
    const float* row = logits.data() + i * 512;
    std::ranges::stable_sort(order, [&](int a, int b) { return row[a] > row[b]; });
    const auto& top = rows[0]["top_logprobs"][i];
    ASSERT_EQ(top.size(), 3U);
    for (size_t j = 0; j < 3; ++j) {
      EXPECT_EQ(top[j][0], order[j]);
      if (top[j][0] == ids[i + 1]) {
        EXPECT_EQ(top[j][1], rows[0]["logprobs"][i]);
      }
    }
  }
  // Behind one token nothing is predicted.
  EXPECT_TRUE(rows[1]["logprobs"].empty());
  EXPECT_TRUE(rows[1].at("top_logprobs").empty());
}

TEST(Score, NamesTheLineOfABadRowAfterTheGoodOnes) {
  auto run = [](const std::string& row) {
    return run_binary("model score --model " + kStories, "{\"input_ids\": [1, 5]}\n" + row + "\n");
  };
  auto result = run("{\"input_ids\": []}");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(rows_of(result.out).size(), 1u);
  EXPECT_EQ(result.err, "error: stdin:2: input_ids is empty; it must hold at least one id\n");
  EXPECT_EQ(run("{\"input_ids\": [512]}").err,
            "error: stdin:2: input_ids[0] is 512; the model has ids below 512\n");
  EXPECT_EQ(run("{\"input_ids\": [1.5]}").err,
            "error: stdin:2: input_ids[0] is 1.5; it must be a token id (an integer >= 0)\n");
  EXPECT_EQ(run("{\"ids\": [1]}").err,
            "error: stdin:2: \"input_ids\" is missing; a row is {\"input_ids\": [1, 2, ...]}\n");
  EXPECT_EQ(run("{\"input_ids\": [1], \"input_ids\": [2]}").err,
            "error: stdin:2: ambiguous: it has \"input_ids\" twice: "
            "{\"input_ids\": [1], \"input_ids\": [2]}\n");
  EXPECT_EQ(run("[1]").err, "error: stdin:2: not a JSON object: [1]\n");
  EXPECT_EQ(run("{\"input_ids\": [1").err, "error: stdin:2: not valid JSON: {\"input_ids\": [1\n");
  EXPECT_EQ(run("{\"input_ids\": " + json(std::vector<int>(513, 1)).dump() + "}").err,
            "error: stdin:2: input_ids has 513 tokens; the model takes at most 512\n");
  EXPECT_EQ(rows_of(run("{\"input_ids\": [7]}").out)[1]["logprobs"].size(), 0u);
}

TEST(Score, NamesAModelThatIsMissingCutOrNotFinite) {
  auto missing = run_binary("model score --model no/such/model");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.err.find("no/such/model"), std::string::npos);

  TemporaryDirectory folder;
  std::filesystem::copy(kStories, folder / "model");
  auto weights = folder / "model/model.safetensors";
  std::filesystem::permissions(weights, std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  auto size = std::filesystem::file_size(weights);
  std::string model = (folder / "model").string();
  {
    // The last weight becomes a NaN.
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size) - 4);
    file.write("\xff\xff\xff\xff", 4);
  }
  auto nan = run_binary("model score --model " + model, "{\"input_ids\": [1, 2]}");
  EXPECT_EQ(nan.exit_code, 2);
  EXPECT_NE(nan.err.find("nan at element"), std::string::npos) << nan.err;
  std::filesystem::resize_file(weights, size - 100);
  auto cut = run_binary("model score --model " + model, "{\"input_ids\": [1, 2]}");
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_NE(cut.err.find("model.safetensors"), std::string::npos) << cut.err;
}

TEST(Score, SaysThatTheLogitsCannotBeWritten) {
  auto result =
      run_binary("model score --model " + kStories + " --logits /proc/nowhere/x.safetensors",
                 "{\"input_ids\": [1, 2]}");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "") << "said before the work";
  EXPECT_NE(result.err.find("/proc/nowhere/x.safetensors"), std::string::npos) << result.err;
}

TEST(Doctor, ReportsAsTextAndAsJson) {
  auto text = run_binary("doctor");
  EXPECT_NE(text.out.find("libraries  fmt 9"), std::string::npos) << text.out;
  auto facts = json::parse(run_binary("doctor --json").out);
  EXPECT_GE(facts["cpu"]["usable_cores"], 1);
  EXPECT_GT(facts["memory"]["total_bytes"], 1 << 20);
  EXPECT_GT(facts["disk"]["total_bytes"], 0);
  EXPECT_TRUE(facts["limits"].contains("open_files"));
  EXPECT_TRUE(facts["libraries"].contains("zeromq"));
  EXPECT_TRUE(facts["problems"].is_array());
  const auto isolation = sandbox::check_isolation();
  EXPECT_EQ(facts["isolates_programs"], isolation.ok());
  EXPECT_EQ(
      facts["problems"].dump().find("the verifier program has no use here") == std::string::npos,
      isolation.ok());
}

TEST(Report, WritesThePageAndThePicture) {
  TemporaryDirectory folder;
  folder.write("run/metrics.jsonl",
               "{\"step\":0,\"version\":0,\"time\":1,\"reward/"
               "mean\":0.25}\n{\"step\":1,\"version\":1,\"time\":2,\"reward/mean\":0.5}\n");
  folder.write("run/config.yaml", "run: {}\n");
  std::string run = (folder / "run").string(), svg = (folder / "curve.svg").string();
  auto page = run_binary("report " + run);
  EXPECT_EQ(page.out, run + "/report.html\n") << page.err;
  EXPECT_NE(read_file(run + "/report.html").value().find("</html>"), std::string::npos);
  EXPECT_EQ(run_binary("report " + run + " --svg " + svg).exit_code, 0);
  EXPECT_NE(read_file(svg).value().find("</svg>"), std::string::npos);
  auto missing = run_binary("report " + folder.path().string());
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_EQ(missing.err, "error: cannot open " + folder.path().string() +
                             "/metrics.jsonl: No such file or directory. A run directory holds "
                             "metrics.jsonl; 'tailrace launch' makes one.\n");
}

}  // namespace
}  // namespace tailrace
