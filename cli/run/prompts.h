// The prompts of a dataset, each proved by the verifier that will score its answers.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/text/dataset.h"
#include "reward/registry.h"

namespace tailrace {

// As text::read_dataset(). `verifier`: its name, empty for none. Throws UserError with file:line
// for a row that the verifier could not score as it is meant in `score_budget`, and for a verifier
// that nobody has.
std::vector<text::DatasetRow> read_prompts(const std::filesystem::path& file,
                                           const std::string& prompt_key,
                                           const std::string& verifier,
                                           const VerifierRegistry& verifiers, Time score_budget);

}  // namespace tailrace
