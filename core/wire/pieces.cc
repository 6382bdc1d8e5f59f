#include "core/wire/pieces.h"

#include <algorithm>
#include <utility>

namespace tailrace::wire {

std::vector<std::vector<std::byte>> encode_frames(const Message& message) {
  std::vector<std::vector<std::byte>> frames;
  std::vector<std::byte> whole = encode({}, message);
  const int64_t total = std::ssize(whole);
  if (total <= kMaxFrameBytes) {
    frames.push_back(std::move(whole));
    return frames;
  }
  for (int64_t offset = 0; offset < total; offset += kPieceBytes) {
    const auto count = static_cast<size_t>(std::min(kPieceBytes, total - offset));
    frames.push_back(
        encode(Piece{offset, total, std::span(whole).subspan(static_cast<size_t>(offset), count)}));
  }
  return frames;
}

std::optional<Result<Message>> Assembly::take(std::span<const std::byte> frame) {
  if (total_ == 0) num_frames_ = 0;
  ++num_frames_;
  const auto end = [this] {
    total_ = 0;
    return std::exchange(bytes_, {});
  };
  std::vector<std::byte> storage;
  const auto piece = piece_in(frame, storage);
  if (piece) {
    if (auto added = add(*piece); !added) {
      end();
      return added.failure();
    }
    if (std::ssize(bytes_) < total_) return std::nullopt;
    storage = end();
    frame = storage;
  } else if (total_ != 0) {
    end();
    return Failure{"a message among the pieces of another"};
  }
  auto decoded = decode(frame);
  if (!decoded) return decoded.failure();
  return std::move(decoded).value().message;
}

// Pieces have the size that encode_frames() gives them: nobody can hold memory by many small ones.
Result<void> Assembly::add(const Piece& piece) {
  if (total_ == 0 && piece.total > kPieceBytes && piece.total <= kMaxMessageBytes)
    total_ = piece.total;
  if (piece.total != total_ || piece.offset != std::ssize(bytes_) ||
      std::ssize(piece.bytes) != std::min(kPieceBytes, total_ - piece.offset)) {
    return Failure{fmt::format("a piece of {} bytes at {} of {}, where {} of {} are here",
                               piece.bytes.size(), piece.offset, piece.total, bytes_.size(),
                               total_)};
  }
  // Not all at once: what it says of its size may not come.
  const auto size = bytes_.size() + piece.bytes.size();
  if (bytes_.capacity() < size) bytes_.reserve(std::min(2 * size, static_cast<size_t>(total_)));
  bytes_.insert(bytes_.end(), piece.bytes.begin(), piece.bytes.end());
  return {};
}

}  // namespace tailrace::wire
