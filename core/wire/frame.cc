#include "core/wire/frame.h"

#include <string>

#include "core/base/archive.h"
#include "core/wire/codec.h"
#include "core/wire/messages_generated.h"

namespace tailrace::wire {
namespace {

// The character changes with the header, the fields or the meaning of a message: a peer of another
// build is refused as no frame of ours.
constexpr char kFrameIdentifier[] = "TRWA";

// A list of a message has no more elements: each has some 100 bytes at most, and texts of its own.
constexpr uint64_t kMaxCount = kMaxSlots;

using Bytes = flatbuffers::Offset<flatbuffers::Vector<uint8_t>>;

template <class Range>
Bytes write_bytes(Builder& builder, const Range& bytes) {
  static_assert(sizeof(*bytes.data()) == 1);
  return builder.CreateVector(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

// The number of its type and its fields.
std::string to_archive(const Message& message) {
  ArchiveWriter writer;
  writer(message);
  return writer.take();
}

Result<Message> from_archive(std::string_view bytes) {
  if (bytes.empty() || static_cast<uint8_t>(bytes[0]) >= std::variant_size_v<Message>)
    return Failure{"unknown type of message"};
  Message message;
  ArchiveReader reader(bytes, kMaxCount);
  reader(message);
  const auto refused = [&](std::string_view why) {
    return Failure{fmt::format("{}: {}", name_of(message), why)};
  };
  if (!reader.ok()) return refused(reader.fault());
  if (!reader.at_end()) return refused(fmt::format("{} bytes too many", reader.num_left()));
  Check check;
  std::visit(
      [&](auto& m) {
        m.fields(check);
        if constexpr (requires { m.check(check); }) m.check(check);
      },
      message);
  if (!check.fault().empty()) return refused(check.fault());
  return message;
}

fbs::Header to_fbs(const Header& header) {
  return fbs::Header(header.session, header.sequence, header.ack,
                     static_cast<uint64_t>(header.signal), header.received);
}

Header from_fbs(const fbs::Header& header) {
  return {header.session(), header.sequence(), header.ack(), static_cast<Signal>(header.signal()),
          header.received()};
}

// nullptr: not a frame. `storage` holds the bytes when they had to be moved.
const fbs::Frame* verified_frame(std::span<const std::byte> frame,
                                 std::vector<std::byte>& storage) {
  frame = aligned(frame, storage);
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(frame.data()), frame.size());
  if (!verifier.VerifyBuffer<fbs::Frame>(kFrameIdentifier)) return nullptr;
  return flatbuffers::GetRoot<fbs::Frame>(frame.data());
}

}  // namespace

std::vector<std::byte> encode(const Header& header, const Message& message) {
  std::string archive = to_archive(message);
  // A builder that is too small doubles and copies: for a large body, several times over.
  Builder builder(archive.size() + 512);
  const Bytes body = write_bytes(builder, archive);
  archive = {};
  const fbs::Header wire_header = to_fbs(header);
  builder.Finish(fbs::CreateFrame(builder, &wire_header, body), kFrameIdentifier);
  return to_bytes(builder);
}

std::vector<std::byte> encode(const Piece& piece) {
  Builder builder(piece.bytes.size() + 512);
  const Bytes body = write_bytes(builder, to_archive(Heartbeat{}));
  const auto part =
      fbs::CreatePiece(builder, piece.offset, piece.total, write_bytes(builder, piece.bytes));
  const fbs::Header header = to_fbs(Header{});
  builder.Finish(fbs::CreateFrame(builder, &header, body, part), kFrameIdentifier);
  return to_bytes(builder);
}

std::optional<Piece> piece_in(std::span<const std::byte> frame, std::vector<std::byte>& storage) {
  const fbs::Frame* table = verified_frame(frame, storage);
  if (table == nullptr || table->piece() == nullptr) return std::nullopt;
  const auto& bytes = *table->piece()->bytes();
  return Piece{table->piece()->offset(), table->piece()->total(),
               std::as_bytes(std::span(bytes.data(), bytes.size()))};
}

std::optional<Header> decode_header(std::span<const std::byte> frame) {
  std::vector<std::byte> storage;
  // The header is found through the frame's table, so the frame is verified first.
  const fbs::Frame* table = verified_frame(frame, storage);
  if (table == nullptr || table->header()->signal() > static_cast<uint64_t>(Signal::kWelcome)) {
    return std::nullopt;
  }
  return from_fbs(*table->header());
}

Result<Decoded> decode(std::span<const std::byte> frame) {
  std::vector<std::byte> storage;
  const fbs::Frame* table = verified_frame(frame, storage);
  if (table == nullptr)
    return Failure{fmt::format("{} bytes are not a frame of ours", frame.size())};
  const uint64_t signal = table->header()->signal();
  if (signal > static_cast<uint64_t>(Signal::kWelcome))
    return Failure{fmt::format("unknown signal {}", signal)};
  const auto& body = *table->body();
  auto message = from_archive({reinterpret_cast<const char*>(body.data()), size_t{body.size()}});
  if (!message) return message.failure();
  return Decoded{from_fbs(*table->header()), std::move(message).value()};
}

void rewrite_header(std::span<std::byte> frame, const Header& header) {
  // The header is a struct of fixed size, so its place in the frame does not depend on its values.
  fbs::Header* place = flatbuffers::GetMutableRoot<fbs::Frame>(frame.data())->mutable_header();
  *place = to_fbs(header);
}

}  // namespace tailrace::wire
