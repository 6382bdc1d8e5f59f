#include "core/wire/frame.h"

#include <string>

#include "core/wire/body.h"
#include "core/wire/codec.h"
#include "core/wire/messages_generated.h"

namespace tailrace::wire {
namespace {

// The character changes with the header, the fields or the meaning of a message: a peer of another
// build is refused as no frame of ours.
constexpr char kFrameIdentifier[] = "TRWA";

// A list of a message has no more elements: each has some 100 bytes at most, and texts of its own.
constexpr uint64_t kMaxCount = kMaxSlots;

fbs::Header to_fbs(const Header& header) {
  return fbs::Header(header.session, header.sequence, header.ack,
                     static_cast<uint64_t>(header.signal), header.received);
}

Header from_fbs(const fbs::Header& header) {
  return {header.session(), header.sequence(), header.ack(), static_cast<Signal>(header.signal()),
          header.received()};
}

}  // namespace

std::vector<std::byte> encode(const Header& header, const Message& message) {
  return to_frame(to_fbs(header), message, kFrameIdentifier);
}

std::vector<std::byte> encode(const Piece& piece) {
  Builder builder(piece.bytes.size() + 512);
  ArchiveWriter writer;
  writer(Message(Heartbeat{}));
  const std::string heartbeat = writer.take();
  const auto body =
      builder.CreateVector(reinterpret_cast<const uint8_t*>(heartbeat.data()), heartbeat.size());
  const auto bytes = builder.CreateVector(reinterpret_cast<const uint8_t*>(piece.bytes.data()),
                                          piece.bytes.size());
  const auto part = fbs::CreatePiece(builder, piece.offset, piece.total, bytes);
  const fbs::Header header = to_fbs(Header{});
  builder.Finish(fbs::CreateFrame(builder, &header, body, part), kFrameIdentifier);
  return to_bytes(builder);
}

std::optional<Piece> piece_in(std::span<const std::byte> frame, std::vector<std::byte>& storage) {
  const fbs::Frame* table = verified_frame(frame, kFrameIdentifier, storage);
  if (table == nullptr || table->piece() == nullptr) return std::nullopt;
  const auto& bytes = *table->piece()->bytes();
  return Piece{table->piece()->offset(), table->piece()->total(),
               std::as_bytes(std::span(bytes.data(), bytes.size()))};
}

std::optional<Header> decode_header(std::span<const std::byte> frame) {
  std::vector<std::byte> storage;
  // The header is found through the frame's table, so the frame is verified first.
  const fbs::Frame* table = verified_frame(frame, kFrameIdentifier, storage);
  if (table == nullptr || table->header()->signal() > static_cast<uint64_t>(Signal::kWelcome)) {
    return std::nullopt;
  }
  return from_fbs(*table->header());
}

Result<Decoded> decode(std::span<const std::byte> frame) {
  std::vector<std::byte> storage;
  const fbs::Frame* table = verified_frame(frame, kFrameIdentifier, storage);
  if (table == nullptr)
    return Failure{fmt::format("{} bytes are not a frame of ours", frame.size())};
  const uint64_t signal = table->header()->signal();
  if (signal > static_cast<uint64_t>(Signal::kWelcome))
    return Failure{fmt::format("unknown signal {}", signal)};
  auto message = from_body<Message>(body_of(*table), kMaxCount);
  if (!message) return message.failure();
  return Decoded{from_fbs(*table->header()), std::move(message).value()};
}

void rewrite_header(std::span<std::byte> frame, const Header& header) {
  // The header is a struct of fixed size, so its place in the frame does not depend on its values.
  fbs::Header* place = flatbuffers::GetMutableRoot<fbs::Frame>(frame.data())->mutable_header();
  *place = to_fbs(header);
}

}  // namespace tailrace::wire
