// Random rows of preferences for the tiny model.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/random.h"
#include "trainer/preference_rows.h"

namespace tailrace::testing {

inline std::vector<TokenId> random_tokens(int64_t count, Rng& rng) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(rng.below(19)));
  return tokens;
}

// Several rows share a prompt. Every completion has a length of its own.
inline std::vector<PreferenceRow> random_pairs(int64_t count, uint64_t seed = 3) {
  Rng rng(seed);
  std::vector<PreferenceRow> rows;
  std::vector<TokenId> prompt;
  for (int64_t i = 0; i < count; ++i) {
    if (i % 3 != 1) prompt = random_tokens(3 + rng.below(20), rng);
    rows.push_back({.prompt = prompt,
                    .chosen = random_tokens(1 + rng.below(9), rng),
                    .rejected = random_tokens(10 + rng.below(9), rng),
                    .margin = i % 2 == 0 ? 0.25 : 0});
  }
  return rows;
}

inline std::vector<PreferenceRow> random_unpaired(int64_t count, uint64_t seed = 3) {
  std::vector<PreferenceRow> rows = random_pairs(count, seed);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].rejected.clear();
    rows[i].margin = 0;
    rows[i].desirable = i % 3 != 0;
  }
  return rows;
}

}  // namespace tailrace::testing
