// The pages of docs/ that speak of names in the code, against the code.
#include <map>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/run/metrics.h"
#include "core/run/stage_row.h"
#include "reward/judge.h"
#include "reward/verifiers/built_in.h"
#include "sandbox/builtin/built_in.h"
#include "tests/cli/run_binary.h"
#include "tests/sandbox/environment_contract.h"

namespace tailrace {
namespace {

using Names = std::set<std::string>;

std::string read_page(const std::string& name) {
  auto text = read_file(fmt::format("{}/docs/{}", TAILRACE_SOURCE_DIR, name));
  EXPECT_TRUE(text.ok());
  return text ? text.value() : "";
}

TEST(Docs, TheReferenceOfConfigKeysIsUpToDate) {
  auto result = run_binary("docs");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_page("configuration.md"), result.out)
      << "run: build/tailrace docs docs/configuration.md";
}

TEST(Docs, TheReferenceOfHardwareKeysIsUpToDate) {
  auto result = run_binary("docs --hardware");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_page("hardware.md"), result.out)
      << "run: build/tailrace docs --hardware docs/hardware.md";
}

TEST(Docs, ListEachKeyWithItsDefaultAndForeignNames) {
  std::string text = run_binary("docs").out;
  EXPECT_NE(text.find("| `rollout.group_size` | `8` | integer, 1 to 65536 |"), std::string::npos);
  EXPECT_NE(text.find("| `datasets.NAME.name` | required |"), std::string::npos);
  EXPECT_NE(text.find("| `run.steps` | `100` | integer, 0 to 1000000000 | may grow |"),
            std::string::npos);
  EXPECT_NE(text.find("| `run.seed` | `0` | integer, 0 to 9007199254740991 |  |"),
            std::string::npos);
  EXPECT_NE(text.find("also: data.train_batch_size"), std::string::npos);
}

TEST(Docs, KeysForExpertsStandLastAndOnce) {
  const std::string text = run_binary("docs").out;
  const size_t expert = text.find("\n## expert\n");
  ASSERT_NE(expert, std::string::npos);
  EXPECT_EQ(text.find("\n## ", expert + 1), std::string::npos);
  const std::string row = "| `scheduler.breaker_window` |";
  EXPECT_GT(text.find(row), expert);
  EXPECT_EQ(text.find(row), text.rfind(row));
  EXPECT_LT(text.find("| `scheduler.mode` | `sync` | "), expert);
}

// ---- metrics.md

// The quoted names that rows begin with, in the tables under a heading.
Names names_under(const std::string& heading) {
  const std::string page = read_page("metrics.md");
  const size_t begin = page.find("\n## " + heading + "\n");
  EXPECT_NE(begin, std::string::npos) << heading;
  if (begin == std::string::npos) return {};
  Names names;
  LineReader lines(std::string_view(page).substr(begin + 1, page.find("\n## ", begin + 1) - begin));
  while (auto line = lines.next()) {
    const std::string_view text = line->text;
    if (!text.starts_with("| `")) continue;
    const std::string name(text.substr(3, text.find('`', 3) - 3));
    EXPECT_TRUE(names.insert(name).second) << name << " has two rows";
  }
  return names;
}

void expect_same(const Names& written, const Names& on_page, const std::string& heading) {
  for (const std::string& name : written)
    EXPECT_TRUE(on_page.contains(name)) << "docs/metrics.md lacks " << name << ": " << heading;
  for (const std::string& name : on_page)
    EXPECT_TRUE(written.contains(name)) << "nothing writes " << name << ": " << heading;
}

// The headings of trainings on rows.
const std::map<std::string_view, const char*> kOfKind = {
    {"sft", "Names of supervised training"},
    {"preference", "Names of training on preferences"},
    {"reward_model", "Names of a reward model's training"},
    {"distill", "Names of distillation from rows"}};
const char* const kByStaleness = "staleness/ess_frac_";
const char* const kReported = "What the built-in environments and verifiers report";

