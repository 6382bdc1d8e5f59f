// The ids and metrics of trajectories as FlatBuffers, and back.
//
// read_...() expects a table that the FlatBuffers verifier has passed, and checks what the verifier
// cannot: ranges, enum values, lengths that must agree. It throws Malformed, which
// decode_trajectory() and read_trajectory_header() turn into a Failure: a body has hundreds of
// places where it may be bad and one where that matters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/ids.h"
#include "core/base/metric_list.h"

namespace flatbuffers {
class FlatBufferBuilder;
template <class T>
struct Offset;
template <class T>
class Vector;
}  // namespace flatbuffers

namespace tailrace::wire {

namespace fbs {
struct Lease;
struct Metric;
}  // namespace fbs

using Builder = flatbuffers::FlatBufferBuilder;

class Malformed : public std::runtime_error {
 public:
  template <class... Args>
  explicit Malformed(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// The FlatBuffers verifier sees to the alignment of fields, but not of what is in a vector; the
// builder does not align a vector without elements.
template <class Vector>
void check_aligned(const Vector& structs, size_t alignment, std::string_view what) {
  if (structs.size() > 0 && reinterpret_cast<uintptr_t>(structs.Data()) % alignment != 0)
    throw Malformed("misaligned {}", what);
}

fbs::Lease to_fbs(const LeaseId& id);
LeaseId read_lease(const fbs::Lease& id);
Lane read_lane(uint8_t lane);

using MetricVector = flatbuffers::Vector<flatbuffers::Offset<fbs::Metric>>;
flatbuffers::Offset<MetricVector> write_metrics(Builder& builder, const MetricList& metrics);
MetricList read_metrics(const MetricVector& metrics);

std::vector<std::byte> to_bytes(const Builder& builder);

// `bytes`, or a copy of them in `storage` when they are not aligned for FlatBuffers.
std::span<const std::byte> aligned(std::span<const std::byte> bytes,
                                   std::vector<std::byte>& storage);

}  // namespace tailrace::wire
