// Rows of preferences as token ids: what `launch` makes of the rows that a person brings
// (cli/inputs/preference_rows.h).
//
//   {"prompt_ids": [1, 5], "chosen_ids": [9, 2], "rejected_ids": [7, 2], "margin": 0.5}
//   {"prompt_ids": [1, 5], "completion_ids": [9, 2], "label": true}
//
// A pair says which of two completions is better; "margin" may be left out. An unpaired row says
// whether its only completion is desirable. Every token of a completion counts.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/generate.h"

namespace tailrace {

struct PreferenceRow {
  std::vector<TokenId> prompt;            // at least one
  std::vector<TokenId> chosen, rejected;  // unpaired: the completion, and nothing
  bool desirable = true;                  // unpaired: its label
  double margin = 0;                      // paired: finite; of a reward model

  bool is_pair() const { return !rejected.empty(); }
  int64_t sequence_tokens() const;  // of the prompt with the longer completion
  bool operator==(const PreferenceRow&) const = default;
};

// One row of token ids, of any length; `where` stands for it in messages. Throws UserError for what
// is malformed or outside the vocabulary, for a prompt or a completion without tokens, for a pair
// of equal completions, and for a row of both forms.
PreferenceRow read_preference_row(const nlohmann::ordered_json& row, const std::string& where,
                                  int64_t vocab_size);
// The line of a file that read_preference_rows() reads as this row.
std::string format_preference_row(const PreferenceRow& row);

// "margin" of a pair; 0 where the row has none. Throws UserError for what is no finite number.
double preference_margin(const nlohmann::ordered_json& row, const std::string& where);
// "label" of an unpaired row: true or false, or 1 or 0. Throws UserError for anything else, and for
// a row without one.
bool preference_label(const nlohmann::ordered_json& row, const std::string& where);

// Reads all rows. Blank lines are skipped. Throws UserError with file:line as read_preference_row()
// does, for a row whose sequence_tokens() pass max_tokens, and for a pair in a file that began with
// an unpaired row, or the other way round; and for a file without rows.
std::vector<PreferenceRow> read_preference_rows(const std::filesystem::path& path,
                                                int64_t vocab_size, int64_t max_tokens);

}  // namespace tailrace
