// The frames between a worker of another host and the gate of a run beside the messages of the
// run: files in chunks, lines of the log, and who relays weights. A frame is one of messages.fbs
// with an identifier of its own and an empty header; as in frame.h it is verified before anything
// of it is used.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/base/digest.h"
#include "core/base/fields.h"
#include "core/base/result.h"
#include "core/messages/check.h"
#include "core/run/log.h"

namespace tailrace::wire {

// A file goes in chunks of so many bytes, each with a digest of its own; of a file with more than
// kMaxChunks of these, in larger ones.
inline constexpr int64_t kChunkBytes = int64_t{256} << 10;
inline constexpr int64_t kMaxChunkBytes = int64_t{4} << 20;
inline constexpr int64_t kMaxChunks = 100'000;

#define TR_GATE_MESSAGE(Type, ...)                 \
  static constexpr std::string_view kName = #Type; \
  TR_FIELDS(Type, __VA_ARGS__)

// ---- worker -> gate. `incarnation`: of the process, as in its Greeting.

struct AskFile {
  uint64_t incarnation = 0;
  std::string name;  // below the run: "weights/p0-v3.json"
  TR_GATE_MESSAGE(AskFile, incarnation, name);
  void check(Check& c);
};
struct AskChunk {
  uint64_t incarnation = 0;
  Digest digest;  // of the file
  int64_t index = 0;
  TR_GATE_MESSAGE(AskChunk, incarnation, digest, index);
  void check(Check& c);
};
struct LogLine {
  LogLevel level = LogLevel::kWarning;
  std::string text;
  TR_FIELDS(LogLine, level, text);
};
struct LogLines {
  uint64_t incarnation = 0;
  uint64_t first = 0;  // number of the first one, counted from 1
  std::vector<LogLine> lines;
  TR_GATE_MESSAGE(LogLines, incarnation, first, lines);
  void check(Check& c);
};
struct Leave {
  uint64_t incarnation = 0;
  TR_GATE_MESSAGE(Leave, incarnation);
};
struct AskRelays {
  uint64_t incarnation = 0;
  Digest known;  // of the list that it has; empty: none. There is no answer while it is the same
  TR_GATE_MESSAGE(AskRelays, incarnation, known);
  void check(Check& c);
};

// ---- gate -> worker

struct FileFacts {
  enum class Status : uint8_t {
    kThere,
    kLater,   // its digests are being computed, or a relay fetches it itself: ask again
    kAbsent,  // `reason` says why it is not given
  };
  friend constexpr auto enum_names(Status) {
    using enum Status;
    return name_table<Status>({{kThere, "there"}, {kLater, "later"}, {kAbsent, "absent"}});
  }
  std::string name;
  Status status = Status::kThere;
  std::string reason = {};
  Digest digest = {};  // over the digests of its chunks, of the bytes that travel
  // The bytes that travel: the first ones. Of kLater: a number that changes while it gets on, so
  // that a source which makes progress can be told from one that does not.
  int64_t bytes = 0;
  // Size of the file. What lies behind `bytes` is a hole, which nobody reads: of the weights that a
  // run began with only the header is of use elsewhere.
  int64_t apparent_bytes = 0;
  int64_t chunk_bytes = kChunkBytes;
  std::vector<Digest> chunks = {};
  TR_GATE_MESSAGE(FileFacts, name, status, reason, digest, bytes, apparent_bytes, chunk_bytes,
                  chunks);
  void check(Check& c);
};
struct Chunk {
  Digest digest;
  int64_t index = 0;
  std::vector<std::byte> bytes;
  TR_GATE_MESSAGE(Chunk, digest, index, bytes);
  void check(Check& c);
};
struct LogTaken {
  uint64_t through = 0;  // all lines up to this one are written
  TR_GATE_MESSAGE(LogTaken, through);
};
// A worker that hands the weights on to other hosts of its cluster.
struct RelayAddress {
  std::string name;        // of the worker
  std::string address;     // "tcp://10.1.0.7:7702"
  std::string public_key;  // by which it is known there, as Z85
  TR_FIELDS(RelayAddress, name, address, public_key);
};
// The relays of a cluster in the order of their admission, and the keys of the workers that may
// have weights there.
struct RelayList {
  Digest digest;  // of both lists (digest_of_relays())
  std::vector<RelayAddress> relays;
  std::vector<std::string> guests;
  TR_GATE_MESSAGE(RelayList, digest, relays, guests);
  void check(Check& c);
};
Digest digest_of_relays(const RelayList& list);

// The order is part of the identifier of their frames.
using GateMessage = std::variant<AskFile, FileFacts, AskChunk, Chunk, LogLines, LogTaken, Leave,
                                 AskRelays, RelayList>;

// Number of chunks of a file.
int64_t num_chunks(int64_t bytes, int64_t chunk_bytes);

std::vector<std::byte> encode(const GateMessage& message);
// A Failure: not such a frame, or values that make no sense.
Result<GateMessage> decode_gate_message(std::span<const std::byte> frame);

}  // namespace tailrace::wire
