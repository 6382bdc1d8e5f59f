// What the sequences of a pass have in common, so that it is computed once: the prompt of a group,
// the history of turns that go on from each other.
//
// In front of its first target a sequence has tokens whose states another sequence of the pass has
// too. The state of a token depends on those before it alone, so the rows of the first one serve
// both, forward by the same bits (design rule 3), backward by the sum of what both give them. The
// row before the first target stays the sequence's own: its head reads it.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/generate.h"
#include "kernels/base/view.h"

namespace tailrace {

class SharedPrefixes {
 public:
  struct Place {
    int32_t parent = -1;  // index of the sequence that has the first tokens; -1: none has
    int64_t tokens = 0;   // how many these are
  };

  // Forgets the sequences.
  void clear() { sequences_.clear(); }

  // The next sequence of the pass, borrowed until clear(). `unscored`: tokens in front of the row
  // that predicts its first target. It goes on from the one that has most of them in common, the
  // first of such, if that is at least half: the beginning that all prompts of a run have would
  // chain its groups to each other, and each chain is one thread's work in attention.
  Place add(std::span<const TokenId> tokens, int64_t unscored);

 private:
  std::vector<std::span<const TokenId>> sequences_;
};

}  // namespace tailrace
