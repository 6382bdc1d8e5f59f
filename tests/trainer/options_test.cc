#include "trainer/options.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/core/base/enum_contract.h"
#include "trainer/loss/options.h"

namespace tailrace {
namespace {

// Sets the fields that it has values for, as the YAML reader does, and notes all that it meets.
class FakeReader : public OptionVisitor {
 public:
  explicit FakeReader(std::map<std::string, std::string> values) : values_(std::move(values)) {}
  std::map<std::string, std::string> seen;

  void field(std::string_view key, bool&, const OptionInfo&) override { seen[path(key)] = ""; }
  void field(std::string_view key, int64_t& value, const OptionInfo&) override {
    if (auto* text = find(key)) value = std::stoll(*text);
    seen[path(key)] = std::to_string(value);
  }
  void field(std::string_view key, double& value, const OptionInfo&) override {
    if (auto* text = find(key)) value = std::stod(*text);
    seen[path(key)] = fmt::format("{}", value);
  }
  void field(std::string_view key, std::string& value, const OptionInfo&) override {
    if (auto* text = find(key)) value = *text;
    seen[path(key)] = value;
  }
  void field(std::string_view key, std::vector<double>&, const OptionInfo&) override {
    seen[path(key)] = "";
  }
  void field(std::string_view key, std::vector<std::string>&, const OptionInfo&) override {
    seen[path(key)] = "";
  }
  void field(std::string_view key, std::vector<std::pair<std::string, std::string>>&,
             const OptionInfo&) override {
    seen[path(key)] = "";
  }

 protected:
  void choice(std::string_view key, size_t& index, std::span<const std::string_view> names,
              const OptionInfo&) override {
    if (auto* text = find(key))
      index = static_cast<size_t>(std::ranges::find(names, *text) - names.begin());
    ASSERT_LT(index, names.size()) << path(key);
    seen[path(key)] = names[index];
  }
  bool chose_preset(std::string_view key) override { return find(key) != nullptr; }
  bool enter(std::string_view key, std::string_view, const Idle&) override {
    prefix_ += std::string(key) + ".";
    return true;
  }
  void leave() override { prefix_.erase(prefix_.rfind('.', prefix_.size() - 2) + 1); }

