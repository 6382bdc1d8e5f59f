#include "core/wire/gate_frames.h"

#include "core/base/digest_of.h"
#include "core/messages/check.h"
#include "core/wire/codec.h"
#include "core/wire/curve_keys.h"
#include "core/wire/gate_generated.h"
#include "core/wire/tcp_address.h"

namespace tailrace::wire {
namespace {

using Offset = flatbuffers::Offset<void>;

// The digit changes with the meaning of a message; builds that differ have greeted before.
constexpr char kGateIdentifier[] = "TRG1";
constexpr size_t kMaxFileName = 1024, kMaxLine = 2000, kMaxLines = 256;
// As many as a gate admits at most (gate.cc).
constexpr size_t kMaxRelays = 512, kMaxRelayGuests = 512;
constexpr int64_t kMaxFileBytes = int64_t{1} << 50;

Offset write_gate(Builder& b, const AskFile& m) {
  return gate_fbs::CreateAskFile(b, m.incarnation, b.CreateString(m.name)).Union();
}
Offset write_gate(Builder& b, const FileFacts& m) {
  std::string digests;
  digests.reserve(m.chunks.size() * kDigestDigits);
  for (const Digest& digest : m.chunks) digests += digest;
  const auto name = b.CreateString(m.name), reason = b.CreateString(m.reason),
             digest = b.CreateString(m.digest), chunks = b.CreateString(digests);
  return gate_fbs::CreateFileFacts(b, name, static_cast<uint8_t>(m.status), reason, digest, m.bytes,
                                   m.apparent_bytes, m.chunk_bytes, chunks)
      .Union();
}
Offset write_gate(Builder& b, const AskChunk& m) {
  return gate_fbs::CreateAskChunk(b, m.incarnation, b.CreateString(m.digest), m.index).Union();
}
Offset write_gate(Builder& b, const Chunk& m) {
  const auto digest = b.CreateString(m.digest);
  const auto bytes =
      b.CreateVector(reinterpret_cast<const uint8_t*>(m.bytes.data()), m.bytes.size());
  return gate_fbs::CreateChunk(b, digest, m.index, bytes).Union();
}
Offset write_gate(Builder& b, const LogLines& m) {
  std::vector<flatbuffers::Offset<gate_fbs::LogLine>> lines;
  for (const LogLine& line : m.lines)
    lines.push_back(gate_fbs::CreateLogLine(b, static_cast<uint8_t>(line.level),
                                            b.CreateString(line.text.substr(0, kMaxLine))));
  return gate_fbs::CreateLogLines(b, m.incarnation, m.first, b.CreateVector(lines)).Union();
}
Offset write_gate(Builder& b, const LogTaken& m) {
  return gate_fbs::CreateLogTaken(b, m.through).Union();
}
Offset write_gate(Builder& b, const Leave& m) {
  return gate_fbs::CreateLeave(b, m.incarnation).Union();
}
Offset write_gate(Builder& b, const AskRelays& m) {
  return gate_fbs::CreateAskRelays(b, m.incarnation, b.CreateString(m.known)).Union();
}
Offset write_gate(Builder& b, const RelayList& m) {
  std::vector<flatbuffers::Offset<gate_fbs::WeightRelay>> relays;
  for (const RelayAddress& relay : m.relays)
    relays.push_back(gate_fbs::CreateWeightRelay(b, b.CreateString(relay.name),
                                                 b.CreateString(relay.address),
                                                 b.CreateString(relay.public_key)));
  const auto digest = b.CreateString(m.digest);
  const auto all = b.CreateVector(relays);
  return gate_fbs::CreateRelayList(b, digest, all, b.CreateVectorOfStrings(m.guests)).Union();
}

int64_t in_range(int64_t lowest, int64_t value, int64_t highest, std::string_view what) {
  if (value < lowest || value > highest) throw Malformed("{} is {}", what, value);
  return value;
}

Digest digest_in(std::string_view text) {
  if (!is_digest(text)) throw Malformed("a digest of {} characters", text.size());
  return Digest(text);
}

std::string text_in(const flatbuffers::String& text, size_t longest, std::string_view what) {
  if (text.size() > longest) throw Malformed("{} of {} characters", what, text.size());
  return text.str();
}

GateMessage read_gate(const gate_fbs::AskFile& t) {
  return AskFile{t.incarnation(), text_in(*t.name(), kMaxFileName, "a file name")};
}
GateMessage read_gate(const gate_fbs::FileFacts& t) {
  FileFacts facts{.name = text_in(*t.name(), kMaxFileName, "a file name"),
                  .status = FileFacts::Status(in_range(0, t.status(), 2, "status")),
                  .reason = text_in(*t.reason(), kMaxLine, "a reason"),
                  .digest = {},
                  .bytes = in_range(0, t.bytes(), kMaxFileBytes, "bytes"),
                  .apparent_bytes = in_range(0, t.apparent_bytes(), kMaxFileBytes, "bytes"),
                  .chunk_bytes = in_range(1, t.chunk_bytes(), kMaxChunkBytes, "chunk_bytes"),
                  .chunks = {}};
  if (facts.status != FileFacts::Status::kThere) return facts;
  facts.digest = digest_in(t.digest()->string_view());
  if (facts.apparent_bytes < facts.bytes)
    throw Malformed("{} bytes of a file of {}", facts.bytes, facts.apparent_bytes);
  const std::string_view digests = t.chunk_digests()->string_view();
  if (std::ssize(digests) !=
      num_chunks(facts.bytes, facts.chunk_bytes) * static_cast<int64_t>(kDigestDigits))
    throw Malformed("digests of {} characters for {} bytes", digests.size(), facts.bytes);
  for (size_t at = 0; at < digests.size(); at += kDigestDigits)
    facts.chunks.push_back(digest_in(digests.substr(at, kDigestDigits)));
  return facts;
}
GateMessage read_gate(const gate_fbs::AskChunk& t) {
  return AskChunk{t.incarnation(), digest_in(t.digest()->string_view()),
                  in_range(0, t.index(), kMaxFileBytes, "index")};
}
GateMessage read_gate(const gate_fbs::Chunk& t) {
  const auto& bytes = *t.bytes();
  if (bytes.size() > kMaxChunkBytes) throw Malformed("a chunk of {} bytes", bytes.size());
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return Chunk{digest_in(t.digest()->string_view()),
               in_range(0, t.index(), kMaxFileBytes, "index"),
               {begin, begin + bytes.size()}};
}
GateMessage read_gate(const gate_fbs::LogLines& t) {
  LogLines lines{t.incarnation(), t.first(), {}};
  if (t.lines()->size() > kMaxLines) throw Malformed("{} lines", t.lines()->size());
  for (const auto* line : *t.lines())
    lines.lines.push_back(
        {LogLevel(in_range(0, line->level(), static_cast<int64_t>(LogLevel::kError), "level")),
         text_in(*line->text(), kMaxLine, "a line")});
  return lines;
}
GateMessage read_gate(const gate_fbs::LogTaken& t) { return LogTaken{t.through()}; }
GateMessage read_gate(const gate_fbs::Leave& t) { return Leave{t.incarnation()}; }
GateMessage read_gate(const gate_fbs::AskRelays& t) {
  if (t.known()->size() == 0) return AskRelays{t.incarnation(), {}};
  return AskRelays{t.incarnation(), digest_in(t.known()->string_view())};
}
std::string key_in(const flatbuffers::String& text) {
  if (!is_curve_key(text.string_view())) throw Malformed("a key of {} characters", text.size());
  return text.str();
}
GateMessage read_gate(const gate_fbs::RelayList& t) {
  if (t.relays()->size() > kMaxRelays || t.guests()->size() > kMaxRelayGuests)
    throw Malformed("{} relays and {} guests", t.relays()->size(), t.guests()->size());
  RelayList list{.digest = digest_in(t.digest()->string_view()), .relays = {}, .guests = {}};
  for (const auto* relay : *t.relays()) {
    list.relays.push_back(
        {relay->name()->str(), relay->address()->str(), key_in(*relay->public_key())});
    const RelayAddress& read = list.relays.back();
    if (!is_site_name(read.name) || !is_address_to_reach(read.address))
      throw Malformed("no relay of a name and an address");
  }
  for (const auto* guest : *t.guests()) list.guests.push_back(key_in(*guest));
  if (digest_of_relays(list) != list.digest)
    throw Malformed("another digest than that of the list");
  return list;
}

GateMessage read_gate_body(const gate_fbs::Frame& frame) {
  switch (frame.body_type()) {
    case gate_fbs::Body::AskFile:
      return read_gate(*frame.body_as_AskFile());
    case gate_fbs::Body::FileFacts:
      return read_gate(*frame.body_as_FileFacts());
    case gate_fbs::Body::AskChunk:
      return read_gate(*frame.body_as_AskChunk());
    case gate_fbs::Body::Chunk:
      return read_gate(*frame.body_as_Chunk());
    case gate_fbs::Body::LogLines:
      return read_gate(*frame.body_as_LogLines());
    case gate_fbs::Body::LogTaken:
      return read_gate(*frame.body_as_LogTaken());
    case gate_fbs::Body::Leave:
      return read_gate(*frame.body_as_Leave());
    case gate_fbs::Body::AskRelays:
      return read_gate(*frame.body_as_AskRelays());
    case gate_fbs::Body::RelayList:
      return read_gate(*frame.body_as_RelayList());
    case gate_fbs::Body::NONE:
      break;
  }
  throw Malformed("unknown message type {}", static_cast<int>(frame.body_type()));
}

}  // namespace

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
  const auto* chunk = std::get_if<Chunk>(&message);
  Builder builder(512 + (chunk != nullptr ? chunk->bytes.size() : 0));
  const Offset body = std::visit([&](const auto& m) { return write_gate(builder, m); }, message);
  const auto type = static_cast<gate_fbs::Body>(message.index() + 1);
  builder.Finish(gate_fbs::CreateFrame(builder, type, body), kGateIdentifier);
  return to_bytes(builder);
}
static_assert(std::variant_size_v<GateMessage> == static_cast<size_t>(gate_fbs::Body::MAX));

Result<GateMessage> decode_gate_message(std::span<const std::byte> frame) {
  std::vector<std::byte> storage;
  frame = aligned(frame, storage);
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(frame.data()), frame.size());
  if (!verifier.VerifyBuffer<gate_fbs::Frame>(kGateIdentifier))
    return Failure{fmt::format("{} bytes are no frame of the gate", frame.size())};
  const gate_fbs::Frame* table = flatbuffers::GetRoot<gate_fbs::Frame>(frame.data());
  try {
    return read_gate_body(*table);
  } catch (const Malformed& error) {
    return Failure{fmt::format("{}: {}", gate_fbs::EnumNameBody(table->body_type()), error.what())};
  }
}

}  // namespace tailrace::wire
