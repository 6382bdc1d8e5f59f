// The bound on the work of one render.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/chat/jinja_error.h"

namespace tailrace::chat::jinja {

// The steps that one render may spend. A step is a node that is evaluated, an item that is made or
// looked at, or 16 bytes of text; so steps bound the time and the memory.
class Budget {
 public:
  static constexpr int64_t kMaxSteps = 10'000'000;

  void spend(int64_t steps) {
    if (steps > left_) throw Error("the template needs more than {} steps", kMaxSteps);
    left_ -= steps;
  }
  void spend_bytes(size_t bytes) { spend(1 + static_cast<int64_t>(bytes / 16)); }
  // To look for `wanted` bytes in `text` bytes: at worst all of them at each place.
  void spend_search(size_t text, size_t wanted) {
    spend(1 + static_cast<int64_t>(text * wanted / 16384));
  }

 private:
  int64_t left_ = kMaxSteps;
};

}  // namespace tailrace::chat::jinja
