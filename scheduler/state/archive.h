// Bytes of the journal and the snapshots (core/base/archive.h), and their format's number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/archive.h"
#include "scheduler/state/hashed_map.h"

namespace tailrace {

template <class K, class T>
struct archive_detail::is_map<scheduler::HashedMap<K, T>> : std::true_type {};

}  // namespace tailrace

namespace tailrace::scheduler {

// Raised when a field list changes (law 13.4): files of another format are refused with a message.
constexpr uint32_t kArchiveFormat = 28;

template <class T>
std::string to_bytes(const T& value) {
  ArchiveWriter writer;
  writer(value);
  return writer.take();
}

// All of `bytes` or nothing.
template <class T>
std::optional<T> from_bytes(std::string_view bytes) {
  T value;
  ArchiveReader reader(bytes);
  reader(value);
  if (!reader.at_end()) return std::nullopt;
  if constexpr (requires { value.after_reading(); }) value.after_reading();
  return value;
}

}  // namespace tailrace::scheduler
