// Verifier `text_rules`: does the continuation of a prompt keep simple rules?
//
// Evidence: {"words": ["park"], "min_words": 3, "max_words": 40, "response": "..."}; only
// "response" is required, and a row of a dataset needs a rule of its own (check_row). Three rules,
// each a part of the score:
//
// - 1/2: the share of `words` that occur, as whole words, in upper or lower case (1 without words)
// - 1/4: the text ends in a full stop, `!` or `?` (a closing quotation mark may follow)
// - 1/4: it has min_words (default 3) to max_words (default 40) words
//
// A response shorter than min_words scores 0, so that silence earns nothing. Metrics: success (all
// rules kept), words_found, ends_well, length_ok.
#pragma once

#include <memory>

#include "reward/verifier.h"

namespace tailrace {

std::unique_ptr<Verifier> make_text_rules_verifier();

}  // namespace tailrace
