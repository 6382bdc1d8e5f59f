// Finds out whether a just sampled token completes a stop string in the decoded text, with its
// special tokens or without them: a stop string may name one, or stand around one.
//
// Thread: any (immutable). The tokenizer outlives it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/generate.h"
#include "core/text/tokenizer.h"

namespace tailrace {

class StopMatcher {
 public:
  // Decodes each vocabulary entry once, to know which tokens can complete a stop string at all.
  // Empty stop strings are ignored.
  StopMatcher(const text::Tokenizer& tokenizer, std::vector<std::string> stop_strings,
              int64_t vocab);

  // `sampled`: all tokens of the answer so far; earlier calls said no to each shorter beginning.
  bool completes(std::span<const TokenId> sampled) const;

 private:
  bool found_in(const std::string& text) const;

  struct Token {
    bool may_end = false;       // a stop string may end in it
    bool stands_alone = false;  // what comes before it cannot change its text
    bool special = false;
  };
  const text::Tokenizer& tokenizer_;
  std::vector<std::string> stop_strings_;
  size_t longest_ = 0;         // bytes
  std::vector<Token> tokens_;  // [vocab]
};

}  // namespace tailrace
