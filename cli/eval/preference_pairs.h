// Preferences out of an evaluation: answers of a policy to the same prompt, of which a verifier or
// an environment prefers one. Their tokens are those that were sampled, as the prompt's are those
// that the policy saw: nothing is tokenised again (design rule 2).
//
// Thread: any.
#pragma once

#include <string>
#include <vector>

#include "cli/eval/evaluation.h"
#include "trainer/preference_rows.h"

namespace tailrace {

// One pair of each prompt whose answers have different rewards: the first of the best ones and the
// first of the worst. Episodes of one turn alone (EvaluationPlan::keeps_tokens).
std::vector<PreferenceRow> preference_pairs(const std::vector<EvaluatedEpisode>& episodes);

// Each answer with its success as label.
std::vector<PreferenceRow> labelled_answers(const std::vector<EvaluatedEpisode>& episodes);

// Writes them as rows of token ids, atomically, and says how many there are: "120 pairs of 480
// prompts". Throws UserError for none.
std::string write_preferences(const std::string& file, const std::vector<PreferenceRow>& rows,
                              const std::vector<EvaluatedEpisode>& episodes);

}  // namespace tailrace
