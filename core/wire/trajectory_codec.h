// Trajectories as bytes: written once by who sampled them, read where tokens are needed.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/trajectory/trajectory.h"

namespace tailrace::wire {

// The header's counts are those of the segments.
std::vector<std::byte> encode_trajectory(const Trajectory& trajectory);

// All of it, tokens included: O(tokens). A Failure for bytes that are not a trajectory, or whose
// parts do not fit each other (find_fault()).
Result<Trajectory> decode_trajectory(std::span<const std::byte> bytes);

// The header of a trajectory, in a time that does not grow with its tokens: the structure is
// proved, the tokens are not looked at.
Result<TrajectoryHeader> read_trajectory_header(std::span<const std::byte> bytes);

// XXH3-64 of an encoded trajectory: the store's, proved again by who fetched the bytes.
uint64_t checksum_of(std::span<const std::byte> bytes);

}  // namespace tailrace::wire
