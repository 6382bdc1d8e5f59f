// A message as the body of a frame (messages.fbs): the number of its type and its fields, as an
// archive. Shared by the messages of a run (frame.h) and those of its gate (gate_frames.h), which
// differ by the identifier of their frames.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "core/base/archive.h"
#include "core/base/result.h"
#include "core/messages/check.h"

namespace tailrace::wire {

namespace fbs {
struct Frame;
struct Header;
}  // namespace fbs

// A list with more elements than `max_count` is refused before room is made for it. A Failure names
// the message and the first thing that is wrong with it.
template <class Variant>
Result<Variant> from_body(std::string_view bytes, uint64_t max_count) {
  if (bytes.empty() || static_cast<uint8_t>(bytes[0]) >= std::variant_size_v<Variant>)
    return Failure{"unknown type of message"};
  Variant message;
  ArchiveReader reader(bytes, max_count);
  reader(message);
  const auto refused = [&](std::string_view why) {
    return Failure{
        fmt::format("{}: {}", std::visit([](const auto& m) { return m.kName; }, message), why)};
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

// `identifier`: of four characters, which says what kind of message a body holds and in which form.
// `write` fills the body in, whose size is known: a message of megabytes is not copied for it.
std::vector<std::byte> to_frame(const fbs::Header& header, size_t body_bytes,
                                const std::function<void(char*)>& write, const char* identifier);
template <class Variant>
std::vector<std::byte> to_frame(const fbs::Header& header, const Variant& message,
                                const char* identifier) {
  ArchiveWriterTo<ArchiveCount> count;
  count(message);
  const auto write = [&](char* body) { ArchiveWriterTo(ArchiveMemory{body})(message); };
  return to_frame(header, count.sink().size, write, identifier);
}
// nullptr: not such a frame. `storage` holds the bytes when they had to be moved.
const fbs::Frame* verified_frame(std::span<const std::byte> frame, const char* identifier,
                                 std::vector<std::byte>& storage);
std::string_view body_of(const fbs::Frame& frame);

}  // namespace tailrace::wire
