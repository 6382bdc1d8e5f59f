// The datasets of a run, whichever way its config names them: the list `datasets`, or the section
// `env`, which is a list of one.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/config/options.h"
#include "core/text/dataset.h"
#include "sandbox/registry.h"

namespace tailrace {

// The rows of a file that a run uses, where env.too_long drops or cuts some: a launch finds them
// (fitted_prompts.h).
struct FittedFile {
  std::filesystem::path file = {};  // of these rows, in the run; empty: the file that the key names
  int64_t rows = -1;                // their number; -1: the file says it
};

// One dataset of a run. `epochs` is what it has: its own or run.epochs.
struct RunDataset : DatasetSection {
  std::string item;     // as a person has written it: "datasets.grid", or "env"
  bool listed = true;   // in `datasets`; else it is the section env
  int64_t prompts = 0;  // of a step; together rollout.prompts_per_step
  FittedFile fitted = {}, fitted_eval = {};  // of dataset and of eval_dataset

  // The full name of one of its keys ("env", "dataset", "epochs", ...): "datasets.grid.env",
  // "env.name".
  std::string key(std::string_view key) const;
};

// The run has no environment: it learns from rows alone.
bool supervised_only(const RunOptions& options);

// The key of such a run for a key that only a run with an environment reads: "sft.optim.lr" for
// "optim.lr". Empty: nothing.
std::string_view supervised_key(std::string_view key);

// In the order of the config, which numbers them (law 1.1); at least one, but for a run of
// supervised training alone, which has none. For resolve(), and for rules of options that are not
// yet known to be valid; all others have ResolvedRun::datasets.
std::vector<RunDataset> datasets_of(const RunOptions& options);

// A file of rows, and how its columns are called.
struct RowsFile {
  std::filesystem::path file;
  text::ColumnMap columns;
};

// The rows of a dataset that the run uses: those of its file, or those of it that fit. Everybody
// who plays or counts prompts reads these.
RowsFile rows_of(const RunDataset& dataset, bool held_out = false);

// `total` dealt to them by their ratios, as the prompts of a step are.
std::vector<int64_t> deal(std::span<const RunDataset> datasets, int64_t total);

// Their names, where there are several; of one, whose metrics are those of the run, none.
std::vector<std::string> dataset_names(std::span<const RunDataset> datasets);

// The words of all their environments, each once, in the order in which they are met: what a policy
// of model.create can say.
std::vector<std::string> vocabulary_of(std::span<const RunDataset> datasets,
                                       const sandbox::EnvironmentRegistry& environments);

}  // namespace tailrace
