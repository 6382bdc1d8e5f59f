#include "core/model/forward_batch.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/ops/router.h"

namespace tailrace {

BatchBuilder::BatchBuilder(int max_blocks_per_sequence) : max_blocks_(max_blocks_per_sequence) {
  TR_CHECK(max_blocks_ >= 1, "{} blocks a sequence", max_blocks_);
}

void BatchBuilder::clear() {
  max_context_ = 0;
  token_ids_.clear();
  positions_.clear();
  // The 0 before the first sequence: one offset more than there are sequences.
  seq_offsets_.assign(1, 0);
  block_tables_.clear();
  logit_rows_.clear();
  choices_.clear();
  choices_per_token_ = 0;
}

void BatchBuilder::add(std::span<const int32_t> tokens, int32_t first_position,
                       std::span<const int32_t> blocks, std::span<const int32_t> logit_offsets,
                       MatrixView<const int32_t> choices) {
  TR_CHECK(!tokens.empty() && first_position >= 0, "{} tokens from position {}", tokens.size(),
           first_position);
  TR_CHECK(static_cast<int>(blocks.size()) <= max_blocks_, "{} blocks, room for {}", blocks.size(),
           max_blocks_);
  const auto first_row = static_cast<int32_t>(token_ids_.size());
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  for (size_t i = 0; i < tokens.size(); ++i)
    positions_.push_back(first_position + static_cast<int32_t>(i));
  seq_offsets_.push_back(static_cast<int32_t>(token_ids_.size()));
  block_tables_.insert(block_tables_.end(), blocks.begin(), blocks.end());
  // One width for all; -1 is no block. num_sequences() counts this one already, by its offset
  // above.
  block_tables_.resize(static_cast<size_t>(num_sequences()) * static_cast<size_t>(max_blocks_), -1);
  for (const int32_t offset : logit_offsets) {
    TR_CHECK(offset >= 0 && offset < static_cast<int32_t>(tokens.size()),
             "logit offset {} of {} tokens", offset, tokens.size());
    // Ascending, so that no row is wanted twice: backward scatters to them.
    TR_CHECK(logit_rows_.empty() || logit_rows_.back() < first_row + offset,
             "logit offsets must ascend");
    logit_rows_.push_back(first_row + offset);
  }
  max_context_ = std::max(max_context_, first_position + static_cast<int>(tokens.size()));
  if (choices.rows > 0) {
    TR_CHECK(choices.rows == std::ssize(tokens) && choices.cols >= 1 &&
                 (choices_per_token_ == 0 || choices_per_token_ == choices.cols),
             "choices [{}, {}] of {} tokens", choices.rows, choices.cols, tokens.size());
    choices_per_token_ = choices.cols;
    // Those before it that were given none choose for themselves.
    choices_.resize(static_cast<size_t>(first_row * choices.cols), kChoose);
    for (int64_t t = 0; t < choices.rows; ++t)
      choices_.insert(choices_.end(), choices.row(t), choices.row(t) + choices.cols);
  }
  choices_.resize(static_cast<size_t>(num_tokens() * choices_per_token_), kChoose);
}

ForwardBatch BatchBuilder::batch() const {
  const bool given = choices_per_token_ > 0;
  return {.token_ids = token_ids_,
          .sequences = {.positions = positions_,
                        .seq_offsets = seq_offsets_,
                        .block_tables = block_tables_,
                        .max_blocks = max_blocks_},
          .logit_rows = logit_rows_,
          .max_context = max_context_,
          .choices = {choices_.data(), given ? num_tokens() : 0, choices_per_token_}};
}

}  // namespace tailrace
