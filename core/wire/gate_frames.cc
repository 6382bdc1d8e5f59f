#include "core/wire/gate_frames.h"

#include <fmt/format.h>

#include "core/base/digest_of.h"
#include "core/wire/body.h"
#include "core/wire/curve_keys.h"
#include "core/wire/messages_generated.h"
#include "core/wire/tcp_address.h"

namespace tailrace::wire {
namespace {

// The digit changes with the meaning of a message; builds that differ have greeted before.
constexpr char kGateIdentifier[] = "TRG2";
constexpr size_t kMaxFileName = 1024, kMaxLine = 2000, kMaxLines = 256;
// As many as a gate admits at most (gate.cc).
constexpr size_t kMaxRelays = 512, kMaxRelayGuests = 512;
constexpr int64_t kMaxFileBytes = int64_t{1} << 50;

void in_range(Check& c, int64_t lowest, int64_t value, int64_t highest, std::string_view what) {
  c.require(value >= lowest && value <= highest, "{} is {}", what, value);
}
void digest_in(Check& c, std::string_view text) {
  c.require(is_digest(text), "a digest of {} characters", text.size());
}
void text_in(Check& c, std::string_view text, size_t longest, std::string_view what) {
  c.require(text.size() <= longest, "{} of {} characters", what, text.size());
}
void key_in(Check& c, std::string_view text) {
  c.require(is_curve_key(text), "a key of {} characters", text.size());
}

}  // namespace

void AskFile::check(Check& c) { text_in(c, name, kMaxFileName, "a file name"); }

void AskChunk::check(Check& c) {
  digest_in(c, digest);
  in_range(c, 0, index, kMaxFileBytes, "index");
}

void LogLines::check(Check& c) {
  c.require(lines.size() <= kMaxLines, "{} lines", lines.size());
  for (LogLine& line : lines) c.cut(line.text, kMaxLine);
}

void AskRelays::check(Check& c) {
  if (!known.empty()) digest_in(c, known);
}

void FileFacts::check(Check& c) {
  text_in(c, name, kMaxFileName, "a file name");
  text_in(c, reason, kMaxLine, "a reason");
  in_range(c, 0, bytes, kMaxFileBytes, "bytes");
  in_range(c, 0, apparent_bytes, kMaxFileBytes, "bytes");
  in_range(c, 1, chunk_bytes, kMaxChunkBytes, "chunk_bytes");
  if (!c.fault().empty()) return;
  if (status != Status::kThere) {
    // Nobody has proved them, and nobody may come to believe them.
    digest.clear();
    return chunks.clear();
  }
  digest_in(c, digest);
  c.require(apparent_bytes >= bytes, "{} bytes of a file of {}", bytes, apparent_bytes);
  c.require(std::ssize(chunks) == num_chunks(bytes, chunk_bytes), "{} digests for {} bytes",
            chunks.size(), bytes);
  for (const Digest& chunk : chunks) digest_in(c, chunk);
}

void Chunk::check(Check& c) {
  digest_in(c, digest);
  in_range(c, 0, index, kMaxFileBytes, "index");
  c.require(std::ssize(bytes) <= kMaxChunkBytes, "a chunk of {} bytes", bytes.size());
}

void RelayList::check(Check& c) {
  c.require(relays.size() <= kMaxRelays && guests.size() <= kMaxRelayGuests,
            "{} relays and {} guests", relays.size(), guests.size());
  digest_in(c, digest);
  for (const RelayAddress& relay : relays) {
    key_in(c, relay.public_key);
    c.require(is_site_name(relay.name) && is_address_to_reach(relay.address),
              "no relay of a name and an address");
  }
  for (const std::string& guest : guests) key_in(c, guest);
  if (c.fault().empty())
    c.require(digest_of_relays(*this) == digest, "another digest than that of the list");
}

int64_t num_chunks(int64_t bytes, int64_t chunk_bytes) {
  return (bytes + chunk_bytes - 1) / chunk_bytes;
}

Digest digest_of_relays(const RelayList& list) {
  std::string all;
  for (const RelayAddress& relay : list.relays)
    all += fmt::format("{} {} {}\n", relay.name, relay.address, relay.public_key);
  for (const std::string& guest : list.guests) all += fmt::format("{}\n", guest);
  return digest_of(std::string_view(all));
}

std::vector<std::byte> encode(const GateMessage& message) {
  return to_frame(fbs::Header(), message, kGateIdentifier);
}

Result<GateMessage> decode_gate_message(std::span<const std::byte> frame) {
  std::vector<std::byte> storage;
  const fbs::Frame* table = verified_frame(frame, kGateIdentifier, storage);
  if (table == nullptr)
    return Failure{fmt::format("{} bytes are no frame of the gate", frame.size())};
  return from_body<GateMessage>(body_of(*table), uint64_t{kMaxChunks});
}

}  // namespace tailrace::wire
