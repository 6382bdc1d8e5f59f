// TensorBoard event files, written without TensorFlow.
//
// A file is a sequence of records; a record is
//   uint64 length | uint32 masked crc of length | `length` bytes | uint32 masked crc of the bytes
// little-endian, with masked(crc) = rotate_right(crc32c, 15) + 0xa282ead8. The bytes are a protobuf
// message tensorflow.Event {double wall_time = 1; int64 step = 2; string file_version = 3; Summary
// summary = 5; SessionLog session_log = 7}, Summary {repeated Value value = 1}, Value {string tag =
// 1; float simple_value = 2}.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/result.h"

namespace tailrace {

// CRC-32C (Castagnoli polynomial, reflected), of a whole text.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

// One record around a message.
std::string event_record(std::string_view message);

// Thread: one at a time.
class EventFile {
 public:
  // Creates DIRECTORY/events.out.tfevents.SECONDS.tailrace. `first_step`: steps from here on that
  // an earlier file of the folder holds are dropped by TensorBoard (a run that continues from a
  // checkpoint).
  static Result<EventFile> create(const std::filesystem::path& directory, double wall_seconds,
                                  int64_t first_step);

  Result<void> add_scalars(double wall_seconds, int64_t step,
                           std::span<const std::pair<std::string, double>> values);

 private:
  AppendFile file_;
};

// The content of the file, for tests: events in order. A Failure at the first record that is cut or
// whose checksum is wrong.
struct ScalarEvent {
  double wall_seconds = 0;
  int64_t step = 0;
  std::string file_version;  // of the first record only
  bool session_start = false;
  std::vector<std::pair<std::string, float>> values;
};
Result<std::vector<ScalarEvent>> read_events(const std::filesystem::path& path);

}  // namespace tailrace
