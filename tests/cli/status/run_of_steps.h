// A run directory as a run leaves it, for tests of what shows one: a journal, rows and samples.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "core/run/metrics.h"
#include "core/run/run_directory.h"
#include "core/text/tokenizer.h"
#include "core/trajectory/sample_rows.h"
#include "scheduler/decide/decide.h"
#include "scheduler/store/journal.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {

class RunOfSteps {
 public:
  RunOfSteps() {
    scheduler::Config config;
    config.datasets = {scheduler::DatasetConfig{.prompts_per_step = 1}};
    config.steps = 10;
    scheduler::State state(config);
    (void)scheduler::decide(state, scheduler::WorkerUp{.worker = "rollout-0", .slots = 4}, Time(1));
    EXPECT_TRUE(scheduler::Journal::open(paths.journal(), state, {}));
    std::filesystem::copy(
        std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data/tokenizers/minimind",
        paths.tokenizer(), std::filesystem::copy_options::recursive);
  }

  static std::string line_of(int64_t step, const MetricList& values) {
    MetricsRow row;
    row.step = step;
    row.version = step - 1;
    row.unix_seconds = 1000.0 + static_cast<double>(step);
    row.values = values;
    return format_metrics_row(row) + "\n";
  }
  void add_row(int64_t step, const MetricList& values) const {
    append(paths.metrics(), line_of(step, values));
  }
  void add_sample(int64_t step, const std::string& prompt, const std::string& answer) const {
    static const auto tokenizer = text::load_tokenizer(paths.tokenizer());
    SampleRow row{.step = step, .version = step, .reward = 0.5, .success = {}, .segments = {{}}};
    SampleRow::Tokens& tokens = row.segments[0];
    for (const auto& [role, text] :
         {std::pair(TokenRole::kPrompt, prompt), std::pair(TokenRole::kSampled, answer)})
      for (const TokenId id : tokenizer->encode(text)) {
        tokens.ids.push_back(id);
        tokens.roles.push_back(role);
      }
    append(paths.samples(), format_sample_row(row) + "\n");
  }
  static void append(const std::filesystem::path& file, const std::string& text) {
    std::ofstream(file, std::ios::app) << text;
  }
  std::string name() const { return folder.path().string(); }

  TemporaryDirectory folder;
  RunPaths paths{folder.path()};
};

}  // namespace tailrace
