#include "core/model/forward_batch.h"

#include <algorithm>

#include "kernels/base/check.h"

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
}

void BatchBuilder::add(std::span<const int32_t> tokens, int32_t first_position,
                       std::span<const int32_t> blocks, std::span<const int32_t> logit_offsets) {
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
}

ForwardBatch BatchBuilder::batch() const {
  return {.token_ids = token_ids_,
          .sequences = {.positions = positions_,
                        .seq_offsets = seq_offsets_,
                        .block_tables = block_tables_,
                        .max_blocks = max_blocks_},
          .logit_rows = logit_rows_,
          .max_context = max_context_};
}

}  // namespace tailrace
