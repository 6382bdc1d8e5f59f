// Rows of the form of sft.data and sft.eval_data: from the forms that a person brings to the one
// that the trainer reads.
//
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
//   {"prompt": "...", "completion": "..."}             texts, or lists of messages
//   {"input_ids": [1, 5, 9, 2], "loss_mask": [0, 0, 1, 1]}
//
// The columns of each row say which form it has. Messages are written by the run's chat template as
// an episode would have them; what the assistant says counts, with the end of each turn. Of a
// prompt with its completion only the completion does.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/config/options.h"
#include "cli/inputs/long_rows.h"
#include "core/chat/prompt_format.h"
#include "core/model/model_config.h"
#include "core/text/row_file.h"
#include "core/text/tokenizer.h"
#include "trainer/options.h"
#include "trainer/sft.h"

namespace tailrace {

struct SftRows {
  std::vector<SftRow> rows;            // each with a token that counts
  int64_t dropped = 0;                 // rows that were too long, or without a token that counts
  int64_t cut = 0;                     // of the rows, those that lost their end
  std::vector<LongRow> too_long = {};  // of both, those that were too long
  int64_t nulls = 0;  // keys that were null in arguments and schemas, and are left out

  int64_t tokens() const;
};

struct SftReading {
  const chat::PromptFormat* format = nullptr;  // null: there is no tokenizer but of token ids
  int64_t vocab_size = 0;
  int64_t max_tokens = 0;  // of a row
  text::RowLimits limits = {};
  std::string key = "sft";  // the section of supervised rows, for messages
};

// "4 keys that are null in arguments or tools are left out"; empty: there are none.
std::string nulls_note(int64_t nulls);

// Throws UserError with file:line for a row of no form or that cannot be written, and, where
// `options` refuse them, one that names all that are too long; for a file that cannot be read or
// has no row to learn from.
SftRows read_supervised(const std::filesystem::path& file, const RowOptions& options,
                        const SftReading& reading);

// How the rows of a run are read that has not begun: with the tokenizer and the chat template of
// its model. Throws UserError about their keys.
class SupervisedReader {
 public:
  SupervisedReader(const RunOptions& options, const ModelConfig& model);
  const SftReading& reading() const { return reading_; }
  SupervisedReader(const SupervisedReader&) = delete;

 private:
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::optional<chat::PromptFormat> format_;
  SftReading reading_;
};

}  // namespace tailrace
