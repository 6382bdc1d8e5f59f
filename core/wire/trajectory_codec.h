// Trajectories as bytes: written once by who sampled them, read where tokens are needed.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/trajectory/trajectory.h"
#include "core/wire/codec.h"

namespace tailrace::wire {

namespace fbs {
struct Trajectory;
}  // namespace fbs

flatbuffers::Offset<fbs::Trajectory> write_trajectory(Builder& builder,
                                                      const Trajectory& trajectory);
Trajectory read_trajectory(const fbs::Trajectory& table);

// A trajectory as it is stored and handed over: bytes written once, read many times.
std::vector<std::byte> encode_trajectory(const Trajectory& trajectory);
Result<Trajectory> decode_trajectory(std::span<const std::byte> bytes);  // passes find_fault()

}  // namespace tailrace::wire
