#include "core/run/tensorboard.h"

#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

namespace tailrace {
namespace {

static_assert(std::endian::native == std::endian::little,
              "records are written as they lie in memory");

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    // The Castagnoli polynomial 0x1EDC6F41 with its bits reversed.
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

template <class T>
void append_raw(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// Protobuf wire format: a field is varint(number << 3 | wire type) and its value.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}
void append_tag(std::string& out, uint32_t field, WireType type) {
  append_varint(out, field << 3 | type);
}
void append_double(std::string& out, uint32_t field, double value) {
  append_tag(out, field, kFixed64);
  append_raw(out, value);
}
void append_float(std::string& out, uint32_t field, float value) {
  append_tag(out, field, kFixed32);
  append_raw(out, value);
}
void append_int(std::string& out, uint32_t field, int64_t value) {
  append_tag(out, field, kVarint);
  append_varint(out, static_cast<uint64_t>(value));
}
void append_bytes(std::string& out, uint32_t field, std::string_view value) {
  append_tag(out, field, kBytes);
  append_varint(out, value.size());
  out += value;
}

// Reads a message field by field. Every length is checked: the bytes come from a file.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}

  struct Field {
    uint32_t number = 0;
    uint64_t integer = 0;    // kVarint, kFixed64, kFixed32: the raw bits
    std::string_view bytes;  // kBytes
  };
  // Nothing at the end or after a fault.
  std::optional<Field> next() {
    if (rest_.empty() || faulty_) return std::nullopt;
    uint64_t tag = varint();
    Field field;
    field.number = static_cast<uint32_t>(tag >> 3);
    switch (tag & 7) {
      case kVarint:
        field.integer = varint();
        break;
      case kFixed64:
        field.integer = raw<uint64_t>();
        break;
      case kFixed32:
        field.integer = raw<uint32_t>();
        break;
      case kBytes: {
        uint64_t size = varint();
        if (size > rest_.size()) faulty_ = true;
        // The size itself may have been cut off, which varint() has noted.
        if (!faulty_) {
          field.bytes = rest_.substr(0, size);
          rest_.remove_prefix(size);
        }
        break;
      }
      default:
        // Groups (3 and 4), which the messages of TensorBoard have none of.
        faulty_ = true;
    }
    if (faulty_) return std::nullopt;
    return field;
  }
  bool faulty() const { return faulty_; }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    // At most ten bytes: an eleventh would shift beyond 64 bits.
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    faulty_ = true;
    return 0;
  }
  template <class T>
  T raw() {
    T value{};
    if (rest_.size() < sizeof(T)) {
      faulty_ = true;
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }

  std::string_view rest_;
  bool faulty_ = false;
};

bool read_summary(std::string_view bytes, ScalarEvent& event) {
  MessageReader summary(bytes);
  while (auto value = summary.next()) {
    // Fields that we do not know are passed over, as protobuf asks of a reader.
    if (value->number != 1) continue;
    std::pair<std::string, float> scalar;
    MessageReader fields(value->bytes);
    while (auto field = fields.next()) {
      if (field->number == 1) scalar.first = field->bytes;
      if (field->number == 2)
        scalar.second = std::bit_cast<float>(static_cast<uint32_t>(field->integer));
    }
    if (fields.faulty()) return false;
    event.values.push_back(std::move(scalar));
  }
  return !summary.faulty();
}

std::optional<ScalarEvent> read_event(std::string_view bytes) {
  ScalarEvent event;
  MessageReader fields(bytes);
  while (auto field = fields.next()) {
    if (field->number == 1) event.wall_seconds = std::bit_cast<double>(field->integer);
    if (field->number == 2) event.step = static_cast<int64_t>(field->integer);
    if (field->number == 3) event.file_version = field->bytes;
    if (field->number == 5 && !read_summary(field->bytes, event)) return std::nullopt;
    if (field->number == 7) event.session_start = true;
  }
  if (fields.faulty()) return std::nullopt;
  return event;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (char byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  // Masked, because the checksum of bytes that hold their own checksum is a weak one (a rule of
  // LevelDB and TensorFlow).
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

std::string event_record(std::string_view message) {
  std::string record;
  append_raw(record, static_cast<uint64_t>(message.size()));
  append_raw(record, masked_crc32c(record));
  record += message;
  append_raw(record, masked_crc32c(message));
  return record;
}

Result<EventFile> EventFile::create(const std::filesystem::path& directory, double wall_seconds,
                                    int64_t first_step) {
  // Ten digits, for TensorBoard reads the files of a folder in the order of their names.
  // A second launch within the same second gets a name of its own.
  std::filesystem::path path;
  auto seconds = static_cast<int64_t>(wall_seconds);
  do {
    path = directory / fmt::format("events.out.tfevents.{:010}.tailrace", seconds++);
  } while (std::filesystem::exists(path));

  auto file = AppendFile::open(path);
  if (!file) return file.failure();
  EventFile events;
  events.file_ = std::move(file).value();

  std::string header;
  append_double(header, 1, wall_seconds);
  // Must be in the first record. Version 2 also makes TensorBoard heed session starts, like the one
  // below; for older files it guesses from steps that go back.
  append_bytes(header, 3, "brain.Event:2");
  std::string start;
  append_double(start, 1, wall_seconds);
  append_int(start, 2, first_step);
  std::string session_log;
  append_int(session_log, 1, 1);  // SessionLog.status = START
  // A session start with a step tells TensorBoard to drop what an earlier file says of later steps.
  append_bytes(start, 7, session_log);
  if (auto written = events.file_.append(event_record(header) + event_record(start)); !written)
    return written.failure();
  return events;
}

Result<void> EventFile::add_scalars(double wall_seconds, int64_t step,
                                    std::span<const std::pair<std::string, double>> values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    append_bytes(value, 1, tag);
    // The format's scalar is a float: a large counter keeps all its digits in metrics.jsonl only.
    append_float(value, 2, static_cast<float>(number));
    append_bytes(summary, 1, value);
  }
  std::string event;
  append_double(event, 1, wall_seconds);
  append_int(event, 2, step);
  append_bytes(event, 5, summary);
  return file_.append(event_record(event));
}

Result<std::vector<ScalarEvent>> read_events(const std::filesystem::path& path) {
  auto bytes = read_file(path);
  if (!bytes) return bytes.failure();
  std::string_view rest = bytes.value();
  std::vector<ScalarEvent> events;
  auto fault = [&](std::string_view what) {
    return Failure{fmt::format("{}: record {}: {}", path.string(), events.size(), what)};
  };
  auto word = [](std::string_view at) {
    uint32_t value;
    std::memcpy(&value, at.data(), sizeof(value));
    return value;
  };
  while (!rest.empty()) {
    if (rest.size() < 12) return fault("cut");
    uint64_t size;
    std::memcpy(&size, rest.data(), sizeof(size));
    if (word(rest.substr(8)) != masked_crc32c(rest.substr(0, 8)))
      return fault("wrong checksum of the length");
    // In this order, so that no sum can wrap for a size near 2^64.
    if (size > rest.size() - 12 || rest.size() - 12 - size < 4) return fault("cut");
    std::string_view message = rest.substr(12, size);
    if (word(rest.substr(12 + size)) != masked_crc32c(message))
      return fault("wrong checksum of the data");
    auto event = read_event(message);
    if (!event) return fault("not an Event message");
    events.push_back(std::move(*event));
    rest.remove_prefix(16 + size);
  }
  return events;
}

}  // namespace tailrace
