#include "core/model/forward_batch.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/end_drawn.h"
#include "kernels/ops/router.h"

namespace tailrace {

BatchBuilder::Arrays::Arrays(Workspace& memory, const BatchRoom& room)
    : token_ids(memory.take<int32_t>(room.tokens)),
      from(memory.take<int32_t>(room.takes_draws ? room.tokens : 0)),
      positions(memory.take<int32_t>(room.tokens)),
      logit_rows(memory.take<int32_t>(room.tokens)),
      seq_offsets(memory.take<int32_t>(room.sequences + 1)),
      block_tables(memory.take<int32_t>(room.sequences * room.blocks_per_sequence)),
      choices(memory.take<int32_t>(room.tokens * room.choices_per_token)),
      parents(memory.take<int32_t>(room.shares ? room.sequences : 0)),
      common_blocks(memory.take<int32_t>(room.sequences)),
      copies(memory.take<BlockCopy>(room.shares ? room.sequences : 0)) {}

BatchBuilder::Arrays BatchBuilder::Arrays::of(Buffer& memory, const BatchRoom& room) {
  Workspace workspace(memory);
  return {workspace, room};
}

int64_t BatchBuilder::bytes(const BatchRoom& room) {
  Workspace memory = Workspace::measuring();
  Arrays(memory, room);
  return static_cast<int64_t>(memory.peak());
}

BatchBuilder::BatchBuilder(const BatchRoom& room, Device device)
    : room_(room),
      memory_(Buffer::pinned(static_cast<size_t>(bytes(room)), device)),
      arrays_(Arrays::of(memory_, room)),
      on_device_(device == Device{} ? 0 : memory_.size(), device) {
  TR_CHECK(room.blocks_per_sequence >= 1, "{} blocks a sequence", room.blocks_per_sequence);
  TR_CHECK(!room.shares || device == Device{}, "sequences that share rows, on device {}",
           device.index);
  // Nothing is written yet: the memory may be that of a turn, which somebody else has now.
}

void BatchBuilder::clear() {
  num_tokens_ = num_sequences_ = num_logit_rows_ = num_copies_ = 0;
  max_context_ = 0;
  gives_choices_ = takes_draws_ = is_copied_ = false;
}

void BatchBuilder::add(std::span<const int32_t> tokens, int32_t first_position,
                       std::span<const int32_t> blocks, std::span<const int32_t> logit_offsets,
                       MatrixView<const int32_t> choices, int32_t parent) {
  const auto count = std::ssize(tokens);
  TR_CHECK(count > 0 && first_position >= 0, "{} tokens from position {}", count, first_position);
  TR_CHECK(num_tokens_ + count <= room_.tokens && num_sequences_ < room_.sequences,
           "{} tokens behind {} in {} sequences, room for {} in {}", count, num_tokens_,
           num_sequences_, room_.tokens, room_.sequences);
  TR_CHECK(std::ssize(blocks) <= room_.blocks_per_sequence, "{} blocks, room for {}", blocks.size(),
           room_.blocks_per_sequence);
  // Either would be read behind a table.
  for (const int32_t id : tokens)
    TR_CHECK(id >= 0 && id < room_.vocab, "token {} of a vocabulary of {}", id, room_.vocab);
  for (const int32_t block : blocks)
    TR_CHECK(block >= -1 && block < room_.blocks, "block {} of {}", block, room_.blocks);

  if (num_sequences_ == 0) arrays_.seq_offsets[0] = 0;  // one more than there are sequences
  const auto first_row = static_cast<size_t>(num_tokens_);
  std::ranges::copy(tokens, arrays_.token_ids.begin() + num_tokens_);
  if (room_.takes_draws) std::fill_n(arrays_.from.begin() + num_tokens_, count, -1);
  for (size_t i = 0; i < tokens.size(); ++i)
    arrays_.positions[first_row + i] = first_position + static_cast<int32_t>(i);
  for (const int32_t offset : logit_offsets) {
    TR_CHECK(offset >= 0 && offset < count, "logit offset {} of {} tokens", offset, count);
    const auto row = static_cast<int32_t>(num_tokens_) + offset;
    // Ascending, so that no row is wanted twice: backward scatters to them.
    TR_CHECK(
        num_logit_rows_ == 0 || arrays_.logit_rows[static_cast<size_t>(num_logit_rows_) - 1] < row,
        "logit offsets must ascend");
    arrays_.logit_rows[static_cast<size_t>(num_logit_rows_++)] = row;
  }
  // One width for all; -1 is no block.
  const auto table =
      arrays_.block_tables.subspan(static_cast<size_t>(num_sequences_ * room_.blocks_per_sequence),
                                   static_cast<size_t>(room_.blocks_per_sequence));
  std::ranges::fill(std::ranges::copy(blocks, table.begin()).out, table.end(), -1);

  int32_t& common = arrays_.common_blocks[static_cast<size_t>(num_sequences_)];
  common = 0;
  if (num_sequences_ > 0) {
    const auto before =
        arrays_.block_tables.begin() + (num_sequences_ - 1) * room_.blocks_per_sequence;
    const auto is_common = [](int32_t a, int32_t b) { return a == b && a >= 0; };
    common = static_cast<int32_t>(
        std::mismatch(blocks.begin(), blocks.end(), before, is_common).first - blocks.begin());
  }

  TR_CHECK(parent >= -1 && (parent < 0 || (room_.shares && parent < num_sequences_)),
           "sequence {} goes on from {}", num_sequences_, parent);
  if (room_.shares) arrays_.parents[static_cast<size_t>(num_sequences_)] = parent;

  if (choices.rows > 0) {
    TR_CHECK(choices.rows == count && choices.cols == room_.choices_per_token,
             "choices [{}, {}] of {} tokens, {} a token", choices.rows, choices.cols, count,
             room_.choices_per_token);
    // Tokens before it that were given none choose for themselves.
    if (!gives_choices_)
      std::fill_n(arrays_.choices.begin(), num_tokens_ * room_.choices_per_token, kChoose);
    gives_choices_ = true;
  }
  if (gives_choices_) {
    const auto own = arrays_.choices.begin() + num_tokens_ * room_.choices_per_token;
    std::fill_n(own, count * room_.choices_per_token, kChoose);
    for (int64_t t = 0; t < choices.rows; ++t)
      std::copy_n(choices.row(t), choices.cols, own + t * choices.cols);
  }
  is_copied_ = false;
  num_tokens_ += count;
  ++num_sequences_;
  arrays_.seq_offsets[static_cast<size_t>(num_sequences_)] = static_cast<int32_t>(num_tokens_);
  max_context_ = std::max(max_context_, first_position + static_cast<int>(count));
}

void BatchBuilder::add_copy(const BlockCopy& copy) {
  TR_CHECK(num_copies_ < std::ssize(arrays_.copies), "{} copies of blocks", num_copies_);
  TR_CHECK(copy.from >= 0 && copy.from < room_.blocks && copy.to >= 0 && copy.to < room_.blocks,
           "from {} to {} of {} blocks", copy.from, copy.to, room_.blocks);
  arrays_.copies[static_cast<size_t>(num_copies_++)] = copy;
}

void BatchBuilder::add_drawn(int32_t from, int32_t position, std::span<const int32_t> blocks) {
  TR_CHECK(room_.takes_draws && from >= 0, "draw {} in a batch without room for it", from);
  // The token has not been read back yet: take_drawn() writes it over this 0 on the device, before
  // the embedding reads it.
  constexpr int32_t kUnknown = 0, kThatOne = 0;
  add({&kUnknown, 1}, position, blocks, {&kThatOne, 1});
  arrays_.from[static_cast<size_t>(num_tokens_) - 1] = from;
  takes_draws_ = true;
}

void BatchBuilder::pad(int64_t sequences, int32_t block, int max_context) {
  TR_CHECK(num_tokens_ == num_sequences_ && num_logit_rows_ == num_sequences_ && !gives_choices_,
           "{} tokens of {} sequences, {} rows of logits", num_tokens_, num_sequences_,
           num_logit_rows_);
  TR_CHECK(max_context_ <= max_context, "a context of {}, not {}", max_context_, max_context);
  constexpr int32_t kAnyToken = 0, kThatOne = 0;
  // The filling sequences all write position 0 of one spare block, and nobody reads their logits.
  while (num_sequences_ < sequences) add({&kAnyToken, 1}, 0, {&block, 1}, {&kThatOne, 1});
  // A captured graph has its launches fixed, so padded batches of one graph must agree on the
  // context.
  max_context_ = max_context;
  takes_draws_ = room_.takes_draws;
}

ForwardBatch BatchBuilder::batch(const Stream& stream, std::span<const int32_t> drawn,
                                 const DrawnEnds& ends) const {
  const auto tokens = static_cast<size_t>(num_tokens_);
  const size_t tables = static_cast<size_t>(num_sequences_ * room_.blocks_per_sequence);
  if (on_device_.size() > 0 && !std::exchange(is_copied_, true)) {
    // One copy brings all arrays to the device, up to the end of the last that this batch uses.
    // Choices are the last array, so a batch without them leaves them out.
    const int32_t* end = gives_choices_
                             ? arrays_.choices.data() + num_tokens_ * room_.choices_per_token
                             : arrays_.block_tables.data() + tables;
    const auto used = static_cast<size_t>(reinterpret_cast<const std::byte*>(end) - memory_.data());
    copy(stream, on_device_.bytes().part(0, used), memory_.bytes().part(0, used));
  }
  const Arrays arrays = on_device_.size() > 0 ? Arrays::of(on_device_, room_) : arrays_;
  if (takes_draws_)
    take_drawn(
        stream,
        {.drawn = drawn, .from = arrays.from.first(tokens), .ids = arrays.token_ids.first(tokens)});
  if (takes_draws_ && !ends.stops.empty()) {
    TR_CHECK(num_tokens_ == num_sequences_, "{} tokens of {} sequences", num_tokens_,
             num_sequences_);
    end_drawn(stream, {.drawn = drawn,
                       .stops = ends.stops,
                       .from = arrays.from.first(tokens),
                       .ids = arrays.token_ids.first(tokens),
                       .positions = arrays.positions.first(tokens),
                       .block_tables = arrays.block_tables.first(tables),
                       .max_blocks = room_.blocks_per_sequence,
                       .spare = ends.spare_block});
  }
  return {
      .token_ids = arrays.token_ids.first(tokens),
      .sequences = {.positions = arrays.positions.first(tokens),
                    .seq_offsets =
                        arrays.seq_offsets.first(static_cast<size_t>(num_sequences_) + 1),
                    .block_tables = arrays.block_tables.first(tables),
                    .max_blocks = room_.blocks_per_sequence,
                    .parents = arrays.parents.first(
                        room_.shares ? static_cast<size_t>(num_sequences_) : 0),
                    .common_blocks = arrays.common_blocks.first(
                        on_device_.size() > 0 ? 0 : static_cast<size_t>(num_sequences_))},
      .logit_rows = arrays.logit_rows.first(static_cast<size_t>(num_logit_rows_)),
      .max_context = max_context_,
      .vocab = room_.vocab,
      .blocks = room_.blocks,
      .choices = {arrays.choices.data(), gives_choices_ ? num_tokens_ : 0, room_.choices_per_token},
      .copies = arrays.copies.first(static_cast<size_t>(num_copies_))};
}

}  // namespace tailrace
