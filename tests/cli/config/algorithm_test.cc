#include "cli/config/algorithm.h"

#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "cli/inputs/rules.h"
#include "core/base/file.h"
#include "core/config/yaml_config.h"
#include "trainer/loss/presets.h"

namespace tailrace {
namespace {

std::vector<std::string> lines(std::vector<std::string> overrides) {
  const std::string text =
      "model: {create: {hidden_size: 64, layers: 2, heads: 4}}\n"
      "env: {name: frozen_grid}\n"
      "rollout: {max_context_tokens: 128, max_turns: 4, max_action_tokens: 3}\n"
      "algo:\n  loss_agg: token_mean_global\n  kl: {coef: 0.02}\n";
  RunOptions options;
  ConfigKeys keys = bind_config(parse_config(text, "a.yaml", overrides), options);
  validate(options, keys, built_in_registries());
  return describe_algorithm(options, keys);
}

TEST(DescribeAlgorithm, SaysEachValueWithTheLayerThatItComesFrom) {
  EXPECT_EQ(
      lines({}),
      (std::vector<std::string>{
          "name default (default)",
          "advantage group_mean (default), filter_zero_signal drop (default), "
          "filter_metric reward (default), whiten_advantages false (default)",
          "credit.kind trajectory (default)",
          "length.penalty none (default), truncated keep (default)", "ratio token (default)",
          "surrogate ppo_clip (default)",
          "clip_low 0.2 (default), clip_high 0.28 (default), clip_c 0 (default)",
          "correction.kind tis (default), correction.level token (default), correction.cap 2 "
          "(default), correction.normalize false (default), correction.sequence_mask 0 (default)",
          "loss_agg token_mean_global (a.yaml:5)",
          "kl.coef 0.02 (a.yaml:6), kl.estimator k3 (default), kl.target ref (default), "
          "kl.reference start (default), kl.placement loss (default), kl.unbiased false (default), "
          "entropy_coef 0 (default)"}));
  EXPECT_EQ(
      lines({"algo.name=dr_grpo", "algo.clip_high=0.3"}),
      (std::vector<std::string>{
          "name dr_grpo (command line)",
          "advantage group_mean (preset dr_grpo), filter_zero_signal none (preset dr_grpo), "
          "filter_metric reward (default), whiten_advantages false (preset dr_grpo)",
          "credit.kind trajectory (preset dr_grpo)",
          "length.penalty none (preset dr_grpo), truncated keep (preset dr_grpo)",
          "ratio token (preset dr_grpo)", "surrogate ppo_clip (preset dr_grpo)",
          "clip_low 0.2 (preset dr_grpo), clip_high 0.3 (command line), clip_c 0 (preset dr_grpo)",
          "correction.kind tis (default), correction.level token (default), correction.cap 2 "
          "(default), correction.normalize false (default), correction.sequence_mask 0 (default)",
          "loss_agg seq_mean_token_sum_const (preset dr_grpo), loss_const_tokens 12 (response "
          "limit: 4 turns x 3 tokens)",
          "kl.coef 0 (preset dr_grpo), entropy_coef 0 (preset dr_grpo)"}));
}

TEST(DescribeAlgorithm, LeavesOutWhatHasNoEffect) {
  EXPECT_EQ(lines({"algo.name=topr"})[5], "surrogate topr (preset topr)");
  EXPECT_EQ(lines({"algo.name=topr"})[6],
            "correction.kind none (preset topr), correction.sequence_mask 0 (preset topr)");
  EXPECT_EQ(lines({"algo.surrogate=cispo"})[6], "clip_high 0.28 (default)");
  EXPECT_EQ(lines({"algo.advantage=group_mean_std"})[1],
            "advantage group_mean_std (command line), std_eps 1e-06 (default), filter_zero_signal "
            "drop (default), filter_metric reward (default), whiten_advantages false (default)");
}

// The row of a preset in docs/algorithms.md: what it gives to each axis, as its options say it.
class PresetRow {
 public:
  explicit PresetRow(AlgoPreset preset) : preset_(preset) {
    for (const SectionDoc& section : describe_options(AlgoOptions::preset(preset)))
      for (const OptionDoc& option : section.options) options_.emplace(option.key, option);
  }

