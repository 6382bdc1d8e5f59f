// Finds out whether a just sampled token completes a stop string in the decoded text.
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
  const text::Tokenizer& tokenizer_;
  std::vector<std::string> stop_strings_;
  size_t longest_ = 0;         // bytes
  std::vector<bool> may_end_;  // [vocab]
};

}  // namespace tailrace
