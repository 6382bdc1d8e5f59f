// Rows of preferences: from the forms that a person brings, as TRL has them, to the one that the
// trainer reads.
//
//   {"prompt": "...", "chosen": "...", "rejected": "..."}      texts, or lists of messages
//   {"chosen": [messages], "rejected": [messages]}             the shared beginning is the prompt
//   {"prompt": "...", "completion": "...", "label": true}      texts, or lists of messages
//   {"prompt_ids": [...], "chosen_ids": [...], "rejected_ids": [...]}
//   {"prompt_ids": [...], "completion_ids": [...], "label": true}
//
// The columns of each row say which form it has; a pair may have a "margin". Messages are written
// by the run's chat template as an episode would have them. A completion is one answer of the
// assistant, with the end of its turn.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cli/inputs/long_rows.h"
#include "cli/inputs/sft_rows.h"
#include "trainer/options.h"
#include "trainer/preference_rows.h"

namespace tailrace {

// How the rows of a config's section are read.
struct PreferenceForm {
  std::vector<std::pair<std::string, std::string>> columns = {};  // ours, and the file's
  TooLong too_long = TooLong::kRefuse;
  // true: the file has pairs alone. false: it has unpaired rows of both labels, and each pair is
  // taken as two of them, without its margin.
  bool paired = true;
  // Behind an answer stands what the chat template writes behind its turn: as a reward model reads
  // a conversation (PromptFormat::whole()).
  bool whole = false;
  std::string key = "preference";  // the section, for messages
};

struct PreferenceRows {
  std::vector<PreferenceRow> rows;     // all of one kind
  int64_t dropped = 0;                 // lines of the file that were too long
  int64_t cut = 0;                     // lines that lost the end of a completion
  std::vector<LongRow> too_long = {};  // of both; with the tokens of the longer completion
  int64_t nulls = 0;  // keys that were null in arguments and schemas, and are left out

  int64_t tokens() const;  // of prompts, each once, and completions
};

// Throws UserError with file:line for a row of no form or that cannot be written, for an empty
// completion and for a pair of equal ones, and, where `form` refuses them, one that names all that
// are too long; for a file that cannot be read or has no row to learn from, and for unpaired rows
// of one label alone.
PreferenceRows read_preferences(const std::filesystem::path& file, const PreferenceForm& form,
                                const SftReading& reading);

}  // namespace tailrace