// What the rows of a run carry, by the heading that the page has for them. `env/NAME` and
// `eval/NAME` stand for what environments and verifiers report, `staleness/ess_frac_N` for what a
// run has of each staleness that occurs in it, and DATASET for each of `datasets`.
void collect(const std::filesystem::path& run, std::map<std::string, Names>& written,
             const Names& datasets = {}) {
  const Names reported = names_under(kReported);
  auto rows = read_metrics(run / "metrics.jsonl");
  ASSERT_TRUE(rows.ok()) << rows.failure().message;
  for (const MetricsRow& row : rows.value()) {
    const bool evaluation = row.find("eval/episodes") != nullptr;
    const auto of_rows = stage_row(row);
    const char* heading = of_rows      ? kOfKind.at(of_rows->kind)
                          : evaluation ? "Names of an evaluation"
                                       : "Names of a step";
    for (const auto& [whole, value] : row.values) {
      // It is in the rows of every kind, and the page has it once.
      if (whole == kStageNumber && of_rows) {
        written["Names of supervised training"].insert(whole);
        continue;
      }
      std::string name = whole, open = evaluation ? "eval/" : "env/";
      const size_t first = name.find('/'), second = name.find('/', first + 1);
      if (second != std::string::npos &&
          datasets.contains(name.substr(first + 1, second - first - 1))) {
        name.replace(first + 1, second - first - 1, "DATASET");
        open += "DATASET/";
      }
      const bool is_open = name.starts_with(open) && reported.contains(name.substr(open.size()));
      const bool by_staleness = name.starts_with(kByStaleness);
      written[heading].insert(is_open        ? open + "NAME"
                              : by_staleness ? std::string(kByStaleness) + "N"
                                             : name);
    }
  }
}

