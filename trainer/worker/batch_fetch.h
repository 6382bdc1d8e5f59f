// The bodies of a batch, fetched in bounded pieces: what to ask for, what has come, when it is
// whole. It asks nobody, so it is tested without a connection.
//
// Small bodies share a request, a large one is cut. A few requests are out at a time, so that the
// next piece is on its way while one is copied, and no more than that is in flight.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "core/messages/message.h"
#include "core/trajectory/trajectory.h"

namespace tailrace {

class BatchFetch {
 public:
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;
  static constexpr int64_t kMostOut = 4;

  // Requests are numbered from `first_request` on: numbers of an earlier fetch mean nothing here.
  BatchFetch(wire::Batch batch, int64_t first_request, int64_t piece_bytes = kPieceBytes);

  // Requests that may go out now.
  std::vector<wire::Fetch> next();
  // An answer to one of them; others are ignored. A Failure: it is not what was asked for.
  Result<void> take(const wire::Payload& payload);

  bool complete() const { return num_taken_ == std::ssize(pieces_); }
  int64_t end_request() const { return first_request_ + std::ssize(pieces_); }
  const wire::Batch& batch() const { return batch_; }

  // Once complete: the trajectories in the batch's order, each proved by its checksum, with the
  // reward that counts. A Failure names the first that is not what the batch said.
  Result<std::vector<Trajectory>> trajectories() const;

 private:
  struct Piece {
    size_t first = 0, last = 0;    // bodies, both inclusive
    int64_t offset = 0;            // in the first of them
    int64_t begin = 0, bytes = 0;  // in bytes_
    bool taken = false;
  };

  wire::Batch batch_;
  int64_t first_request_;
  std::vector<Piece> pieces_;
  std::vector<std::byte> bytes_;  // of all bodies, one behind the other
  int64_t num_asked_ = 0, num_taken_ = 0;
};

}  // namespace tailrace
