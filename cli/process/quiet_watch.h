// Tells when a run has been quiet for so long that a person should hear who waits for whom, and
// when attempts fail and none gives a sample.
//
// Thread: caller locks.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "core/run/status_page.h"

namespace tailrace {

class QuietWatch {
 public:
  explicit QuietWatch(std::chrono::seconds first) : first_(first), next_(first) {}

  // The next line to say, if any: first after `first`, then each time that it has doubled.
  std::optional<std::string> look(const Waits& waits) {
    if (waits.failed_in_row < kFailed) next_failed_ = kFailed;
    if (waits.failed_in_row >= next_failed_) {
      next_failed_ = 4 * waits.failed_in_row;
      return fmt::format("{} attempts have failed, and none has given a sample meanwhile: {}",
                         waits.failed_in_row, waits.line);
    }
    if (waits.quiet < first_) next_ = first_;
    if (waits.quiet < next_) return std::nullopt;
    next_ = 2 * waits.quiet;
    return fmt::format("nothing has come in for {} s: {}", waits.quiet.count(), waits.line);
  }

 private:
  static constexpr int64_t kFailed = 8;

  std::chrono::seconds first_, next_;
  int64_t next_failed_ = kFailed;
};

}  // namespace tailrace
