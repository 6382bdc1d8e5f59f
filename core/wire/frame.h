// Messages as bytes: a frame is a FlatBuffer (messages.fbs) with the header of the link and one
// message, written by its field list. Bytes from outside are verified before anything of them is
// used: the frame by the FlatBuffers verifier, lengths and enum values as the fields are read, and
// then ranges by the message's check().
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/messages/message.h"

namespace tailrace::wire {

// A message that is larger than a frame may be goes in pieces of so many bytes (pieces.h).
constexpr int64_t kPieceBytes = int64_t{4} << 20;
constexpr int64_t kMaxFrameBytes = kPieceBytes + (int64_t{64} << 10);

// The signals between the two ends of a link outside the conversation. Such a frame carries a
// Heartbeat, but for kWelcome.
enum class Signal : uint8_t {
  kNone,
  kSayHello,  // from the scheduler: I know no session of this number
  kGoodbye,   // from a worker: I end, and all that I sent has been acknowledged
  kWelcome,   // from the scheduler: the answer to a Hello, given again as often as it is heard
};

// The fields that the link adds to every message.
struct Header {
  uint64_t session = 0;  // chosen by the scheduler at Welcome; 0 before
  // 1, 2, ... in each direction; 0: not to be acknowledged (Heartbeat). Of a Hello: how many
  // sessions this incarnation has asked for, this one included.
  uint64_t sequence = 0;
  // All up to this one have been taken over by the sender of this header. Of a Welcome: the
  // sequence of the Hello that it answers.
  uint64_t ack = 0;
  Signal signal = Signal::kNone;
  // All up to this one have arrived at the sender of this header: not to be sent again in this
  // session, but kept until they are acknowledged.
  uint64_t received = 0;
};

// A frame: 8-byte aligned in memory for decode() (one that is not is copied first).
std::vector<std::byte> encode(const Header& header, const Message& message);
struct Decoded {
  Header header;
  Message message;
};
Result<Decoded> decode(std::span<const std::byte> frame);

// A part of the frame of a large message, in a frame of its own.
struct Piece {
  int64_t offset = 0, total = 0;
  std::span<const std::byte> bytes;
};
std::vector<std::byte> encode(const Piece& piece);
// Nothing: the frame holds a message, or is none. The bytes lie in `frame` or in `storage`.
std::optional<Piece> piece_in(std::span<const std::byte> frame, std::vector<std::byte>& storage);

// The header alone, of a frame whose structure is sound; its body may still be refused by decode().
// A link skips such a message (it would be sent again for ever) and counts it.
std::optional<Header> decode_header(std::span<const std::byte> frame);

// Writes another header into a frame that encode() made: how a message is sent again without
// encoding it anew.
void rewrite_header(std::span<std::byte> frame, const Header& header);

}  // namespace tailrace::wire
