// Values to bytes and back: little-endian, no padding, no tags. A struct lists its fields once
// (fields.h), and that list serves both directions.
//
// A reader never trusts its input: a value that does not fit ends the reading, ok() turns false and
// fault() says why. There are no versions inside; whatever holds the bytes names its format.
//
// Thread: any.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/ids.h"

namespace tailrace {

static_assert(std::endian::native == std::endian::little);

template <class V>
void fields(TaskId& id, V& visit) {
  visit(id.policy, id.dataset, id.epoch, id.prompt);
}
template <class V>
void fields(MemberId& id, V& visit) {
  visit(id.policy, id.dataset, id.epoch, id.prompt, id.launch, id.member);
}
template <class V>
void fields(LeaseId& id, V& visit) {
  visit(id.member, id.attempt);
}
template <class V>
void fields(BodyId& id, V& visit) {
  visit(id.lane, id.lease, id.turns);
}
template <class T, class V>
requires requires(T& value, V& visit) { value.fields(visit); }
void fields(T& value, V& visit) { value.fields(visit); }

namespace archive_detail {
template <class T>
struct is_sequence : std::false_type {};
template <class T>
struct is_sequence<std::vector<T>> : std::true_type {};
template <class T>
struct is_sequence<std::deque<T>> : std::true_type {};
template <class T>
struct is_set : std::false_type {};
template <class T>
struct is_set<std::set<T>> : std::true_type {};
template <class T>
struct is_map : std::false_type {};
template <class K, class T>
struct is_map<std::map<K, T>> : std::true_type {};
template <class T>
struct is_pair : std::false_type {};
template <class A, class B>
struct is_pair<std::pair<A, B>> : std::true_type {};
template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};
template <class T>
struct is_variant : std::false_type {};
template <class... Ts>
struct is_variant<std::variant<Ts...>> : std::true_type {};
}  // namespace archive_detail

// Where the bytes of an archive go: into a text, nowhere (they are counted), or into memory that
// holds as many as were counted.
struct ArchiveText {
  std::string bytes = {};
  void append(const char* begin, size_t size) { bytes.append(begin, size); }
};
struct ArchiveCount {
  size_t size = 0;
  void append(const char* /*begin*/, size_t more) { size += more; }
};
struct ArchiveMemory {
  char* at = nullptr;
  void append(const char* begin, size_t size) { at = std::copy_n(begin, size, at); }
};

template <class Sink>
class ArchiveWriterTo {
 public:
  static constexpr bool kReads = false;
  explicit ArchiveWriterTo(Sink sink = {}) : sink_(std::move(sink)) {}

  template <class... Ts>
  void operator()(const Ts&... values) {
    (write(values), ...);
  }
  const Sink& sink() const { return sink_; }
  std::string take() requires std::is_same_v<Sink, ArchiveText> { return std::move(sink_.bytes); }

 private:
  template <class T>
  void write(const T& value) {
    using namespace archive_detail;
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      sink_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    } else if constexpr (std::is_same_v<T, std::chrono::nanoseconds>) {
      write(int64_t{value.count()});
    } else if constexpr (std::is_same_v<T, std::string>) {
      write(uint64_t{value.size()});
      sink_.append(value.data(), value.size());
    } else if constexpr (std::is_same_v<T, std::vector<std::byte>>) {
      write(uint64_t{value.size()});
      sink_.append(reinterpret_cast<const char*>(value.data()), value.size());
    } else if constexpr (is_sequence<T>::value || is_set<T>::value) {
      write(uint64_t{value.size()});
      for (const auto& item : value) write(item);
    } else if constexpr (is_map<T>::value) {
      write(uint64_t{value.size()});
      for (const auto& [key, item] : value) write(key), write(item);
    } else if constexpr (is_pair<T>::value) {
      write(value.first), write(value.second);
    } else if constexpr (is_optional<T>::value) {
      write(value.has_value());
      if (value) write(*value);
    } else if constexpr (is_variant<T>::value) {
      write(static_cast<uint8_t>(value.index()));
      std::visit([this](const auto& item) { this->write(item); }, value);
    } else {
      // The field list is shared with the reader, hence not const; writing changes nothing.
      fields(const_cast<T&>(value), *this);
    }
  }

  Sink sink_;
};

