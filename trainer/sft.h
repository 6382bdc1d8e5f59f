// Supervised training on pre-tokenised rows: what `launch` makes of the rows that a person brings
// (cli/inputs/sft_rows.h), and demonstrations.
//
//   {"input_ids": [1, 5, 9, 2], "loss_mask": [0, 0, 1, 1]}
//
// loss_mask[j] says whether predicting token j counts; the first token never does. Others write
// completion_mask or assistant_masks instead, or labels: -100 where the token does not count, else
// the token. Without any of them all count.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/generate.h"
#include "trainer/options.h"
#include "trainer/policy_trainer.h"
#include "trainer/row_task.h"

namespace tailrace {

// In memory, of a row's ids and targets, and of the text while it is read.
inline constexpr int64_t kSftBytesPerToken = 24;

// Columns of 0 and 1, or false and true: ours, and those of TRL.
inline constexpr const char* kSftMasks[] = {"loss_mask", "completion_mask", "assistant_masks"};

struct SftRow {
  std::vector<TokenId> tokens;
  std::vector<int32_t> targets;  // ascending positions that count; at least one
};

// One pre-tokenised row, of any length; `where` stands for it in messages. Throws UserError for
// what is malformed or outside the vocabulary, for masks that differ, that are not known, or that
// say that the row is padded. It may have no targets.
SftRow read_sft_row(const nlohmann::ordered_json& row, const std::string& where,
                    int64_t vocab_size);
// The line of a file that read_sft_rows() reads as this row.
std::string format_sft_row(const SftRow& row);

// Reads all rows. Blank lines are skipped, and rows in which nothing counts. Throws UserError with
// file:line for what is malformed, outside the vocabulary, or longer than max_tokens; and for a
// file without rows.
std::vector<SftRow> read_sft_rows(const std::filesystem::path& path, int64_t vocab_size,
                                  int64_t max_tokens);

// Row indices of each update of one epoch: shuffled by (seed, epoch), then as many rows in order as
// fit in batch_tokens; a row that is longer makes its own batch.
RowBatches sft_batches(const std::vector<SftRow>& rows, int64_t batch_tokens, uint64_t seed,
                       int64_t epoch);

class SftTask : public RowTask {
 public:
  // Resets the trainer's optimizer. Borrows the trainer. `held_out`: of evaluate(); may be empty.
  SftTask(PolicyTrainer& trainer, const SftOptions& options, std::vector<SftRow> rows,
          std::vector<SftRow> held_out, uint64_t seed);

  MetricList evaluate() override;

 private:
  MetricList update_rows(std::span<const size_t> rows, double done) override;

  PolicyTrainer& trainer_;
  std::vector<SftRow> rows_, held_out_;
};

}  // namespace tailrace
