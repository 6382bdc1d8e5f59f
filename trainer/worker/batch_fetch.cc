#include "trainer/worker/batch_fetch.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/wire/trajectory_codec.h"
#include "kernels/base/check.h"

namespace tailrace {

BatchFetch::BatchFetch(wire::Batch batch, int64_t first_request, int64_t piece_bytes)
    : batch_(std::move(batch)), first_request_(first_request) {
  TR_CHECK(piece_bytes >= 1);
  int64_t begin = 0;
  for (size_t i = 0; i < batch_.items.size(); ++i) {
    const int64_t size = batch_.items[i].bytes;
    for (int64_t offset = 0; offset < size;) {
      // Behind the rest of a large body, too: a Fetch counts its offset in the first of its bodies
      // only.
      const bool joins =
          offset == 0 && !pieces_.empty() && pieces_.back().bytes + size <= piece_bytes;
      if (joins) {
        pieces_.back().last = i;
        pieces_.back().bytes += size;
        offset = size;
      } else {
        const int64_t bytes = std::min(piece_bytes, size - offset);
        pieces_.push_back(
            {.first = i, .last = i, .offset = offset, .begin = begin + offset, .bytes = bytes});
        offset += bytes;
      }
    }
    begin += size;
  }
  bytes_.resize(static_cast<size_t>(begin));
}

std::vector<wire::Fetch> BatchFetch::next() {
  std::vector<wire::Fetch> requests;
  while (num_asked_ < std::ssize(pieces_) && num_asked_ - num_taken_ < kMostOut) {
    const Piece& piece = pieces_[static_cast<size_t>(num_asked_)];
    wire::Fetch fetch{.request = first_request_ + num_asked_,
                      .bodies = {},
                      .offset = piece.offset,
                      .max_bytes = piece.bytes};
    for (size_t i = piece.first; i <= piece.last; ++i)
      fetch.bodies.push_back({Lane::kTrain, batch_.items[i].lease});
    requests.push_back(std::move(fetch));
    ++num_asked_;
  }
  return requests;
}

Result<void> BatchFetch::take(const wire::Payload& payload) {
  const int64_t index = payload.request - first_request_;
  // An answer to a batch that was forgotten: numbers of requests are never used again.
  if (index < 0 || index >= num_asked_) return {};
  Piece& piece = pieces_[static_cast<size_t>(index)];
  // Delivery is at least once.
  if (piece.taken) return {};
  if (std::ssize(payload.bytes) != piece.bytes) {
    return Failure{fmt::format("{} bytes came where {} were asked for ({})", payload.bytes.size(),
                               piece.bytes, to_string(batch_.items[piece.first].lease))};
  }
  std::ranges::copy(payload.bytes, bytes_.begin() + piece.begin);
  piece.taken = true;
  ++num_taken_;
  return {};
}

Result<std::vector<Trajectory>> BatchFetch::trajectories() const {
  TR_CHECK(complete(), "{} of {} pieces", num_taken_, pieces_.size());
  std::vector<Trajectory> trajectories;
  std::span<const std::byte> rest = bytes_;
  for (const wire::Batch::Item& item : batch_.items) {
    const auto body = rest.first(static_cast<size_t>(item.bytes));
    rest = rest.subspan(body.size());
    // The store file's checksum: what was handed out is proved to be what came from the worker.
    if (wire::checksum_of(body) != item.checksum)
      return Failure{fmt::format("{}: its bytes have another checksum", to_string(item.lease))};
    auto trajectory = wire::decode_trajectory(body);
    if (!trajectory) return trajectory.failure();
    if (trajectory.value().lease != item.lease) {
      return Failure{fmt::format("{}: the bytes are those of {}", to_string(item.lease),
                                 to_string(trajectory.value().lease))};
    }
    // A verifier's score came after the body was written, and bodies are written once.
    trajectory.value().reward = item.reward;
    trajectory.value().judged = item.judged;
    trajectories.push_back(std::move(trajectory).value());
  }
  return trajectories;
}

}  // namespace tailrace