 private:
  std::string path(std::string_view key) const { return prefix_ + std::string(key); }
  const std::string* find(std::string_view key) const {
    auto found = values_.find(path(key));
    return found == values_.end() ? nullptr : &found->second;
  }
  std::map<std::string, std::string> values_;
  std::string prefix_;
};

TEST(AlgoOptions, APresetSetsItsPapersValuesAndOtherKeysOverrideThem) {
  AlgoOptions options;
  FakeReader reader({{"name", "grpo"}, {"clip_high", "0.5"}, {"kl.coef", "0.01"}});
  options.visit(reader);
  EXPECT_EQ(options.advantage, AdvantageKind::kGroupMeanStd);
  EXPECT_EQ(options.aggregation.kind, AggregationKind::kSeqMeanTokenMean);
  EXPECT_EQ(options.surrogate.clip_low, 0.2);
  EXPECT_EQ(options.surrogate.clip_high, 0.5);
  EXPECT_EQ(options.kl.coef, 0.01);
}

TEST(AlgoOptions, EveryEnumeratorHasAName) {
  check_enum_names<AlgoPreset>();
  check_enum_names<AdvantageKind>();
  check_enum_names<ZeroSignalFilter>();
  check_enum_names<RatioUnit>();
  check_enum_names<SurrogateKind>();
  check_enum_names<AggregationKind>();
  check_enum_names<KlEstimator>();
  check_enum_names<KlTarget>();
  check_enum_names<CorrectionKind>();
  check_enum_names<CorrectionLevel>();
}

TEST(AlgoOptions, PrintingDoesNotBringThePresetBack) {
  AlgoOptions options;
  FakeReader reader({{"name", "grpo"}, {"clip_high", "0.5"}});
  options.visit(reader);
  FakeReader printer({});
  options.visit(printer);
  EXPECT_EQ(printer.seen.at("clip_high"), "0.5");
  AlgoOptions copy = options;
  copy.visit(printer);
  EXPECT_EQ(printer.seen.at("clip_high"), "0.5");
}

TEST(AlgoOptions, EveryPresetIsValidOnceItsConstantIsGiven) {
  for (size_t i = 0; i < kEnumNames<AlgoPreset>.size(); ++i) {
    const auto preset = static_cast<AlgoPreset>(i);
    AlgoOptions options = AlgoOptions::preset(preset);
    FakeReader reader({});
    options.visit(reader);
    EXPECT_EQ(reader.seen.at("name"), name_of(preset));
    // What the response limit gives.
    if (preset == AlgoPreset::kDrGrpo) options.aggregation.const_tokens = 32;
    if (preset == AlgoPreset::kDapo) options.length.limit = 32, options.length.buffer = 6;
    EXPECT_NO_THROW(validate(options, "algo")) << name_of(preset);
  }
}

// Else a value of the row would come with the preset, and a key of a lower layer would undo it.
TEST(AlgoOptions, APresetSetsEveryKeyInWhichItsRowDiffers) {
  FakeReader defaults({});
  AlgoOptions none;
  none.visit(defaults);
  for (size_t i = 0; i < kEnumNames<AlgoPreset>.size(); ++i) {
    const auto preset = static_cast<AlgoPreset>(i);
    AlgoOptions options = AlgoOptions::preset(preset);
    FakeReader reader({});
    options.visit(reader);
    const auto keys = AlgoOptions::preset_keys(preset);
    for (const auto& [key, value] : reader.seen) {
      if (key == "name" || value == defaults.seen.at(key)) continue;
      EXPECT_NE(std::ranges::find(keys, key), keys.end()) << name_of(preset) << " " << key;
    }
    for (const std::string_view key : keys) EXPECT_TRUE(reader.seen.contains(std::string(key)));
  }
}

// What is about stale samples says all of its correction, others leave it as a person has it.
TEST(AlgoOptions, APresetSetsSectionsOfItsOwnAsAWhole) {
  const auto sets = [](AlgoPreset preset, std::string_view key) {
    const auto keys = AlgoOptions::preset_keys(preset);
    return std::ranges::count(keys, key);
  };
  for (const char* key : {"correction.kind", "correction.level", "correction.cap"}) {
    EXPECT_EQ(sets(AlgoPreset::kDecoupledPpo, key), 1) << key;
    EXPECT_EQ(sets(AlgoPreset::kGrpo, key), 0) << key;
  }
  EXPECT_EQ(sets(AlgoPreset::kTopr, "correction.kind"), 1);
  EXPECT_EQ(sets(AlgoPreset::kTopr, "correction.cap"), 0) << "nothing reads it";
  // A value that is the default too is the paper's all the same.
  EXPECT_EQ(sets(AlgoPreset::kGigpo, "credit.gamma"), 1);
  EXPECT_EQ(sets(AlgoPreset::kSapo, "tau_neg"), 1);
  EXPECT_EQ(sets(AlgoPreset::kKimi, "drift_coef"), 1);
  EXPECT_EQ(sets(AlgoPreset::kGrpo, "credit.gamma"), 0);
  EXPECT_EQ(sets(AlgoPreset::kGrpo, "std_eps"), 0);
  EXPECT_EQ(sets(AlgoPreset::kGrpo, "kl.coef"), 1);
  EXPECT_EQ(sets(AlgoPreset::kDapo, "kl.coef"), 1) << "it has none";
  EXPECT_EQ(sets(AlgoPreset::kGrpo, "kl.estimator"), 1) << "with where the penalty is";
  EXPECT_EQ(sets(AlgoPreset::kGrpo, "name"), 0);
}

// What older versions sampled is weighed by default, in each of them.
TEST(AlgoOptions, EveryPresetCorrectsForStaleTokens) {
  for (size_t i = 0; i < kEnumNames<AlgoPreset>.size(); ++i) {
    const AlgoOptions options = AlgoOptions::preset(static_cast<AlgoPreset>(i));
    // TOPR's surrogate does it itself.
    const bool own = options.surrogate.kind == SurrogateKind::kTopr;
    EXPECT_EQ(options.correction.kind == CorrectionKind::kNone, own) << name_of(options.name);
    EXPECT_EQ(own, options.name == AlgoPreset::kTopr);
  }
}

template <class Options>
void expect_refused(const Options& options, const std::string& part) {
  try {
    validate(options, "section");
    ADD_FAILURE() << "not refused: " << part;
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()).find("section." + part), 0u) << e.what();
    EXPECT_EQ(e.key(), "section." + part.substr(0, part.find(' ')));
  }
}

TEST(AlgoOptions, ImpossibleCombinationsAreRefusedByName) {
  AlgoOptions options;
  options.surrogate.clip_c = 0.5;
  expect_refused(options, "clip_c is 0.5");
  options.surrogate.clip_c = 0;
  options.surrogate.kind = SurrogateKind::kTopr;
  expect_refused(options, "correction.kind is tis but");
  options = AlgoOptions::preset(AlgoPreset::kDrGrpo);
  expect_refused(options, "loss_const_tokens is 0");
  options = {};
  options.ratio = RatioUnit::kSequence;
  expect_refused(options, "ratio is sequence");
}

TEST(OptimOptions, EveryScheduleHasAName) { check_enum_names<LrSchedule>(); }
TEST(OptimOptions, EveryKindHasAName) { check_enum_names<OptimizerKind>(); }

TEST(OptimOptions, BetasMustBeTwoNumbersBelowOne) {
  OptimOptions options;
  options.betas = {.9};
  expect_refused(options, "betas has 1");
  options.betas = {.9, 1};
  expect_refused(options, "betas holds 1");
}

TEST(SftOptions, AWarmUpHasOneSource) {
  SftOptions options;
  options.data = "rows.jsonl";
  options.demonstrations = 3;
  expect_refused(options, "data and section.demonstrations are both set");
  options = {};
  options.optim.betas = {};
  expect_refused(options.optim, "betas has 0");
}

}  // namespace
}  // namespace tailrace
