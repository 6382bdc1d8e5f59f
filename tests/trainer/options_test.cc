#include "trainer/options.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "core/base/error.h"
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
  void field(std::string_view key, std::string& value, const OptionInfo& info) override {
    if (auto* text = find(key)) value = *text;
    bool allowed =
        info.allowed.empty() || std::ranges::find(info.allowed, value) != info.allowed.end();
    EXPECT_TRUE(allowed) << path(key) << " = " << value;
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
  bool enter(std::string_view key, std::string_view) override {
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
  EXPECT_EQ(options.advantage, "group_mean_std");
  EXPECT_EQ(options.loss_agg, "seq_mean_token_mean");
  EXPECT_EQ(options.clip_low, 0.2);
  EXPECT_EQ(options.clip_high, 0.5);
  EXPECT_EQ(options.kl.coef, 0.01);
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

TEST(AlgoOptions, EveryPresetIsAllowedAndValidOnceItsConstantIsGiven) {
  for (std::string_view name : AlgoOptions::preset_names()) {
    AlgoOptions options = AlgoOptions::preset(name);
    FakeReader reader({});
    options.visit(reader);
    EXPECT_EQ(reader.seen.at("name"), name);
    if (name == "dr_grpo") options.loss_const_tokens = 32;
    EXPECT_NO_THROW(validate(options, "algo")) << name;
  }
}

template <class Options>
void expect_refused(const Options& options, const std::string& part) {
  try {
    validate(options, "x.yaml: section");
    ADD_FAILURE() << "not refused: " << part;
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("x.yaml: section." + part), std::string::npos) << e.what();
  }
}

TEST(AlgoOptions, ImpossibleCombinationsAreRefusedByName) {
  AlgoOptions options;
  options.clip_c = 0.5;
  expect_refused(options, "clip_c is 0.5");
  options.clip_c = 3;
  options.surrogate = "cispo";
  expect_refused(options, "clip_c is 3 but");
  options = AlgoOptions::preset("dr_grpo");
  expect_refused(options, "loss_const_tokens is 0");
  options = {};
  options.loss_const_tokens = 5;
  expect_refused(options, "loss_const_tokens is 5");
  options = {};
  options.ratio = "sequence";
  expect_refused(options, "ratio is sequence");
}

TEST(OptimOptions, BetasMustBeTwoNumbersBelowOne) {
  OptimOptions options;
  options.betas = {.9};
  expect_refused(options, "betas has 1");
  options.betas = {.9, 1};
  expect_refused(options, "betas holds 1");
}

}  // namespace
}  // namespace tailrace
