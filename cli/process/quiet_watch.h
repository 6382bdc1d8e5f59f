// Tells when a run has been quiet for so long that a person should hear who waits for whom.
//
// Thread: caller locks.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "core/base/status_page.h"

namespace tailrace {

class QuietWatch {
 public:
  explicit QuietWatch(std::chrono::seconds first) : first_(first), next_(first) {}

  // What to say now, if anything: first after `first`, then each time that it has doubled.
  std::optional<std::string> look(const Waits& waits) {
    if (waits.quiet < first_) next_ = first_;
    if (waits.quiet < next_) return std::nullopt;
    next_ = 2 * waits.quiet;
    return fmt::format("nothing has come in for {} s: {}", waits.quiet.count(), waits.line);
  }

 private:
  std::chrono::seconds first_, next_;
};

}  // namespace tailrace