  std::string text() const {
    const AlgoOptions &row = AlgoOptions::preset(preset_), standard;
    const CorrectionOptions &own = row.correction, &common = standard.correction;
    const bool corrects =
        own.kind != common.kind || own.level != common.level || own.cap != common.cap;
    std::vector<std::string> besides;
    if (needs_critic(row.advantage)) besides.push_back(with("gamma", {"lambda"}));
    if (row.returns.whiten) besides.push_back("`whiten_advantages`");
    if (row.filter_zero_signal == ZeroSignalFilter::kDrop && compares_members(row.advantage))
      besides.push_back("`filter_zero_signal` drop");
    if (refills_groups(preset_)) besides.push_back("groups are replaced");
    if (row.length.penalty != LengthPenalty::kNone)
      besides.push_back("`length.penalty` " + value("length.penalty"));
    return fmt::format(
        "| `{}` | {} | {} | {} | {} | {} | {} | {} | {} |", name_of(preset_), value("advantage"),
        with("credit.kind", {"credit.gamma", "credit.weight"}),
        options_.at("ratio").idle ? "" : value("ratio"),
        with("surrogate", {"clip_low", "clip_high", "drift_coef", "tau_pos", "tau_neg"}),
        corrects ? with("correction.kind", {"correction.level", "correction.low", "correction.cap"})
                 : "",
        value("loss_agg"),
        row.kl.coef == 0 ? "" : with("kl.coef", {"kl.estimator", "kl.placement"}),
        fmt::join(besides, ", "));
  }

 private:
  std::string value(const std::string& key) const { return options_.at(key).value; }
  // And the keys that it reads.
  std::string with(const std::string& key, const std::vector<std::string>& others) const {
    std::string text = key == "gamma" || key == "kl.coef"
                           ? fmt::format("`{}` {}", key.substr(key.rfind('.') + 1), value(key))
                           : value(key);
    for (const std::string& other : others)
      if (const OptionDoc& option = options_.at(other); !option.idle)
        text += fmt::format(", `{}` {}", other.substr(other.rfind('.') + 1), option.value);
    return text;
  }

  AlgoPreset preset_;
  std::map<std::string, OptionDoc> options_;
};

TEST(AlgorithmPage, HasARowOfEachPresetAsItIs) {
  const auto page = read_file(std::string(TAILRACE_SOURCE_DIR) + "/docs/algorithms.md");
  ASSERT_TRUE(page.ok());
  for (size_t i = 0; i < kEnumNames<AlgoPreset>.size(); ++i) {
    const std::string_view name = kEnumNames<AlgoPreset>[i];
    const std::string row = PresetRow(static_cast<AlgoPreset>(i)).text();
    EXPECT_NE(page.value().find("\n" + row + "\n"), std::string::npos) << "missing:\n" << row;
    // And one that says what it is for.
    size_t rows = 0;
    const std::string begin = fmt::format("\n| `{}` |", name);
    for (size_t at = 0; (at = page.value().find(begin, at)) != std::string::npos; ++at) ++rows;
    EXPECT_GE(rows, 2u) << name;
  }
}

// An algorithm that is named over a file leaves the file's teacher.
TEST(DescribeAlgorithm, ATeacherStaysWhateverTheAlgorithm) {
  for (const AlgoPreset preset : {AlgoPreset::kGrpo, AlgoPreset::kDapo})
    for (const std::string& key : AlgoOptions::preset_keys(preset))
      EXPECT_FALSE(key.starts_with("distill.")) << key;
}

}  // namespace
}  // namespace tailrace
