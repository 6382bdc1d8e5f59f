#include "cli/view/run_facts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/file.h"
#include "core/config/config_printer.h"
#include "trainer/loss/options.h"

namespace tailrace {
namespace {

std::string facts_of(const std::string& config, const std::vector<MetricsRow>& rows = {}) {
  std::string text;
  for (const RunFact& fact : run_facts(config, "m", rows))
    text += fact.label + "=" + fact.value + "\n";
  return text;
}

TEST(RunFacts, NamesModelAlgorithmDataAndBatch) {
  const std::vector<MetricsRow> rows = {
      {.step = 90, .version = -1, .unix_seconds = 1700000000.9, .values = {}},
      {.step = 7, .version = 6, .unix_seconds = 1700000009, .values = {}}};
  EXPECT_EQ(facts_of(R"(
run: {name: tiny, seed: 5, steps: 80}
model: {path: models/stories260K/}
env: {name: text, dataset: data/prompts.jsonl}
rollout: {prompts_per_step: 16, group_size: 8}
scheduler: {mode: async}
algo: {name: grpo}
)",
                     rows),
            "Model=stories260K\nAlgorithm=grpo, async\nDataset=prompts.jsonl (text)\n"
            "Batch=16 prompts x 8 samples\nMachine=m\nDate=2023-11-14 22:13 UTC\nRun=tiny\n"
            "Steps=7 of 80\nSeed=5\n");
}

// A GRPO with other clips is no GRPO of the paper.
TEST(RunFacts, NamesTheKeysThatDifferFromThePreset) {
  // As a run stores it: with all keys, also those that the preset gives.
  const auto algorithm = [](const AlgoOptions& options, const std::string& more = "") {
    std::string text = "algo:\n";
    const std::string printed = print_config(options);
    LineReader lines(printed);
    while (const auto line = lines.next()) text += fmt::format("  {}\n", line->text);
    return facts_of(text + more);
  };
  AlgoOptions options = AlgoOptions::preset(AlgoPreset::kGrpo);
  EXPECT_EQ(algorithm(options), "Algorithm=grpo\nMachine=m\nSteps=0\n");
  options.surrogate.clip_high = 0.3;
  options.kl.coef = 0.5;
  EXPECT_EQ(
      algorithm(options, "scheduler: {mode: async}\n"),
      "Algorithm=grpo with algo.clip_high 0.3, algo.kl.coef 0.5; async\nMachine=m\nSteps=0\n");
  // What has no effect is no change, and neither is a limit that the run has put in.
  options = AlgoOptions::preset(AlgoPreset::kDrGrpo);
  options.aggregation.const_tokens = 64;
  options.surrogate.tau_pos = 5;
  EXPECT_EQ(algorithm(options), "Algorithm=dr_grpo\nMachine=m\nSteps=0\n");
  options = AlgoOptions::preset(AlgoPreset::kDapo);
  options.length.limit = 40;
  options.length.buffer = 8;
  EXPECT_EQ(algorithm(options), "Algorithm=dapo\nMachine=m\nSteps=0\n");
  EXPECT_EQ(facts_of("algo: {name: grpo, of_another_build: 1}"),
            "Algorithm=grpo\nMachine=m\nSteps=0\n");
}

TEST(RunFacts, NamesAModelFromRandomWeightsAndSeveralDatasets) {
  EXPECT_EQ(facts_of("model: {create: {layers: 3, hidden_size: 64}}\nrun: {steps: 0}\n"
                     "datasets: [{name: grid, env: frozen_grid}, {name: sums, env: calculator}]\n"),
            "Model=random weights, 3 layers of 64\nDataset=grid, sums\nMachine=m\nSteps=0\n");
}

TEST(RunFacts, OfSupervisedTrainingAloneTellOfItsRowsAndUpdates) {
  const std::vector<MetricsRow> rows = {
      {.step = 90, .version = -1, .unix_seconds = 1700000000.9, .values = {}}};
  EXPECT_EQ(facts_of("run: {name: sums, steps: 0}\nmodel: {path: m}\nenv: {name: \"\"}\n"
                     "rollout: {prompts_per_step: 16, group_size: 8}\nalgo: {name: grpo}\n"
                     "sft: {data: a/rows.jsonl.gz, batch_tokens: 512}\n",
                     rows),
            "Model=m\nAlgorithm=supervised\nDataset=rows.jsonl.gz\nBatch=512 tokens\nMachine=m\n"
            "Date=2023-11-14 22:13 UTC\nRun=sums\nUpdates=90\n");
}

// The first version is whole, and a value may be nonsense.
TEST(RunFacts, SayWhatAStepsWeightsTakeToOtherHosts) {
  std::vector<MetricsRow> rows;
  for (const auto& [bytes, ms] :
       std::vector<std::pair<double, double>>{{9e9, 60'000}, {2048, 250}, {1e300, -1}, {2048, 250}})
    rows.push_back({.step = std::ssize(rows) + 1,
                    .version = std::ssize(rows),
                    .unix_seconds = 0,
                    .values = {{"weights/bytes_received", bytes}, {"weights/fetch_ms", ms}}});
  EXPECT_EQ(facts_of("", rows),
            "Machine=m\nSteps=4\nWeights to other hosts=2.0 KiB in 0.25 s a step\n");
}

TEST(RunFacts, LeavesOutWhatTheConfigDoesNotSay) {
  EXPECT_EQ(facts_of(""), "Machine=m\nSteps=0\n");
  EXPECT_EQ(facts_of("run: [unclosed"), "Machine=m\nSteps=0\n");
}

}  // namespace
}  // namespace tailrace
