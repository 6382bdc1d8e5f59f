// The prompts of a dataset against the room that a run gives them: what becomes of those that are
// too long (env.too_long).
//
// A run that drops or cuts prompts writes the rows that it uses to RUN/prompts, once; whoever plays
// or counts them reads that file (rows_of()). The prompts of an epoch are its rows, and a run that
// goes on finds the same ones.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/config/datasets.h"
#include "cli/config/options.h"
#include "cli/inputs/long_rows.h"
#include "cli/inputs/registries.h"
#include "cli/inputs/resolved_run.h"
#include "core/chat/prompt_format.h"
#include "core/run/run_directory.h"
#include "core/text/dataset.h"
#include "reward/registry.h"
#include "sandbox/environment.h"

namespace tailrace {

// The outcome for the rows of a file.
struct PromptFit {
  std::string key;   // that names the file: "env.dataset"
  std::string file;  // as the key names it
  int64_t rows = 0;  // that the run uses
  std::vector<LongRow> dropped, cut;
};

struct FittedPrompts {
  PromptFit fit;
  std::vector<text::DatasetRow> rows;
  int64_t first_special = 0;  // line of the first prompt that holds a special token's text; 0: none
  int64_t nulls = 0;          // keys of its rows that were null (DatasetRow)
  // Prompts behind which an answer of rollout.max_action_tokens has no room, where that is given,
  // and the tokens of the longest of them.
  int64_t cramped = 0, longest = 0;
};

// The limits that a file of prompts is held against.
struct PromptRoom {
  const RunOptions& options;
  sandbox::Environment& environment;
  const chat::PromptFormat& format;
  const VerifierRegistry& verifiers;
};

// Reads the rows of a file, and drops those whose first observation leaves no room for an answer,
// or cuts those that are above rollout.max_prompt_tokens or, where that is 0, leave no room for an
// answer of the most tokens (but half of the context). Of a row that is cut its own text stays from
// some place on to its end: the prompt, or of a list of messages the longest one of the user's.
// Throws UserError as read_prompts() does; one that names all rows that are too long, where
// `too_long` refuses them or a cut does not help; and where no row is left.
FittedPrompts fit_prompts(const RowsFile& file, const std::string& key, TooLong too_long,
                          const PromptRoom& room);

// The same for all files of the run that env.too_long may change and that RUN/prompts does not have
// yet. Notes their number of rows in `options`, so that epochs count as they will. Throws UserError
// with its key.
std::vector<FittedPrompts> fit_datasets(ResolvedRun& run, const Registries& registries,
                                        const chat::PromptFormat& format);

// Writes what fit_datasets() has found, with what became of the rows, atomically.
void write_fitted_prompts(const RunPaths& paths, const ResolvedRun& run,
                          const std::vector<FittedPrompts>& fitted);

// Points `options` to the files that are there.
void find_fitted_prompts(const RunPaths& paths, ResolvedRun& run);

// The name in inputs.json of the file of a key's rows.
inline std::string fitted_input(const std::string& key) { return key + "/rows"; }

// RUN/prompts/too_long.json: what became of the prompts of all files.
std::filesystem::path prompt_fits_file(const RunPaths& paths);

// The outcomes for the prompts of a run; empty: all are as their files have them.
std::vector<PromptFit> read_prompt_fits(const RunPaths& paths);

// "env.dataset: 9 prompts; 1 is too long and dropped: line 3 (412 tokens)", with at most
// `most_listed` lines.
std::string describe(const PromptFit& fit, size_t most_listed = kListedRows);

// Whether env.too_long may change what the run uses of a dataset.
bool may_change(const DatasetSection& dataset);

}  // namespace tailrace