// Several runs, because one has one target of the KL term, the first with a critic, the second with
// experts, and one of several datasets; they learn from groups without a signal, as a policy this
// small gives no other. A name that none of them writes needs a run of its own.
TEST(Docs, EachMetricOfARunHasItsRowAndEachRowItsMetric) {
  TemporaryDirectory folder;
  std::map<std::string, Names> written;
  const auto held_out = folder.write("held_out.jsonl", "{\"input_ids\": [3, 4, 5]}\n");
  const std::string experts =
      " model.create.experts=4 train.balance_bias_rate=0.01 train.balance_coef=0.01"
      " algo.router_replay=replay algo.filter_zero_signal=none";
  // With a critic, a length penalty, and tokens that leave the loss.
  const std::string critic =
      " algo.name=ppo algo.length.penalty=soft_overlong algo.correction.kind=icepop"
      " algo.correction.rejected=leave algo.correction.sequence_mask=1";
  const std::string imitation =
      " algo.filter_zero_signal=none algo.credit.kind=turn_return algo.imitation.coef=0.1";
  for (const auto& [config, target, more] : {std::tuple{"quickstart", "ref", critic},
                                             {"quickstart", "behaviour", experts},
                                             {"mixed", "ref", imitation}}) {
    const auto run = folder / fmt::format("{}-{}", config, target);
    auto result = run_binary(
        fmt::format(
            "launch {}/configs/{}.yaml --in-process --run-dir {} run.steps=2 "
            "model.create.hidden_size=16 model.create.intermediate_size=32 model.create.layers=1 "
            "rollout.prompts_per_step=8 rollout.workers=1 sft.demonstrations=100 sft.epochs=1 "
            "eval.prompts=4 algo.kl.coef=0.01 algo.kl.target={}",
            TAILRACE_SOURCE_DIR, config, run.string(), target) +
        " sft.eval_data=" + held_out.string() + more);
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    collect(run, written, config == std::string("mixed") ? Names{"grid", "sums"} : Names{});
  }
  // Of prompts that are too long, and with a teacher.
  const auto taught = folder.write(
      "taught.yaml",
      fmt::format("extends: {0}/configs/tinystories.yaml\n"
                  "policies: [{{name: teacher, model: {0}/tests/data/models/stories260K}}]\n"
                  "algo: {{distill: {{policy: teacher, rewards: false}}, kl: {{coef: 0}}}}\n",
                  TAILRACE_SOURCE_DIR));
  for (const char* loss : {"policy_gradient", "jsd"}) {
    const auto run = folder / loss;
    const auto result = run_binary(
        fmt::format("launch {} --in-process --run-dir {} run.steps=1 eval.prompts=0 "
                    "rollout.prompts_per_step=2 rollout.workers=1 rollout.max_action_tokens=4 "
                    "rollout.max_prompt_tokens=16 env.too_long=drop algo.filter_zero_signal=none "
                    "algo.distill.loss={}",
                    taught.string(), run.string(), loss));
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    collect(run, written);
  }
  // Of pairs, of a reward model, of unpaired rows, and of a teacher.
  const auto pairs =
      folder.write("pairs.jsonl",
                   "{\"prompt_ids\": [3], \"chosen_ids\": [4, 5], \"rejected_ids\": [6]}\n"
                   "{\"prompt_ids\": [7], \"chosen_ids\": [8], \"rejected_ids\": [9, 3]}\n");
  const auto of = fmt::format("{{data: {0}, eval_data: {0}, updates: 1", pairs.string());
  const auto lines = folder.write("lines.jsonl", "{\"input_ids\": [3, 4, 5]}\n");
  const auto stages =
      folder.write("stages.yaml", fmt::format("model: {{path: {0}/tests/data/models/stories260K}}\n"
                                              "policies:\n"
                                              "  - name: teacher\n"
                                              "    model: {0}/tests/data/models/stories260K\n"
                                              "rollout: {{max_context_tokens: 64}}\n"
                                              "stages:\n"
                                              "  - reward_model: {1}}}\n"
                                              "  - preference: {1}}}\n"
                                              "  - preference: {1}, loss: kto}}\n"
                                              "  - distill: {{data: {2}, eval_data: {2}, "
                                              "updates: 1, policy: teacher}}\n",
                                              TAILRACE_SOURCE_DIR, of, lines.string()));
  const auto of_rows = folder / "rows";
  const auto result = run_binary(
      fmt::format("launch {} --in-process --run-dir {}", stages.string(), of_rows.string()));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  collect(of_rows, written);
  for (const auto& [heading, names] : written) expect_same(names, names_under(heading), heading);
  EXPECT_EQ(written.size(), 6u);
}

// Evidence that every built-in verifier can read.
const char* const kEvidence =
    R"({"response": "3", "answer": "3", "numbers": [1, 2], "target": 3, "words": ["three"],
        "language": "sh", "tests": [{"stdin": "", "stdout": "3"}]})";

TEST(Docs, EachMetricOfAnEnvironmentOrVerifierHasItsRow) {
  Names reported;
  const auto environments = sandbox::built_in_environments();
  for (const auto& [name, help, settings] : environments.list()) {
    auto environment = environments.make(name, sandbox::least_settings(name));
    const auto episode = sandbox::play(*environment, {.seed = 1, .data = R"({"prompt": "three"})"},
                                       [](int64_t) { return std::string("?\n"); });
    for (const auto& [metric, value] : episode.metrics) reported.insert(metric);
  }
  const VerifierRegistry verifiers = built_in_verifiers();
  if (const auto fit = verifiers.at("program").check_row(kEvidence, kScoreBudget); !fit)
    GTEST_SKIP() << fit.failure().message;
  for (const auto& [name, help] : verifiers.list()) {
    const auto score = judge(verifiers, name, kEvidence, kScoreBudget);
    ASSERT_TRUE(score.ok()) << score.failure().message;
    for (const auto& [metric, value] : score.value().metrics) reported.insert(metric);
  }
  expect_same(reported, names_under(kReported), kReported);
}

}  // namespace
}  // namespace tailrace
