// The prompts of a dataset, each proved by the verifier that will score its answers; and how a run
// writes them.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/config/options.h"
#include "core/chat/options.h"
#include "core/run/run_directory.h"
#include "core/text/dataset.h"
#include "reward/registry.h"

namespace tailrace {

// As text::read_dataset(). `verifier`: its name, empty for none. Throws UserError with file:line
// for a row that the verifier could not score as it is meant in `score_budget`, and for a verifier
// that nobody has.
std::vector<text::DatasetRow> read_prompts(const std::filesystem::path& file,
                                           const text::ColumnMap& columns,
                                           const std::string& verifier,
                                           const VerifierRegistry& verifiers, Time score_budget,
                                           const text::RowLimits& limits = {});

// The section `chat` as the processes of a run read it: a template of chat.template is the copy
// that lies beside the run's tokenizer, and later beside that of each checkpoint.
chat::ChatOptions chat_of_run(const RunPaths& paths, const RunOptions& options);

}  // namespace tailrace
