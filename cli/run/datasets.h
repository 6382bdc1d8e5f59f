// The datasets of a run, whichever way its config names them: the list `datasets`, or the section
// `env`, which is a list of one.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run/options.h"
#include "core/text/dataset.h"
#include "sandbox/registry.h"

namespace tailrace {

// The run has no environment: it learns from the rows of sft.data alone.
bool supervised_only(const RunOptions& options);

// The key of such a run for a key that only a run with an environment reads: "sft.optim.lr" for
// "optim.lr". Empty: nothing.
std::string_view supervised_key(std::string_view key);

// In the order of the config, which numbers them (law 1.1); at least one, but for a run of
// supervised training alone, which has none. `epochs` is what each has: its own or run.epochs.
std::vector<DatasetSection> datasets_of(const RunOptions& options);

// A file of rows, and how its columns are called.
struct RowsFile {
  std::filesystem::path file;
  text::ColumnMap columns;
};

// The rows of a dataset that the run uses: those of its file, or those of it that fit. Everybody
// who plays or counts prompts reads these.
RowsFile rows_of(const DatasetSection& dataset, bool held_out = false);

// The full name of a key ("env", "dataset", "epochs", ...) of one of them, as a person has written
// it: "datasets.grid.env", "env.name". Of no key: of the whole ("datasets.grid", "env").
std::string dataset_key(const RunOptions& options, size_t index, std::string_view key = "");

// How many prompts of a step each has; together rollout.prompts_per_step.
std::vector<int64_t> prompts_of_step(const RunOptions& options);

// `total` dealt to them by their ratios, as the prompts of a step are.
std::vector<int64_t> deal(const RunOptions& options, int64_t total);

// Their names, where there are several; of one, whose metrics are those of the run, none.
std::vector<std::string> dataset_names(const RunOptions& options);

// "2 epochs of a.jsonl, 1 epoch of b.jsonl": what a run without run.steps goes through.
std::string epochs_text(const RunOptions& options);

// The words of all their environments, each once, in the order in which they are met: what a policy
// of model.create can say.
std::vector<std::string> vocabulary_of(const RunOptions& options,
                                       const sandbox::EnvironmentRegistry& environments);

}  // namespace tailrace