using ArchiveWriter = ArchiveWriterTo<ArchiveText>;

class ArchiveReader {
 public:
  static constexpr bool kReads = true;
  // A list of more than `max_count` elements is refused before room is made for them; texts and
  // bytes are no lists.
  explicit ArchiveReader(std::string_view bytes, uint64_t max_count = UINT64_MAX)
      : rest_(bytes), max_count_(max_count) {}

  template <class... Ts>
  void operator()(Ts&... values) {
    (read(values), ...);
  }
  bool ok() const { return fault_.empty(); }
  // For a field list: what was read cannot be true.
  void refuse(std::string_view why = "it contradicts itself") {
    if (ok()) fault_ = why;
  }
  bool at_end() const { return ok() && rest_.empty(); }
  // Why the bytes are not a value of this type; empty: they are, as far as they were read.
  std::string_view fault() const { return fault_; }
  size_t num_left() const { return rest_.size(); }

 private:
  bool take(void* out, size_t size) {
    if (rest_.size() < size) refuse("it ends too early");
    if (!ok()) return false;
    std::memcpy(out, rest_.data(), size);
    rest_.remove_prefix(size);
    return true;
  }
  // An element takes at least one byte, so a count beyond the bytes left is a lie.
  uint64_t read_size() {
    uint64_t size = 0;
    if (take(&size, sizeof(size)) && size > rest_.size()) refuse("it ends too early");
    return ok() ? size : 0;
  }
  uint64_t read_count() {
    const uint64_t count = read_size();
    if (count > max_count_) refuse("a list is too long");
    return ok() ? count : 0;
  }

  template <class T>
  void read(T& value) {
    using namespace archive_detail;
    if (!ok()) return;
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      if (take(&byte, 1) && byte > 1) refuse("a flag is neither 0 nor 1");
      value = byte == 1;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      take(&value, sizeof(T));
      // Outside of its table it would have no name.
      if constexpr (NamedEnum<T>)
        if (static_cast<size_t>(value) >= kEnumNames<T>.size()) refuse("a value has no name");
    } else if constexpr (std::is_same_v<T, std::chrono::nanoseconds>) {
      int64_t count = 0;
      read(count);
      value = std::chrono::nanoseconds(count);
    } else if constexpr (std::is_same_v<T, std::string>) {
      const uint64_t size = read_size();
      value.assign(rest_.substr(0, size));
      rest_.remove_prefix(size);
    } else if constexpr (std::is_same_v<T, std::vector<std::byte>>) {
      const uint64_t size = read_size();
      const auto* begin = reinterpret_cast<const std::byte*>(rest_.data());
      value.assign(begin, begin + size);
      rest_.remove_prefix(size);
    } else if constexpr (is_sequence<T>::value) {
      value.clear();
      for (uint64_t left = read_count(); left > 0 && ok(); --left) read(value.emplace_back());
    } else if constexpr (is_set<T>::value) {
      value.clear();
      for (uint64_t left = read_count(); left > 0 && ok(); --left) {
        typename T::value_type item{};
        read(item);
        value.insert(std::move(item));
      }
    } else if constexpr (is_map<T>::value) {
      value.clear();
      for (uint64_t left = read_count(); left > 0 && ok(); --left) {
        typename T::key_type key{};
        read(key);
        read(value[key]);
      }
    } else if constexpr (is_pair<T>::value) {
      read(value.first), read(value.second);
    } else if constexpr (is_optional<T>::value) {
      bool present = false;
      read(present);
      value.reset();
      if (ok() && present) read(value.emplace());
    } else if constexpr (is_variant<T>::value) {
      read_variant(value);
    } else {
      fields(value, *this);
    }
  }

  template <class... Ts>
  void read_variant(std::variant<Ts...>& value) {
    uint8_t index = 0;
    read(index);
    uint8_t at = 0;
    bool found = false;
    ((at++ == index && ok() ? (found = true, read(value.template emplace<Ts>()), 0) : 0), ...);
    if (!found) refuse("an alternative is unknown");
  }

  std::string_view rest_;
  uint64_t max_count_;
  std::string_view fault_;
};

}  // namespace tailrace
