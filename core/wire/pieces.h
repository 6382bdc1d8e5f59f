// Messages that are larger than a frame may be. Who sends cuts them into pieces, which are frames
// of the link like any other: numbered, sent again, acknowledged. Who receives puts them together,
// and acknowledges none before it has taken the whole over: the next session begins with a whole
// one.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/messages/message.h"
#include "core/wire/frame.h"

namespace tailrace::wire {

// One, or the pieces of the message, in order.
std::vector<std::vector<std::byte>> encode_frames(const Message& message);

// Puts the frames of a session together. It holds one message, of at most kMaxMessageBytes, and no
// more of it than has arrived.
class Assembly {
 public:
  // The next frame. Nothing: a piece, and more are to come. A Failure: it, and those before it that
  // are not a message yet, are void.
  std::optional<Result<Message>> take(std::span<const std::byte> frame);
  // The number of frames that the latest answer of take() is made of.
  int64_t num_frames() const { return num_frames_; }

 private:
  Result<void> add(const Piece& piece);

  std::vector<std::byte> bytes_;
  int64_t total_ = 0;  // 0: none is begun
  int64_t num_frames_ = 0;
};

}  // namespace tailrace::wire
