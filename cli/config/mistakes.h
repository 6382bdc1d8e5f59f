// Mistakes of a person's that one launch tells together: those of one file do not wait until those
// of another are mended.
//
// Thread: one at a time.
#pragma once

#include <string>
#include <vector>

#include "core/base/error.h"

namespace tailrace {

class Mistakes {
 public:
  // Calls `check()`, and keeps what it refuses.
  template <class Check>
  void look(const Check& check) {
    try {
      check();
    } catch (const UserError& error) {
      found_.push_back(error);
    }
  }

  void add(const UserError& error) { found_.push_back(error); }
  bool any() const { return !found_.empty(); }

  // Throws what was found as one UserError, about the key of the first one.
  void tell() const {
    if (found_.empty()) return;
    if (found_.size() == 1) throw UserError(found_.front());
    std::string all;
    for (const UserError& error : found_)
      all += (all.empty() ? "" : "\n       ") + std::string(error.what());
    throw UserError("{}", all).about(found_.front().key());
  }

 private:
  std::vector<UserError> found_;
};

}  // namespace tailrace
